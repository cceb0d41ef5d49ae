"""Text to speech tokens: tokenizers, the order of the language model's inputs, and its slots and steps."""
