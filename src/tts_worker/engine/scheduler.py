"""Scheduling: which utterance the engine serves next. Integers only, without clock and tensors.

The stream with the least slack goes first, in two classes. Slack is the number of samples until underrun if no more
audio is rendered.

*Paced* streams (calls) take audio at the pace of playback, so their slack is known: a playing stream has its playout
lead, and a stream that has not started has the remaining part of its first-audio target. A first chunk may be urgent
but never precedes a stream close to underrun: a gap in running speech is worse than a late start.

*Unpaced* streams (downloads, most compatibility APIs) take audio as fast as it is rendered, which says nothing about
their playback. They are measured against a virtual playhead, and no unpaced stream precedes a paced one. Two rules
guarantee progress: unpaced streams that wait beside paced ones get ``UNPACED_SHARE`` of the engine's time, and among
unpaced streams the one with the least virtual lead goes first, so first chunks precede others and the rest is shared
evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

FIRST_AUDIO_TARGET_SAMPLES = SAMPLE_RATE_HZ // 4
"""A paced stream that has not started has 250 ms of slack and precedes every stream with more."""

FIRST_AUDIO_FLOOR_SAMPLES = 3 * SAMPLE_RATE_HZ // 20
"""The slack of a waiting first chunk falls to 150 ms (several steps): it never precedes a stream with less."""

UNPACED_LEAD_SAMPLES = 3 * SAMPLE_RATE_HZ
"""Limit of the virtual lead that counts for unpaced streams.

Beyond it they take turns, so that a new download does not stop the others until it has caught up with them.
"""

UNPACED_SHARE = 1 / 16
"""Share of the engine's time for unpaced streams that wait beside paced ones, so that downloads always finish."""

_MAX_STEP_US = 250_000
"""A longer interval between two steps includes idle time, so a step is charged with at most this."""


@dataclass(frozen=True, slots=True)
class Job:
    """An utterance that can use a step: it has text and credit and is not held.

    Attributes:
        key: The utterance.
        lead_samples: Audio rendered and not yet played, by the client or, if unpaced, by a virtual playhead.
        waiting_since_us: Time of its last step; before its first chunk and where no two utterances share a step, the
            time of its first text.
        started: Whether it has emitted audio.
        paced: Whether the client takes audio at the pace of playback.
    """

    key: UtteranceKey
    lead_samples: int
    waiting_since_us: int
    started: bool
    paced: bool = True


def slack_samples(job: Job, now_us: int) -> int:
    """Return the samples until underrun; comparable within a class only.

    Source: least-laxity scheduling over the playout lead.
    """
    if not job.paced:
        # A first chunk and a stream without lead are equally urgent and served in order of arrival.
        return min(max(0, job.lead_samples), UNPACED_LEAD_SAMPLES) if job.started else 0
    if job.started:
        return job.lead_samples
    waited = (now_us - job.waiting_since_us) * SAMPLE_RATE_HZ // 1_000_000
    return max(FIRST_AUDIO_FLOOR_SAMPLES, FIRST_AUDIO_TARGET_SAMPLES - waited)


def by_urgency(jobs: Sequence[Job], now_us: int) -> list[Job]:
    """Sort jobs by urgency, paced before unpaced.

    Ties are broken by the longer wait, then by the smaller key: a total order.
    """
    return sorted(jobs, key=lambda job: (not job.paced, slack_samples(job, now_us), job.waiting_since_us, job.key))


_INITIAL_STEP_US = 100_000
"""Assumed time of the first unpaced step."""


class Scheduler:
    """Orders jobs by urgency with a minimum share of engine time for unpaced streams.

    While a paced stream is served and an unpaced one waits, a share of the elapsed time is credited to the unpaced
    class; when the credit reaches a whole step, an unpaced stream goes first. Step times are derived from the times
    passed in, so the order is deterministic.
    """

    def __init__(self) -> None:
        self._unpaced_credit_us = 0.0
        self._unpaced_step_us = _INITIAL_STEP_US  # time of the last unpaced step
        self._last_step_us = 0
        self._last_was_paced: bool | None = None  # class of the last step; None: nothing to account for

    def order(self, jobs: Sequence[Job], now_us: int) -> list[Job]:
        """Return all jobs in the order in which they may be served."""
        self._account(now_us)
        ordered = by_urgency(jobs, now_us)
        if self._unpaced_credit_us >= self._unpaced_step_us:
            first = next((job for job in ordered if not job.paced), None)
            if first is not None:
                ordered.remove(first)
                ordered.insert(0, first)
        return ordered

    def _account(self, now_us: int) -> None:
        elapsed_us = min(max(0, now_us - self._last_step_us), _MAX_STEP_US)
        self._last_step_us = now_us
        if self._last_was_paced is True:
            self._unpaced_credit_us += elapsed_us * UNPACED_SHARE / (1 - UNPACED_SHARE)
        elif self._last_was_paced is False:
            self._unpaced_step_us = elapsed_us
            self._last_was_paced = None

    def served(self, job: Job, jobs: Sequence[Job]) -> None:
        """Record that ``job``, one of ``jobs``, gets the step that starts now."""
        if not job.paced:
            self._last_was_paced = False
            self._unpaced_credit_us = 0.0
        elif all(other.paced for other in jobs):
            self._last_was_paced = None
        else:
            self._last_was_paced = True

    def pick(self, jobs: Sequence[Job], now_us: int) -> Job | None:
        """Choose the job for the next step; None without jobs."""
        ordered = self.order(jobs, now_us)
        if not ordered:
            return None
        self.served(ordered[0], jobs)
        return ordered[0]
