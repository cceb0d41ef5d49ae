"""Benchmarks for the makers of the worker: ``python -m tools.bench NAME``. Users have ``tts-worker bench``."""
