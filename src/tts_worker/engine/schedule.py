"""Who is served next: a pure function over integers.

Least slack first: slack is how long the listener can go on hearing sound if nothing more is made, in samples. A
stream that plays has its *lead* (made and not yet taken); a stream that has not begun has what is left of the time in
which a first sound feels immediate. A first chunk may be urgent, but never more urgent than a stream that is about to
fall silent: a hole in running speech is worse than a late beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

FIRST_AUDIO_TARGET_SAMPLES = SAMPLE_RATE_HZ // 4
"""A stream that has not begun starts with 250 ms of slack: it overtakes every stream that has more than that ..."""

FIRST_AUDIO_FLOOR_SAMPLES = 3 * SAMPLE_RATE_HZ // 20
"""... which runs down to 150 ms and no further: streams with less are safe from newcomers for several steps."""


@dataclass(frozen=True, slots=True)
class Job:
    """One utterance that could use a step now (it has text to say, credit to say it, and is not held)."""

    key: UtteranceKey
    lead_samples: int
    waiting_since_us: int
    started: bool


def slack_samples(job: Job, now_us: int) -> int:
    """Samples until this listener notices that nothing came. Source: least-laxity scheduling over playback lead."""
    if job.started:
        return job.lead_samples
    waited = (now_us - job.waiting_since_us) * SAMPLE_RATE_HZ // 1_000_000
    return max(FIRST_AUDIO_FLOOR_SAMPLES, FIRST_AUDIO_TARGET_SAMPLES - waited)


def by_urgency(jobs: Sequence[Job], now_us: int) -> list[Job]:
    """All jobs, most urgent first. Ties go to who has waited longest, then to the smaller key: a total order."""
    return sorted(jobs, key=lambda job: (slack_samples(job, now_us), job.waiting_since_us, job.key))


def pick(jobs: Sequence[Job], now_us: int) -> Job | None:
    """The most urgent job, None if there is none."""
    return min(jobs, key=lambda job: (slack_samples(job, now_us), job.waiting_since_us, job.key), default=None)
