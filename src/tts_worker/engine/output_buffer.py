"""Per-utterance output buffer with credit accounting.

An engine *renders* audio of any length into the buffer. The buffer *emits* it in chunks within the credit, numbers the
chunks and attaches each word to the chunk in which it begins. Pure: no clock, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Audio, ChunkMeta, Skipped, UtteranceKey, WordTiming


@dataclass(slots=True)
class _RenderedAudio:
    """Rendered audio that is not fully emitted yet. The first ``offset`` samples are already emitted."""

    pcm: bytes
    text_start: int
    text_end: int
    wall_ms: float
    stages_ms: tuple[tuple[str, float], ...]
    details: tuple[tuple[str, float], ...]
    offset: int = 0

    @property
    def remaining_samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE - self.offset


class OutputBuffer:
    """Generated audio of one utterance, waiting for credit.

    Attributes:
        key: The utterance.
        paced: Whether this is a call; False for a download.
        buffered: Whether the client of a call takes audio at once and plays it from its own buffer.
        credit_samples: How many samples may be emitted now.
        rendered_samples: Samples rendered so far.
        emitted_samples: Samples emitted so far, at most ``rendered_samples``.
        taken_samples: Samples that the client took so far, at most ``emitted_samples``.
    """

    def __init__(self, key: UtteranceKey, credit_samples: int, *, paced: bool = True, buffered: bool = False) -> None:
        self.key = key
        self.paced = paced
        self.buffered = buffered
        self.credit_samples = credit_samples
        self.rendered_samples = 0
        self.emitted_samples = 0
        self.taken_samples = 0
        self._playhead_samples = 0
        self._playhead_at_us: int | None = None  # when the playhead was computed; None: nothing to play yet
        self._next_chunk_index = 0
        self._rendered: deque[_RenderedAudio] = deque()
        self._skipped: list[Skipped] = []
        self._words: deque[tuple[int, WordTiming]] = deque()  # with the sample whose chunk carries the word

    @property
    def in_transit_samples(self) -> int:
        """Samples emitted and not yet taken by the client."""
        return self.emitted_samples - self.taken_samples

    @property
    def lead_samples(self) -> int:
        """Samples rendered and not yet taken by the client."""
        return self.rendered_samples - self.taken_samples

    def lead_at_samples(self, now_us: int) -> int:
        """Return the lead over playback at ``now_us``, a clock that never goes back.

        A download and a client that buffers take audio long before it is played. Their lead is measured against a
        virtual playhead that starts with the first chunk, moves at the sample rate and stops where there is nothing to
        play. A client that takes audio later than that (a paused one) determines the lead itself.
        """
        if self.paced and not self.buffered:
            return self.lead_samples
        if self._playhead_at_us is not None:
            elapsed_samples = (now_us - self._playhead_at_us) * SAMPLE_RATE_HZ // 1_000_000
            self._playhead_samples = min(self.rendered_samples, self._playhead_samples + elapsed_samples)
        self._playhead_at_us = now_us if self.emitted_samples else None
        return self.rendered_samples - min(self._playhead_samples, self.taken_samples)

    @property
    def waiting_samples(self) -> int:
        """Samples rendered and not yet emitted."""
        return self.rendered_samples - self.emitted_samples

    def has_chunk(self, min_samples: int) -> bool:
        """Whether a chunk can be emitted that is worth it: small ones wait while audio is on its way to the client.

        Args:
            min_samples: A chunk is small if it has fewer and does not empty the buffer.
        """
        if self.credit_samples <= 0 or not self._rendered:
            return False
        return self.in_transit_samples < min_samples or self.credit_samples >= min(self.waiting_samples, min_samples)

    def grant(self, samples: int) -> None:
        """Return the credit of ``samples`` that the client took."""
        self.credit_samples += samples
        self.taken_samples += samples

    def render(
        self,
        pcm: bytes,
        words: Iterable[WordTiming] = (),
        *,
        text_range: tuple[int, int] = (0, 0),
        wall_ms: float = 0.0,
        stages_ms: tuple[tuple[str, float], ...] = (),
        details: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Append audio.

        Args:
            pcm: Samples as s16le.
            words: The words that begin in ``pcm`` or later, in order, timed in samples of the utterance. A word at the
                end of ``pcm`` may have no audio.
            text_range: The characters of the text that ``pcm`` speaks.
            wall_ms: Time spent on rendering.
            stages_ms: Names of the stages and the time spent in each.
            details: Figures for the log, of each chunk in which ``pcm`` is emitted.
        """
        if pcm:
            self._rendered.append(_RenderedAudio(pcm, text_range[0], text_range[1], wall_ms, stages_ms, details))
            self.rendered_samples += len(pcm) // BYTES_PER_SAMPLE
        for word in words:
            is_at_end = word.start_sample == self.rendered_samples  # and perhaps no audio follows
            self._words.append((word.start_sample - is_at_end, word))

    def skip(self, run: Skipped) -> None:
        """Note a word that is not spoken, before the audio of the next one is rendered."""
        self._skipped.append(run)

    def take_skipped(self) -> tuple[Skipped, ...]:
        """Return the words that are not spoken and that no chunk has carried."""
        skipped = tuple(self._skipped)
        self._skipped.clear()
        return skipped

    def emit(self, max_samples: int, *, last: bool = False) -> Audio | None:
        """Return the next chunk, or ``None`` without audio or credit.

        A chunk has at most ``max_samples``, stays within the credit and never spans two ``render`` calls. It carries
        the words that begin before its end, or at its end if that is the end of the audio with which they were
        rendered. With ``last``, the chunk that empties the buffer carries all remaining words. A chunk carries all
        words that are known to be skipped.
        """
        if self.credit_samples <= 0 or not self._rendered:
            return None
        rendered = self._rendered[0]
        samples = min(max_samples, self.credit_samples, rendered.remaining_samples)
        start = rendered.offset * BYTES_PER_SAMPLE
        end = (rendered.offset + samples) * BYTES_PER_SAMPLE
        pcm = rendered.pcm[start:end]
        # The cost of one `render` call is reported once, with its first chunk.
        is_first = rendered.offset == 0
        meta = ChunkMeta(
            index=self._next_chunk_index,
            text_start=rendered.text_start,
            text_end=rendered.text_end,
            start_sample=self.emitted_samples,
            wall_ms=rendered.wall_ms if is_first else 0.0,
            stages_ms=rendered.stages_ms if is_first else (),
            details=rendered.details,
        )
        rendered.offset += samples
        if rendered.remaining_samples == 0:
            self._rendered.popleft()
        self.emitted_samples += samples
        self.credit_samples -= samples
        self._next_chunk_index += 1
        takes_all = last and not self._rendered
        words: list[WordTiming] = []
        while self._words and (takes_all or self._words[0][0] < self.emitted_samples):
            words.append(self._words.popleft()[1])
        return Audio(self.key, pcm, meta, tuple(words), self.take_skipped())
