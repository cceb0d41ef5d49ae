"""The languages that are read besides English: a feature reads them, in its module ``language_readers``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import cache
from typing import Protocol, cast

from tts_worker.feature_names import modules
from tts_worker.text.span_rewriting import Rewrite

Rewrites = Callable[[str, int], list[Rewrite]]
"""``(text, first)``: the disjoint rewrites of ``text`` from ``first`` on, in order; what precedes is only looked at."""

_log = logging.getLogger(__name__)


class FurtherLanguages(Protocol):
    """Reads languages, which are given by their primary tags."""

    def rewrites_in(self, language: str) -> Rewrites | None:
        """Return what reads a language; None if nothing does."""

    def abbreviations(self, language: str, table: str) -> Collection[str]:
        """Return the names of a table of abbreviations that are read in words, with their periods: "p. ej."."""


@cache
def further_languages() -> FurtherLanguages | None:
    """Return what reads other languages than English; None without the feature, with one warning."""
    for module in modules("language_readers"):
        return cast(FurtherLanguages, module)
    _log.warning("numbers are read in English only: this installation lacks the feature languages")
    return None
