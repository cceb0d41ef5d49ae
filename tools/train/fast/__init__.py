"""Training of voices for the CPU engine: its network learns a style of Kokoro. See tools/train/README.md."""
