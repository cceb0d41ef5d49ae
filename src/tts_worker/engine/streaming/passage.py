"""One unbroken stretch of sound, from a sentence's beginning to its end: tokens in, chunks that are due out.

Owns the order of tokens, what counts as silence, the chunk plan, the words and where a broken run may be cut. All of it
follows from the tokens alone. It must not know how tokens come about, what they sound like, or time.
"""

from __future__ import annotations

from bisect import bisect_right

from tts_worker.engine.cosyvoice.chunks import Chunk, GridPlan
from tts_worker.engine.cosyvoice.compat import SilenceFilter
from tts_worker.engine.cosyvoice.dims import FlowDims
from tts_worker.engine.streaming.alignment import WordClock
from tts_worker.engine.streaming.render import SoundStream, Stretch
from tts_worker.types import Segment, WordTiming


class Passage:
    """``closed``: no further run of the language model comes; ``ended``: and the last one is over."""

    def __init__(
        self,
        stream: SoundStream,
        flow: FlowDims,
        silence: SilenceFilter,
        *,
        pace: float,
        speed: float,
        frame_samples: int,
        stride: int = 1,
    ) -> None:
        self.stream = stream
        self.tokens = stream.tokens
        self.clock = WordClock(pace)
        self.closed = self.ended = self.finished = False
        self.base_sample: int | None = None  # of the utterance, once its first sound is there
        self._speed = speed
        self._frame_samples = frame_samples
        self._flow = flow
        self._silence = silence
        prompt = len(stream.voice.prompt)
        self._plan = GridPlan(prompt, flow.chunk_tokens, flow.lookahead_tokens, stride)
        self._due: Chunk | None = None
        self.rendered_tokens = 0
        self._segments: list[tuple[int, int]] = []
        self._range = (0, 0)

    # -- tokens -------------------------------------------------------------------------------------------------------

    def add(self, token: int) -> None:
        """A drawn speech id; silence beyond the limit is dropped."""
        if self._silence.accepts(token):
            self.tokens.append(token)

    @property
    def waiting_tokens(self) -> int:
        """Made and not yet turned into sound."""
        return len(self.tokens) - self.rendered_tokens

    @property
    def missing_tokens(self) -> int:
        """How many more until the first chunk is due."""
        return self._plan.hop(0) + self._flow.lookahead_tokens - len(self.tokens)

    @property
    def missing_after_due(self) -> int:
        """Waiting tokens from which on the chunk after the one that is due is due as well."""
        end = self.rendered_tokens if self._due is None else self._due.end
        return end - self.rendered_tokens + self._plan.hop(end) + self._flow.lookahead_tokens

    @property
    def due(self) -> Chunk | None:
        """The chunk that can become sound now."""
        if self._due is None and not self.finished:
            self._due = self._plan.next(len(self.tokens), self.ended)
        return self._due

    def done(self, chunk: Chunk) -> None:
        """``chunk`` became sound, or holds nothing."""
        self._due = None
        self.rendered_tokens = chunk.end
        self.finished = chunk.final

    def used_tokens(self) -> int:
        """Tokens that may have become sound by now or shaped it, whether or not they have: a matter of count, not of
        time."""
        settled = self._plan.settled(len(self.tokens))
        return settled + self._flow.lookahead_tokens if settled else 0

    def cut(self, keep: int) -> None:
        """Forget tokens after the first ``keep``; what may have been heard stays, and what it looked ahead to."""
        del self.tokens[max(keep, self.used_tokens()) :]

    def rewind(self, start: int) -> None:
        """A run that began at token ``start`` is drawn again."""
        del self.tokens[start:]
        self.clock.restart()

    # -- text ---------------------------------------------------------------------------------------------------------

    def covers(self, segment: Segment) -> None:
        """The passage speaks ``segment``."""
        self._segments.append((segment.start, segment.end))
        if len(self._segments) == 1:
            self._range = (segment.start, segment.end)

    def words(self, chunk: Chunk) -> list[WordTiming]:
        """The words that begin in ``chunk``, in samples of the utterance. Moves ``text_range`` on."""
        placed = self.clock.take(chunk.end, chunk.known, chunk.final)
        if placed:
            at = bisect_right(self._segments, placed[-1].start_char, key=lambda span: span[0]) - 1
            self._range = self._segments[max(at, 0)]
        assert self.base_sample is not None
        least = self._sample(chunk.begin)
        out = []
        for word in placed:
            start = max(least, self._sample(word.start))
            least = max(start, min(self._sample(word.end), self._sample(chunk.end)))
            out.append(WordTiming(word.start_char, word.end_char, start, least))
        return out

    @property
    def text_range(self) -> tuple[int, int]:
        """Original characters of the segment that the last chunk ends in."""
        return self._range

    def _sample(self, token: float) -> int:
        assert self.base_sample is not None
        frames = token * self._flow.frames_per_token
        if self._speed != 1.0:  # whole frames only, so that no word ends after the sound does
            frames = Stretch.frames(int(frames), self._speed)
        return self.base_sample + int(frames * self._frame_samples)
