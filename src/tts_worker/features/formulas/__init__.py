"""Formulas in LaTeX, which are read in words. Without the folder they are dropped.

The core finds where they end (``text.formulas``), and what reads them through ``formula_reader``.
"""

from __future__ import annotations

from tts_worker.feature import Feature

FEATURE = Feature(docs="text.md")
