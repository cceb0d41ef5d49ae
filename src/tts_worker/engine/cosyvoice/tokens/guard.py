"""Silent speech tokens, and invalid output of the language model: token loops and endless silence.

The caller of ``TokenGuard`` decides what follows (another draw, a truncation) from the number of valid tokens. Pure:
ids in, violations out.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits of a run, at 25 tokens per second.

    Attributes:
        period_tokens: Longest period of a loop (1 s). A slower repetition may be a refrain.
        loop_tokens: Consecutive tokens equal to the token one period earlier that make a loop (2 s).
        silence_tokens: Consecutive silent tokens that make an endless silence (3 s).
    """

    period_tokens: int = 25
    loop_tokens: int = 50
    silence_tokens: int = 75

    @classmethod
    def at_rate(cls, token_rate_hz: int) -> GuardLimits:
        """Return the limits of as many seconds at ``token_rate_hz``."""
        return cls(token_rate_hz, 2 * token_rate_hz, 3 * token_rate_hz)


@dataclass(frozen=True, slots=True)
class Violation:
    """A detected violation. The first ``valid_tokens`` of the run precede it."""

    reason: str
    valid_tokens: int


class TokenGuard:
    """Checks one run of the language model. Pass every drawn speech id to ``check``, in order."""

    def __init__(self, silent: frozenset[int], limits: GuardLimits | None = None) -> None:
        self._limits = limits or GuardLimits()
        self._silent = silent
        self._recent: list[int] = []  # at most one period
        self._checked_tokens = 0
        self._silent_tokens = 0  # at the end
        # By period: consecutive tokens equal to the one a period earlier.
        self._repeats = [0] * (self._limits.period_tokens + 1)

    def check(self, token: int) -> Violation | None:
        """Check the next id. A violation is returned as soon as it is certain."""
        self._checked_tokens += 1
        self._silent_tokens = self._silent_tokens + 1 if token in self._silent else 0
        if self._silent_tokens >= self._limits.silence_tokens:
            return Violation("silence", self._checked_tokens - self._silent_tokens)
        recent = self._recent
        longest = 0
        for period in range(1, min(self._limits.period_tokens, len(recent)) + 1):
            repeats = recent[-period] == token
            self._repeats[period] = self._repeats[period] + 1 if repeats else 0
            longest = max(longest, self._repeats[period])
        recent.append(token)
        if len(recent) > self._limits.period_tokens:
            del recent[0]
        if longest >= self._limits.loop_tokens and not self._silent_tokens:
            return Violation("token_loop", self._checked_tokens - longest)
        return None
