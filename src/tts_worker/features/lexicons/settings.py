"""The section ``lexicons`` of the settings."""

from __future__ import annotations

from pathlib import Path

from tts_worker.section import FeatureSection


class LexiconSettings(FeatureSection):
    """Stored pronunciation lexicons.

    Attributes:
        directory: Where they are kept; workers may share it. None stores none.
    """

    directory: Path | None = None


SECTIONS = {"lexicons": LexiconSettings}
