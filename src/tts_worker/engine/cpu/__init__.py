"""Engines for a CPU: phrase by phrase (``phrases``), with the networks of ``hibari``."""
