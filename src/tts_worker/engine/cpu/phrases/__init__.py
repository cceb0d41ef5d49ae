"""What the voices share whose network turns one phrase of phonemes into audio."""
