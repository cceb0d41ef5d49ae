"""What only CosyVoice-300M has: its configuration and its networks."""
