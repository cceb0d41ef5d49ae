"""CosyVoice 2, Fun-CosyVoice 3 and CosyVoice-300M on PyTorch. The README beside this file explains the engine."""
