"""Continuous audio between two sentence ends: speech tokens in, due chunks out.

Holds the tokens, the silence filter, the chunk plan and the words. Everything follows from the tokens alone, never
from time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from tts_worker.audio.resampler import Resampler
from tts_worker.engine.cosyvoice.audio.chunks import Chunk, GridPlan, RenderProgress
from tts_worker.engine.cosyvoice.audio.renderer import MelResampler, RenderState, chunk_pages
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.tokens.alignment import WordAligner
from tts_worker.engine.cosyvoice.tokens.guard import SILENT_TOKENS, SilenceFilter
from tts_worker.types import SAMPLE_RATE_HZ, Segment, WordTiming


@dataclass(frozen=True, slots=True)
class MelFigures:
    """Number of mel frames of a chunk, and the range of their values if it is to be logged."""

    frames: int
    value_range: tuple[float, float] | None = None


class AudioSegment(RenderProgress):
    """Tokens, chunks and words of one audio segment.

    Args:
        state: Render state of a segment that has not begun.
        config: Configuration of the model.
        pace: Speech tokens per unit of text weight.
        stride: Most chunks of the mask that are rendered at a time.

    Attributes:
        state: Render state: voice, pace and network caches.
        tokens: Speech tokens so far.
        aligner: Estimates word positions.
        base_sample: First sample of the segment in the utterance, once its first audio is rendered.
        rendered_frames: Mel frames that are rendered.
        text_range: Original characters of the text segment in which the last chunk ends.
    """

    def __init__(self, state: RenderState, config: CosyVoiceConfig, *, pace: float, stride: int = 1) -> None:
        flow = config.flow
        prompt_tokens = 0 if flow.has_independent_chunks else len(state.voice.prompt)
        super().__init__(GridPlan(prompt_tokens, flow.chunk_tokens, flow.lookahead_tokens, stride))
        self.state = state
        self.tokens: list[int] = []
        self.aligner = WordAligner(pace, config.token_rate_hz)
        self.base_sample: int | None = None
        self.rendered_frames = 0
        self.text_range = (0, 0)
        self._speed = 1.0 if state.resampler is None else state.resampler.speed
        self._frame_samples = config.hift.frame_samples * SAMPLE_RATE_HZ / config.sample_rate_hz
        self._resampler = Resampler(config.sample_rate_hz, SAMPLE_RATE_HZ)
        self._flow = flow
        self._silence = SilenceFilter(SILENT_TOKENS[config.family])
        self._text_ranges: list[tuple[int, int]] = []

    # -- tokens -------------------------------------------------------------------------------------------------------

    @property
    def token_count(self) -> int:
        return len(self.tokens)

    def add(self, token: int) -> None:
        """Append a drawn speech id, unless it exceeds the limit of silence."""
        if self._silence.accepts(token):
            self.tokens.append(token)

    def count_frames(self, chunk: Chunk, mel: MelFigures) -> tuple[tuple[str, float], ...]:
        """Count the frames of ``chunk``, and return what the log has of it, by name."""
        start = self.rendered_frames
        self.rendered_frames += mel.frames
        details = [("token_start", chunk.begin), ("token_end", chunk.end)]
        details += [("mel_start", start), ("mel_end", self.rendered_frames)]
        if mel.value_range is None:
            return tuple(details)
        return (*details, ("mel_min", mel.value_range[0]), ("mel_max", mel.value_range[1]))

    def committed_tokens(self) -> int:
        """Return the number of tokens that may affect rendered audio.

        It depends on the token count, not on what is rendered by now.
        """
        settled = self._plan.settled(len(self.tokens))
        return settled + self._flow.lookahead_tokens if settled else 0

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens, and all committed ones."""
        del self.tokens[max(length, self.committed_tokens()) :]

    def rewind(self, start: int) -> None:
        """Remove the tokens of a run that started at ``start`` and will be drawn again."""
        del self.tokens[start:]
        self.aligner.restart_run()

    # -- pages --------------------------------------------------------------------------------------------------------

    @property
    def next_pages(self) -> int:
        """Pages of the flow cache that the due chunk takes."""
        if self.due_chunk is None or self._flow.has_independent_chunks:
            return 0
        return chunk_pages(self.state, self.due_chunk, self._flow.chunk_tokens)

    @property
    def pages_ahead(self) -> int:
        """Estimated pages that the segment will still take."""
        if self._flow.has_independent_chunks:
            return 0
        tokens = max(self.aligner.expected_tokens, len(self.tokens)) - self.rendered_tokens
        return max(0, -(-math.ceil(tokens) // self._flow.chunk_tokens))

    # -- text ---------------------------------------------------------------------------------------------------------

    def add_text(self, segment: Segment) -> None:
        """Add a text segment that this audio segment speaks."""
        self._text_ranges.append((segment.start, segment.end))
        if len(self._text_ranges) == 1:
            self.text_range = (segment.start, segment.end)

    def take_words(self, chunk: Chunk) -> list[WordTiming]:
        """Return the words that begin in ``chunk``, in samples of the utterance, and update ``text_range``."""
        aligned = self.aligner.take_words(chunk.end, chunk.known, chunk.final)
        if aligned:
            index = bisect_right(self._text_ranges, aligned[-1].start_char, key=lambda span: span[0]) - 1
            self.text_range = self._text_ranges[max(index, 0)]
        previous_end = self._sample(chunk.begin)
        words = []
        for word in aligned:
            start = max(previous_end, self._sample(word.start))
            previous_end = max(start, min(self._sample(word.end), self._sample(chunk.end)))
            words.append(WordTiming(word.start_char, word.end_char, start, previous_end))
        return words

    def resample(self, pcm: bytes, *, final: bool) -> bytes:
        """Return the next samples of the vocoder at the rate of the worker."""
        resampled = self._resampler.process(pcm)
        return resampled + self._resampler.flush() if final else resampled

    def _sample(self, token: float) -> int:
        assert self.base_sample is not None
        frames = self._flow.frame_of(token)
        if self._speed != 1.0:
            frames = MelResampler.output_frames(int(frames), self._speed)
        elif self._flow.has_independent_chunks:  # they have whole frames, and no word may outlast them
            frames = int(frames)
        return self.base_sample + int(frames * self._frame_samples)
