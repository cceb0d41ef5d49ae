"""Watches what the language model says: a random process that mostly speaks and sometimes does not.

Token loops and runaway silence are seen while they happen; what comes of them (another draw, a clean cut) is decided
by the caller from the number of tokens that may keep. Pure: ids in, verdicts out; knows no sound, clock or tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_PERIOD_TOKENS = 25
"""A second: what repeats itself more slowly than that may be a refrain."""


@dataclass(frozen=True, slots=True)
class GuardRule:
    """``loop_tokens`` that repeat what came a period before are a loop (2 s); so are ``silence_tokens`` silent ones in
    a row a silence that does not end (3 s)."""

    loop_tokens: int = 50
    silence_tokens: int = 75


@dataclass(frozen=True, slots=True)
class Trip:
    """Something is wrong. The first ``keep_tokens`` of the run are as they should be."""

    reason: str
    keep_tokens: int


class TokenGuard:
    """One run of the language model. ``see`` every drawn speech id in order."""

    def __init__(self, silent: frozenset[int], rule: GuardRule | None = None) -> None:
        self._rule = rule or GuardRule()
        self._silent = silent
        self._tokens: list[int] = []  # the last period
        self._seen = self._silence = 0
        self._matches = [0] * (LONGEST_PERIOD_TOKENS + 1)  # by period: how many in a row equal the id a period before

    def see(self, token: int) -> Trip | None:
        """Take the next id; says what is wrong as soon as it is."""
        self._seen += 1
        self._silence = self._silence + 1 if token in self._silent else 0
        if self._silence >= self._rule.silence_tokens:
            return Trip("silence", self._seen - self._silence)
        recent = self._tokens
        longest = 0
        for period in range(1, min(LONGEST_PERIOD_TOKENS, len(recent)) + 1):
            same = recent[-period] == token
            self._matches[period] = self._matches[period] + 1 if same else 0
            longest = max(longest, self._matches[period])
        recent.append(token)
        if len(recent) > LONGEST_PERIOD_TOKENS:
            del recent[0]
        if longest >= self._rule.loop_tokens and not self._silence:
            return Trip("token_loop", self._seen - longest)
        return None
