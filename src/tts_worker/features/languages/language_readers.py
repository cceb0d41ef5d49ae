"""What reads each language, and the abbreviations of each: the interface ``text.reading.further.FurtherLanguages``."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec

from tts_worker.features.languages.tables import load
from tts_worker.text.reading.further import Rewrites

WORLDWIDE = frozenset(("es", "fr", "de", "it", "pt", "ja", "ko", "ru"))
"""Languages of the module ``worldwide``, each with a file of tables."""

_log = logging.getLogger(__name__)


@cache
def rewrites_in(language: str) -> Rewrites | None:
    """Return what reads a language; None if nothing does, of ``WORLDWIDE`` without its libraries with one warning."""
    if language in ("zh", "yue"):
        from tts_worker.features.languages import chinese

        return chinese.rewrites
    if language in WORLDWIDE and _is_installed():
        from tts_worker.features.languages.worldwide import Reader

        return Reader(language).rewrites
    return None


def abbreviations(language: str, table: str) -> Collection[str]:
    """Return the names of a table of abbreviations that are read in words: "p. ej."."""
    return load(language).get(table, ()) if language in WORLDWIDE else ()


@cache
def _is_installed() -> bool:
    installed = all(find_spec(name) for name in ("num2words", "babel"))
    if not installed:
        _log.warning("numbers are not read in languages other than English and Chinese: install tts-worker[languages]")
    return installed
