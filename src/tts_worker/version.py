"""The version of the worker and its client."""

__version__ = "0.1.0"
