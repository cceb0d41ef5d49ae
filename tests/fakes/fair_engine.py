"""The scheduler with a simulated clock and an engine with fixed step costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.scheduler import Budgets, Candidate, Scheduler
from tts_worker.types import SAMPLE_RATE_HZ, UtteranceKey

WINDOW_SAMPLES = 3 * SAMPLE_RATE_HZ // 2


@dataclass
class Stream:
    """A call (paced) or a download. Its first chunk takes ``first_steps`` steps, each later one a single step.

    ``step_us`` is the cost of a step, ``chunk_ms`` the audio of a chunk, ``chunks`` how many there are (None: endless).
    ``buffers``: a call whose client takes audio at once and plays it from its own buffer.
    """

    name: str
    paced: bool
    step_us: int
    chunk_ms: int
    arrives_us: int = 0
    first_steps: int = 1
    chunks: int | None = None
    buffers: bool = False
    first_audio_us: int | None = None
    underruns: int = 0
    chunks_made: int = 0
    busy_us: int = 0
    longest_wait_us: int = 0
    _steps: int = 0
    _waiting_since_us: int | None = None
    _served_us: int | None = None
    output: OutputBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.output = OutputBuffer(UtteranceKey(self.name, 1), 1 << 60, paced=self.paced, buffered=self.buffers)

    @property
    def finished(self) -> bool:
        return self.chunks is not None and self.chunks_made >= self.chunks

    def play(self, now_us: int) -> None:
        """Take the audio that is played by ``now_us``; count underruns."""
        if self.first_audio_us is None:
            return
        output = self.output
        if not self.paced or self.buffers:
            output.grant(output.emitted_samples - output.taken_samples)
            return
        # An underrun delays everything after it.
        due = (now_us - self.first_audio_us) * SAMPLE_RATE_HZ // 1_000_000
        if due > output.emitted_samples and not self.finished:
            self.underruns += 1
            self.first_audio_us = now_us - output.emitted_samples * 1_000_000 // SAMPLE_RATE_HZ
        output.grant(max(0, min(due, output.emitted_samples) - output.taken_samples))

    def candidate(self, now_us: int) -> Candidate | None:
        if self.arrives_us > now_us or self.finished:
            return None
        output = self.output
        if self.paced and output.emitted_samples - output.taken_samples >= WINDOW_SAMPLES:
            return None
        if self._waiting_since_us is None:
            self._waiting_since_us = max(self.arrives_us, self._served_us or 0)
        started = output.emitted_samples > 0
        return Candidate(output.key, output.lead_at_samples(now_us), self._waiting_since_us, started, self.paced)

    def serve(self, now_us: int) -> int:
        """Run one step; return its end time."""
        waited_from_us = self.arrives_us if self._served_us is None else self._served_us
        self.longest_wait_us = max(self.longest_wait_us, now_us - waited_from_us)
        self._steps += 1
        self._served_us = now_us + self.step_us
        self.busy_us += self.step_us
        if self._steps >= self.first_steps:
            samples = self.chunk_ms * SAMPLE_RATE_HZ // 1000
            self.output.rendered_samples += samples  # the scheduler reads nothing else
            self.output.emitted_samples += samples
            self.chunks_made += 1
            self._waiting_since_us = None
            if self.first_audio_us is None:
                self.first_audio_us = self._served_us
                self.started_us = self._served_us
        return self._served_us


def run(streams: Sequence[Stream], until_us: int) -> Sequence[Stream]:
    """Schedule ``streams`` until ``until_us``, or until all have ended."""
    scheduler = Scheduler()
    now_us = 0
    by_key = {stream.output.key: stream for stream in streams}
    while now_us < until_us and not all(stream.finished for stream in streams):
        for stream in streams:
            stream.play(now_us)
        candidates = [found for stream in streams if (found := stream.candidate(now_us)) is not None]
        batch = scheduler.schedule(candidates, Budgets(), now_us).audio
        now_us = by_key[batch.members[0]].serve(now_us) if batch is not None else now_us + 1_000
    return streams
