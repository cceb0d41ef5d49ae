"""Which utterance the engine serves next: no clock and no tensor, only integers.

Least slack first, in two classes. Slack is the audio a listener can still play if nothing more is made, in samples.

*Paced* streams (calls) are sent at the pace of playback, so their slack is known: a stream that plays has its playout
lead, a stream that has not begun has what is left of the time in which a first chunk feels immediate. A first chunk may
be urgent, but never more urgent than a stream close to underrun: a gap in running speech is worse than a late start.

*Unpaced* streams (downloads, most compatibility APIs) take audio as fast as it is made. What they took says nothing
about when a listener will run out, so they are measured against a virtual playhead, and no unpaced stream goes before a
paced one. Two rules keep them going: beside paced streams that always need more they still get ``UNPACED_SHARE`` of
the engine's time, and among themselves the one with the least virtual lead goes first, so that first chunks come first
and the rest is shared evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

FIRST_AUDIO_TARGET_SAMPLES = SAMPLE_RATE_HZ // 4
"""A paced stream that has not begun starts with 250 ms of slack: it overtakes every stream that has more ..."""

FIRST_AUDIO_FLOOR_SAMPLES = 3 * SAMPLE_RATE_HZ // 20
"""... which runs down to 150 ms and no further: no new stream overtakes one that has less, which is several steps."""

UNPACED_LEAD_SAMPLES = 3 * SAMPLE_RATE_HZ
"""An unpaced stream that is further ahead of its virtual playhead than this is no less urgent: from here on all unpaced
streams take turns, so that a new download does not stop the others until it has caught up with them."""

UNPACED_SHARE = 1 / 16
"""Of the engine's time, for unpaced streams that wait beside paced ones: downloads always finish."""

_LONGEST_STEP_US = 250_000
"""No step is accounted for with more than this: what took longer was a time without work."""


@dataclass(frozen=True, slots=True)
class Job:
    """One utterance that could use a step now: it has text to speak, credit to speak it, and is not held.

    Attributes:
        lead_samples: Audio made and not yet played, by the listener or, if unpaced, by a virtual playhead.
        waiting_since_us: Since when it waits: since its last step, or, where no two utterances share a step, for a
            first chunk since its first text.
        started: Whether it has emitted audio.
        paced: Whether the listener takes audio at the pace of playback.
    """

    key: UtteranceKey
    lead_samples: int
    waiting_since_us: int
    started: bool
    paced: bool = True


def slack_samples(job: Job, now_us: int) -> int:
    """Samples until this listener has an underrun. Source: least-laxity scheduling over playout lead.

    Comparable within a class only.
    """
    if not job.paced:
        # Neither a first chunk nor a stream that fell behind goes before the other: both wait in order of arrival.
        return min(max(0, job.lead_samples), UNPACED_LEAD_SAMPLES) if job.started else 0
    if job.started:
        return job.lead_samples
    waited = (now_us - job.waiting_since_us) * SAMPLE_RATE_HZ // 1_000_000
    return max(FIRST_AUDIO_FLOOR_SAMPLES, FIRST_AUDIO_TARGET_SAMPLES - waited)


def by_urgency(jobs: Sequence[Job], now_us: int) -> list[Job]:
    """All jobs, most urgent first; paced before unpaced.

    Ties go to the job that waits longest, then to the smaller key: a total order.
    """
    return sorted(jobs, key=lambda job: (not job.paced, slack_samples(job, now_us), job.waiting_since_us, job.key))


_FIRST_STEP_US = 100_000
"""What the first step of an unpaced stream is taken to need."""


class Scheduler:
    """``by_urgency`` with a minimum share of engine time for unpaced streams.

    While a paced stream is served and an unpaced one waits, the share of the elapsed time is owed to the unpaced; once
    a whole step is owed, an unpaced stream goes first. What a step takes is read off the times given: deterministic.
    """

    def __init__(self) -> None:
        self._owed_us = 0.0
        self._unpaced_step_us = _FIRST_STEP_US  # what the last one took
        self._served_at_us = 0
        self._served_paced: bool | None = None  # in the last step; None: no step to account for

    def order(self, jobs: Sequence[Job], now_us: int) -> list[Job]:
        """All jobs, in the order in which they may be served."""
        self._account(now_us)
        ordered = by_urgency(jobs, now_us)
        if self._owed_us >= self._unpaced_step_us:
            first = next((job for job in ordered if not job.paced), None)
            if first is not None:
                ordered.remove(first)
                ordered.insert(0, first)
        return ordered

    def _account(self, now_us: int) -> None:
        elapsed_us = min(max(0, now_us - self._served_at_us), _LONGEST_STEP_US)
        self._served_at_us = now_us
        if self._served_paced is True:
            self._owed_us += elapsed_us * UNPACED_SHARE / (1 - UNPACED_SHARE)
        elif self._served_paced is False:
            self._unpaced_step_us = elapsed_us
            self._served_paced = None

    def served(self, job: Job, jobs: Sequence[Job]) -> None:
        """``job``, one of ``jobs``, gets the step that begins now."""
        if not job.paced:
            self._served_paced, self._owed_us = False, 0.0
        elif all(other.paced for other in jobs):
            self._served_paced = None
        else:
            self._served_paced = True

    def pick(self, jobs: Sequence[Job], now_us: int) -> Job | None:
        """The job that gets the next step; None if there is none."""
        ordered = self.order(jobs, now_us)
        if not ordered:
            return None
        self.served(ordered[0], jobs)
        return ordered[0]
