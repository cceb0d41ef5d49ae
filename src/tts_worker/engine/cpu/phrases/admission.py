"""Whether a call may begin: its first audio must not cause an underrun in a call that already speaks. Pure: no clock.

The network runs for one phrase after another, and a phrase takes it longer than a frame lasts. New calls that all go
first use up the playout lead of the running ones, which then need the network at the same time. So a call begins when
all pending runs meet their deadlines behind its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tts_worker.types import SAMPLE_RATE_HZ

_WEIGHT = 0.1
"""Weight of the last run in the running means."""


class PendingRun(NamedTuple):
    """A run of the network that a call will need.

    Attributes:
        deadline_samples: Time until the listener has played everything before it, in samples.
        work_samples: Time that the network needs, in samples.
    """

    deadline_samples: int
    work_samples: int


class RunEstimates:
    """Estimates of runs from running means of those before; 0 before the first one."""

    def __init__(self) -> None:
        self._runs = 0
        self._ids = 0.0
        self._chars = 0.0
        self._work_samples = 0.0
        self._audio_samples = 0.0

    def record(self, ids: int, chars: int, work_ms: float, audio_samples: int) -> None:
        """Take a finished run into account.

        Args:
            ids: Phoneme ids of its phrase.
            chars: Characters of the text that the phrase begins; 0 if it continues one.
            work_ms: Time that the network needed.
            audio_samples: Audio of the phrase.
        """
        self._runs += 1
        weight = max(_WEIGHT, 1 / self._runs)
        self._ids += weight * (ids - self._ids)
        self._chars += weight * (chars - self._chars)
        self._work_samples += weight * (work_ms * SAMPLE_RATE_HZ / 1000 - self._work_samples)
        self._audio_samples += weight * (audio_samples - self._audio_samples)

    def ids(self, chars: int) -> float:
        """Return the phoneme ids of a text that is not phonemized yet."""
        return chars * self._ids / self._chars if self._chars else 0.0

    def work_samples(self, ids: float) -> int:
        """Return the time of a run with ``ids`` phonemes in samples."""
        return round(self._work_samples * self._share(ids))

    def audio_samples(self, ids: float) -> int:
        """Return the audio of a phrase with ``ids`` phonemes."""
        return round(self._audio_samples * self._share(ids))

    def _share(self, ids: float) -> float:
        return ids / self._ids if self._ids else 0.0


def meets_deadlines(runs: Iterable[PendingRun], busy_samples: int, margin_samples: int) -> bool:
    """Return whether all runs end in time, with a margin, if the first one begins after ``busy_samples``.

    They go earliest deadline first: if any order meets all deadlines, this one does. Source: Jackson's rule (1955).
    """
    end_samples = busy_samples
    for run in sorted(runs):
        end_samples += run.work_samples
        if end_samples > run.deadline_samples - margin_samples:
            return False
    return True
