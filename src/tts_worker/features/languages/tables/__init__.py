"""What is written and what is spoken for it, one file for each language; ``text.reading.tables`` explains them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tts_worker.text.reading import tables


def load(name: str) -> Mapping[str, dict[str, str]]:
    """Return the tables of a file by heading."""
    return tables.load(Path(__file__).with_name(f"{name}.tsv"))
