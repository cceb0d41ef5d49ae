"""The commands of ``python -m tools.bench``: arguments and output."""
