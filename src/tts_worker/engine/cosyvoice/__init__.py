"""CosyVoice 2 and Fun-CosyVoice 3. Imports the standard library, numpy, torch and tokenizers only; the rest is late."""
