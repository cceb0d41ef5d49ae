"""Model directories with random weights: ``python -m tools.random_bundle DIR``."""
