"""The networks of CosyVoice2 and 3, one per file, and the keys and values that they attend to."""
