"""Voices: enrolled from recordings, read from files, cached, and turned into the inputs of the networks."""
