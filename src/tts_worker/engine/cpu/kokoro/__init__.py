"""Kokoro-82M: voices for English and Mandarin on the CPU."""
