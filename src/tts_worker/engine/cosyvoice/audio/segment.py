"""Continuous audio between two sentence ends: speech tokens in, due chunks out.

Holds the tokens, the silence filter, the chunk plan and the words. Everything follows from the tokens alone, never
from time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from tts_worker.audio.pcm import to_float, to_pcm
from tts_worker.audio.resampler import Resampler
from tts_worker.engine.cosyvoice.audio.chunks import Chunk, GridPlan, RenderProgress
from tts_worker.engine.cosyvoice.audio.prosody import Prosody
from tts_worker.engine.cosyvoice.audio.renderer import RenderState, chunk_pages
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.tokens.alignment import AlignedWord, WordAligner
from tts_worker.engine.cosyvoice.tokens.guard import SILENT_TOKENS, SilenceFilter
from tts_worker.types import BYTES_PER_SAMPLE, NEUTRAL, SAMPLE_RATE_HZ, Expression, Segment, WordTiming

_SOURCE_FILTER_DB_PER_SEMITONE = 0.6
"""How much louder a vocoder that filters its excitation makes another pitch, for which it has no gains. Measured."""


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
        speed: Speaking rate of the utterance.

    Attributes:
        state: Render state: voice and network caches.
        tokens: Speech tokens so far.
        aligner: Estimates word positions.
        base_sample: First sample of the segment in the utterance, once its first audio is rendered.
        prosody: How its frames are spoken, as far as chunks are planned.
        rendered_frames: Mel frames that are rendered.
        text_range: Original characters of the text segment in which the last chunk ends.
    """

    def __init__(
        self, state: RenderState, config: CosyVoiceConfig, *, pace: float, stride: int = 1, speed: float = 1.0
    ) -> None:
        flow = config.flow
        prompt_tokens = 0 if flow.has_independent_chunks else len(state.voice.prompt)
        super().__init__(GridPlan(prompt_tokens, flow.chunk_tokens, flow.lookahead_tokens, stride))
        self.state = state
        self.tokens: list[int] = []
        self.aligner = WordAligner(pace, config.token_rate_hz)
        self.base_sample: int | None = None
        self.rendered_frames = 0
        self.text_range = (0, 0)
        self.prosody = Prosody.steady(speed, config.sample_rate_hz / config.hift.frame_samples)
        self._vocoder_frame_samples = config.hift.frame_samples
        self._vocoded_samples = 0  # at the rate of the vocoder
        self._db_per_semitone = _SOURCE_FILTER_DB_PER_SEMITONE if config.hift.source_filter else 0.0
        self._frame_samples = config.hift.frame_samples * SAMPLE_RATE_HZ / config.sample_rate_hz
        self._resampler = Resampler(config.sample_rate_hz, SAMPLE_RATE_HZ)
        self._flow = flow
        self._silence = SilenceFilter(SILENT_TOKENS[config.family])
        self._segments: list[Segment] = []
        self._planned_words: dict[int, list[AlignedWord]] = {}  # by the begin of the chunk, until they are taken

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
        self._segments.append(segment)
        if len(self._segments) == 1:
            self.text_range = (segment.start, segment.end)

    def plan(self, chunk: Chunk, outer: Expression = NEUTRAL) -> None:
        """Find the words that begin in ``chunk``, and how its frames are spoken. Has no effect the second time.

        Args:
            chunk: The next chunk, or one that is rendered again.
            outer: The expression of the session.
        """
        if chunk.begin in self._planned_words:
            return
        words = self.aligner.take_words(chunk.end, chunk.known, chunk.final)
        self._planned_words[chunk.begin] = words
        for word in words:
            expression = self._segment_of(word).expression_at(word.start_char).within(outer)
            louder_db = self._db_per_semitone * abs(expression.pitch_semitones)
            expression = expression._replace(volume_db=expression.volume_db - louder_db)
            self.prosody = self.prosody.changed(int(self._flow.frame_of(word.start)), expression)

    def _segment_of(self, word: AlignedWord) -> Segment:
        index = bisect_right(self._segments, word.start_char, key=lambda segment: segment.start) - 1
        return self._segments[max(index, 0)]

    def take_words(self, chunk: Chunk) -> list[WordTiming]:
        """Return the words that begin in ``chunk``, in samples of the utterance, and update ``text_range``.

        A chunk without a plan was rendered as the voice speaks it.
        """
        self.plan(chunk)
        aligned = self._planned_words.pop(chunk.begin)
        if aligned:
            last = self._segment_of(aligned[-1])
            self.text_range = (last.start, last.end)
        previous_end = self._sample(chunk.begin)
        words = []
        for word in aligned:
            start = max(previous_end, self._sample(word.start))
            previous_end = max(start, min(self._sample(word.end), self._sample(chunk.end)))
            words.append(WordTiming(word.start_char, word.end_char, start, previous_end))
        return words

    def finish(self, pcm: bytes, *, final: bool) -> bytes:
        """Return the next samples of the vocoder with their level, at the rate of the worker."""
        if self.prosody.changes("volume_db"):
            samples = to_float(pcm)
            pcm = to_pcm(samples * self.prosody.gains(self._vocoded_samples, len(samples), self._vocoder_frame_samples))
        self._vocoded_samples += len(pcm) // BYTES_PER_SAMPLE
        resampled = self._resampler.process(pcm)
        return resampled + self._resampler.flush() if final else resampled

    def _sample(self, token: float) -> int:
        assert self.base_sample is not None
        frames = self._flow.frame_of(token)
        if self.prosody.changes_pace:
            frames = int(self.prosody.output_frames(int(frames)))
        elif self._flow.has_independent_chunks:  # they have whole frames, and no word may outlast them
            frames = int(frames)
        return self.base_sample + int(frames * self._frame_samples)
