"""Tools for developers, run from a clone (``python -m tools.parity``); no part of the installed package."""
