"""One utterance as the session sees it: its text, the sound that waits to be taken, its words, its receipt.

Pure book-keeping over integers and bytes. It does not know the session's state, the engine or the client; whether a
frame may leave is the machine's decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tts_worker.errors import ErrorInfo
from tts_worker.text.spoken_words import split_spoken
from tts_worker.types import (
    BYTES_PER_SAMPLE,
    Alignment,
    Audio,
    ChunkMeta,
    Outcome,
    PcmFrame,
    Receipt,
    Segment,
    SynthesisParams,
    UtteranceKey,
    Word,
    Words,
    WordTiming,
)


class TextSource(Protocol):
    """What a session needs of a text pipeline (``tts_worker.text.pipeline.TextPipeline``)."""

    @property
    def source(self) -> str: ...
    def feed(self, delta: str | bytes) -> Sequence[Segment]: ...
    def flush(self) -> Sequence[Segment]: ...
    def flush_words(self) -> Sequence[Segment]: ...
    def end(self) -> Sequence[Segment]: ...
    def skip(self, delta: str | bytes) -> None: ...


class _TextMark(Enum):
    """What stands between pieces of text that wait to be read."""

    FLUSH = "flush"
    FLUSH_WORDS = "flush_words"
    END = "end"


@dataclass(slots=True)
class _Chunk:
    pcm: bytes
    meta: ChunkMeta
    offset: int = 0  # bytes already handed out


class Utterance:
    """Fields ending in ``_samples`` count from the start of the utterance; see ``types`` for generated, sent, played.

    ``opened``: the engine knows it; ``generated``: the engine is done with it; ``text_ended``: no more text is taken;
    ``text_read``: all of it went through the text pipeline. Text is read in portions, because a long one takes long.
    """

    def __init__(self, key: UtteranceKey, params: SynthesisParams, text: TextSource) -> None:
        self.key = key
        self.params = params
        self.text_chars = 0
        self.text_ended = False
        self.text_read = False
        self._text = text
        self._unread: deque[str | bytes | _TextMark] = deque()
        self.segments = 0
        self.pending_segments: list[Segment] = []  # made before the engine knew the utterance
        self.is_announced = False
        self.is_opened = False
        self.is_generated = False
        self.truncated: str | None = None
        self.error: ErrorInfo | None = None
        self.granted_samples = 0
        self.generated_samples = 0
        self.sent_samples = 0
        self.uncredited_samples = 0  # sent, but the credit for it was not returned yet
        self.played_samples: int | None = None
        self._voiced_chars = 0
        self._frames = 0
        self._chunks: deque[_Chunk] = deque()
        self._words: list[WordTiming] = []
        self._words_announced = 0

    # -- text ---------------------------------------------------------------------------------------------------------

    @property
    def unread(self) -> bool:
        return bool(self._unread)

    def write(self, text: str | bytes) -> None:
        """Take text; ``read`` turns it into segments."""
        self.text_chars += len(text)
        self._unread.append(text)

    def flush(self) -> None:
        self._unread.append(_TextMark.FLUSH)

    def flush_words(self) -> None:
        self._unread.append(_TextMark.FLUSH_WORDS)

    def end_text(self) -> None:
        self.text_ended = True
        self._unread.append(_TextMark.END)

    def read(self, max_chars: int) -> list[Segment]:
        """The segments in the next ``max_chars`` characters. Where the text is cut makes no difference to them."""
        segments: list[Segment] = []
        while self._unread and max_chars > 0:
            piece = self._unread.popleft()
            if piece is _TextMark.FLUSH:
                segments += self._text.flush()
            elif piece is _TextMark.FLUSH_WORDS:
                segments += self._text.flush_words()
            elif piece is _TextMark.END:
                segments += self._text.end()
                self.text_read = True
            elif isinstance(piece, str | bytes):
                if len(piece) > max_chars:
                    self._unread.appendleft(piece[max_chars:])
                    piece = piece[:max_chars]
                max_chars -= len(piece)
                segments += self._text.feed(piece)
        self.segments += len(segments)
        return segments

    def abandon_text(self) -> None:
        """It will not be spoken to its end. What was not read yet still counts as text that came in."""
        self.text_ended = True
        if not self.text_read:
            for piece in self._unread:
                if isinstance(piece, str | bytes):
                    self._text.skip(piece)
            self._text.end()  # half a character may be pending
            self.text_read = True
        self._unread.clear()

    # -- sound --------------------------------------------------------------------------------------------------------

    @property
    def buffered_samples(self) -> int:
        return sum((len(chunk.pcm) - chunk.offset) // BYTES_PER_SAMPLE for chunk in self._chunks)

    @property
    def is_drained(self) -> bool:
        """All sound there is was taken."""
        return not self._chunks

    @property
    def unspoken_chars(self) -> int:
        """Text that came in and that no sound is there for yet."""
        return max(0, self.text_chars - self._voiced_chars)

    def add(self, event: Audio) -> None:
        """Take sound and word times from the engine."""
        self.generated_samples += event.samples
        self._voiced_chars = max(self._voiced_chars, event.meta.text_end)
        self._words.extend(event.words)
        if event.pcm:
            self._chunks.append(_Chunk(event.pcm, event.meta))

    def drop_audio(self) -> None:
        """Forget what was not taken yet."""
        self._chunks.clear()

    def next_frame_samples(self, frame_samples: int | None) -> int:
        """Size of the frame that could be taken now, 0 if there is none. Only the last frame is ever short."""
        if not self._chunks:
            return 0
        if frame_samples is None:
            chunk = self._chunks[0]
            return (len(chunk.pcm) - chunk.offset) // BYTES_PER_SAMPLE
        waiting = self.generated_samples - self.sent_samples
        if waiting < frame_samples and not self.is_generated:
            return 0
        return min(frame_samples, waiting)

    def take_frame(self, samples: int) -> PcmFrame:
        """Hand out the next ``samples`` samples, which must be there, with the origin of the first of them."""
        size = samples * BYTES_PER_SAMPLE
        meta = self._chunks[0].meta
        parts: list[bytes] = []
        while size:
            chunk = self._chunks[0]
            part = chunk.pcm[chunk.offset : chunk.offset + size]
            parts.append(part)
            size -= len(part)
            chunk.offset += len(part)
            if chunk.offset == len(chunk.pcm):
                self._chunks.popleft()
        frame = PcmFrame(self.key, self._frames, self.sent_samples, b"".join(parts), meta)
        self._frames += 1
        self.sent_samples += samples
        self.uncredited_samples += samples
        return frame

    def take_words(self, before_sample: int | None = None) -> Words | None:
        """Word times not is_announced yet that begin before ``before_sample`` (None: all), None if there are none."""
        first = last = self._words_announced
        while last < len(self._words) and (before_sample is None or self._words[last].start_sample < before_sample):
            last += 1
        if first == last:
            return None
        self._words_announced = last
        source = self._text.source
        return Words(self.key, tuple(_word(source, timing) for timing in self._words[first:last]))

    def played(self, samples: int) -> None:
        """The client's word on what was heard: never shrinks, never exceeds what was sent."""
        self.played_samples = max(self.played_samples or 0, min(max(samples, 0), self.sent_samples))

    def receipt(self, reason: str, outcome: Outcome, alignment: Alignment) -> Receipt:
        """Cut the text where the sound was cut: by what was played if the client said so, else by what was sent."""
        source = self._text.source
        heard = self.sent_samples if self.played_samples is None else self.played_samples
        complete = self.is_generated and self.text_ended and self.error is None and self.truncated is None
        heard_all = outcome is Outcome.DONE or (complete and heard == self.generated_samples)
        cut = split_spoken(source, self._words, heard, fully_played=heard_all)
        return Receipt(
            reason=reason,
            samples_generated=self.generated_samples,
            samples_sent=self.sent_samples,
            samples_played=self.played_samples,
            text_spoken=source[:cut],
            text_remaining=source[cut:],
            words=tuple(_word(source, timing) for timing in self._words if timing.end_char <= cut),
            alignment=alignment,
        )


def _word(source: str, timing: WordTiming) -> Word:
    text = source[timing.start_char : timing.end_char]
    return Word(text, timing.start_char, timing.end_char, timing.start_sample, timing.end_sample)
