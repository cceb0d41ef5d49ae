"""Silent speech tokens: which ids are silence or breath, and how many in a row are rendered."""

from __future__ import annotations

SILENT_TOKENS = {
    "cosyvoice1": frozenset[int](),
    "cosyvoice2": frozenset[int](),
    "cosyvoice3": frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323}),
}
"""Speech ids of silence or breath, by family."""

SILENCE_LIMIT_TOKENS = 5
"""Longest run of silent tokens that is rendered, as in the reference."""


class SilenceFilter:
    """Drops silent tokens beyond ``limit`` in a row (they stay in the language model's context)."""

    def __init__(self, silent: frozenset[int], limit: int = SILENCE_LIMIT_TOKENS) -> None:
        self._silent = silent
        self._limit = limit
        self._run = 0

    def accepts(self, token: int) -> bool:
        """Whether to render ``token``."""
        self._run = self._run + 1 if token in self._silent else 0
        return self._run <= self._limit
