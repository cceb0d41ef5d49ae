"""State of one utterance: pending text, buffered audio, word timestamps and the playback report."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile
from typing import Protocol

from tts_worker.errors import ErrorInfo
from tts_worker.text.spoken_words import cut_at
from tts_worker.types import (
    BYTES_PER_SAMPLE,
    Alignment,
    Audio,
    ChunkMeta,
    Outcome,
    PcmFrame,
    Receipt,
    Segment,
    Skipped,
    Speech,
    SynthesisParams,
    Text,
    UtteranceKey,
    Word,
    Words,
    WordTiming,
)


class TextSource(Protocol):
    """The part of ``text.pipeline.TextPipeline`` that a session uses."""

    @property
    def source(self) -> str: ...
    def feed(self, delta: str | bytes) -> Sequence[Segment]: ...
    def flush(self) -> Sequence[Segment]: ...
    def flush_words(self) -> Sequence[Segment]: ...
    def end(self) -> Sequence[Segment]: ...
    def abandon(self, rest: Iterable[str | bytes]) -> None: ...


class AudioOutput(Protocol):
    """The part of ``audio.output.OutputStage`` that a session uses."""

    def process(self, pcm: bytes) -> bytes: ...
    def flush(self) -> bytes: ...
    def encode(self, pcm: bytes) -> bytes: ...
    def from_engine(self, samples: int) -> int: ...
    def to_engine(self, samples: int) -> int: ...


class _TextMark(Enum):
    """A marker between unread text deltas."""

    FLUSH = "flush"
    FLUSH_WORDS = "flush_words"
    END = "end"


class TextPhase(Enum):
    """How far the text of an utterance is: UNROUTED -> OPEN -> ENDED -> READ, or READ at once if it is abandoned."""

    UNROUTED = "more may follow, and none of it is read: it does not tell yet which voice speaks it"
    OPEN = "more may follow"
    ENDED = "complete, but not fully read: long text is read in portions"
    READ = "all of it has passed through the text pipeline, or is abandoned"


class AudioPhase(Enum):
    """What the engine has of an utterance: QUEUED -> OPENED -> GENERATED, or QUEUED -> GENERATED without speech."""

    QUEUED = "nothing: earlier utterances are generated first"
    OPENED = "it has received ``Open`` and may send audio"
    GENERATED = "it sends no more audio"


@dataclass(slots=True)
class _Chunk:
    pcm: bytes
    meta: ChunkMeta
    offset: int = 0  # bytes already sent


class Utterance:
    """One utterance. Sample counts start at its beginning; see ``types`` for generated, sent and played.

    Counts are at the session's rate, except those whose names say that they are the engine's.

    Args:
        key: Identifies it.
        params: Its parameters.
        text: Its text pipeline.
        output: Converts its audio; None sends that of the engine.
        alignment: How its engine determines word timestamps.

    Attributes:
        text_phase: How far its text is.
        audio_phase: What the engine has of it.
        posted_chars: Text that has become segments.
        is_announced: ``Started`` was emitted.
        pending_commands: Text and speech received before the utterance was opened on the engine.
        granted_engine_samples: Credit given to the engine so far.
        engine_samples: Samples received from the engine.
        uncredited_engine_samples: Sent samples for which no credit was returned yet, at the engine's rate.
    """

    def __init__(
        self,
        key: UtteranceKey,
        params: SynthesisParams,
        text: TextSource,
        output: AudioOutput | None = None,
        alignment: Alignment = Alignment.NONE,
    ) -> None:
        self.key = key
        self.params = params
        self.text_chars = 0
        self.text_phase = TextPhase.OPEN
        self.audio_phase = AudioPhase.QUEUED
        self._text = text
        self._output = output
        self._alignment = alignment
        self._unread: deque[str | bytes | _TextMark] = deque()
        self.segments = 0
        self.posted_chars = 0
        self.pending_commands: list[Text | Speech] = []
        self.is_announced = False
        self.truncated: str | None = None
        self.error: ErrorInfo | None = None
        self.granted_engine_samples = 0
        self.engine_samples = 0
        self.generated_samples = 0
        self.sent_samples = 0
        self.uncredited_engine_samples = 0
        self.played_samples: int | None = None
        self._voiced_chars = 0
        self._frames = 0
        self._chunks: deque[_Chunk] = deque()
        self._last_meta: ChunkMeta | None = None
        self._words: list[WordTiming] = []
        self._words_announced = 0
        self._skipped: list[Skipped] = []
        self._skipped_announced = 0

    # -- text ---------------------------------------------------------------------------------------------------------

    @property
    def text_ended(self) -> bool:
        """Whether no more text is accepted."""
        return self.text_phase is TextPhase.ENDED or self.text_phase is TextPhase.READ

    @property
    def text_read(self) -> bool:
        """Whether all text has passed through the text pipeline."""
        return self.text_phase is TextPhase.READ

    @property
    def unread(self) -> bool:
        """Whether ``read`` has something to do."""
        return bool(self._unread) and self.text_phase is not TextPhase.UNROUTED

    @property
    def unread_text(self) -> str:
        """The text that was not read, without characters of which a part is missing."""
        parts = (item for item in self._unread if isinstance(item, str | bytes))
        encoded = (part.encode(errors="surrogatepass") if isinstance(part, str) else part for part in parts)
        return b"".join(encoded).decode(errors="ignore")

    def change_voice(
        self, params: SynthesisParams, text: TextSource, output: AudioOutput | None, alignment: Alignment
    ) -> None:
        """Take another voice before any text is read; see the class for the arguments."""
        self.params = params
        self._text = text
        self._output = output
        self._alignment = alignment

    def write(self, text: str | bytes) -> None:
        """Append text; ``read`` turns it into segments."""
        self.text_chars += len(text)
        self._unread.append(text)

    def flush(self) -> None:
        self._unread.append(_TextMark.FLUSH)

    def flush_words(self) -> None:
        self._unread.append(_TextMark.FLUSH_WORDS)

    def end_text(self) -> None:
        self.text_phase = TextPhase.ENDED
        self._unread.append(_TextMark.END)

    def read(self, max_chars: int) -> list[Segment]:
        """Return the segments of the next ``max_chars`` characters; they do not depend on where the text is split."""
        segments: list[Segment] = []
        while self._unread and max_chars > 0:
            match item := self._unread.popleft():
                case _TextMark.FLUSH:
                    segments += self._text.flush()
                case _TextMark.FLUSH_WORDS:
                    segments += self._text.flush_words()
                case _TextMark.END:
                    segments += self._text.end()
                    self.text_phase = TextPhase.READ
                case str() | bytes():
                    if len(item) > max_chars:
                        self._unread.appendleft(item[max_chars:])
                    delta = item[:max_chars]
                    max_chars -= len(delta)
                    segments += self._text.feed(delta)
        self.segments += len(segments)
        if segments:
            self.posted_chars = segments[-1].end
        for segment in segments:
            for run in segment.skipped:
                self._skip(run)
        return segments

    def _skip(self, run: Skipped) -> None:
        """Record skipped text; with only spaces before it, it continues what was skipped for the same reason."""
        place = bisect_left(self._skipped, run)
        last = self._skipped[place - 1] if place else None
        if last is not None and last.reason == run.reason and not self._text.source[last.end : run.start].strip():
            self._skipped[place - 1] = replace(last, end=run.end)
        else:
            self._skipped.insert(place, run)

    @property
    def skipped_chars(self) -> int:
        """Length of the text that is known to be skipped."""
        return sum(run.end - run.start for run in self._skipped)

    def skip_words(self, words: Iterable[Skipped]) -> None:
        """Record words that the engine does not speak, without the marks around them."""
        source = self._text.source
        for word in words:
            text = source[word.start : word.end]
            letters = [place for place, char in enumerate(text, word.start) if char.isalnum()]
            if letters:
                self._skip(replace(word, start=letters[0], end=letters[-1] + 1))

    def abandon_text(self) -> None:
        """Stop reading text. Unread text still counts as source text of the playback report."""
        if not self.text_read:
            self._text.abandon(item for item in self._unread if isinstance(item, str | bytes))
            self.text_phase = TextPhase.READ
        self._unread.clear()

    # -- audio --------------------------------------------------------------------------------------------------------

    @property
    def is_generated(self) -> bool:
        """Whether the engine sends no more audio."""
        return self.audio_phase is AudioPhase.GENERATED

    @property
    def buffered_samples(self) -> int:
        return sum((len(chunk.pcm) - chunk.offset) // BYTES_PER_SAMPLE for chunk in self._chunks)

    @property
    def unsent_engine_samples(self) -> int:
        """Audio received from the engine and not sent, at the engine's rate."""
        sent = self.sent_samples if self._output is None else self._output.to_engine(self.sent_samples)
        return self.engine_samples - sent

    @property
    def is_drained(self) -> bool:
        """Whether all generated audio was sent."""
        return not self._chunks

    @property
    def unspoken_chars(self) -> int:
        """Accepted text without audio so far."""
        return max(0, self.text_chars - self._voiced_chars)

    @property
    def is_voiced(self) -> bool:
        """Whether there is audio of all text that has become segments."""
        return self._voiced_chars >= self.posted_chars

    def add(self, event: Audio) -> None:
        """Buffer audio and word timestamps of the engine."""
        self.engine_samples += event.samples
        self._voiced_chars = max(self._voiced_chars, event.meta.text_end)
        self.skip_words(event.skipped)
        output = self._output
        if output is None:
            self._words.extend(event.words)
            self._buffer(event.pcm, event.meta)
            return
        self._words.extend(
            replace(
                word,
                start_sample=output.from_engine(word.start_sample),
                end_sample=output.from_engine(word.end_sample),
            )
            for word in event.words
        )
        self._last_meta = replace(event.meta, start_sample=output.from_engine(event.meta.start_sample))
        self._buffer(output.process(event.pcm), self._last_meta)

    def _buffer(self, pcm: bytes, meta: ChunkMeta) -> None:
        if pcm:
            self.generated_samples += len(pcm) // BYTES_PER_SAMPLE
            self._chunks.append(_Chunk(pcm, meta))

    def finish_audio(self) -> None:
        """Record that the engine generates no more; buffers what the output stage holds back."""
        self.audio_phase = AudioPhase.GENERATED
        if self._output is not None and self._last_meta is not None:
            self._buffer(self._output.flush(), self._last_meta)

    def drop_audio(self) -> None:
        """Discard the buffered audio, also that in the output stage, and take no more."""
        self.audio_phase = AudioPhase.GENERATED
        self._chunks.clear()

    def next_frame_samples(self, frame_samples: int | None) -> int:
        """Size of the next frame, 0 if there is none yet. Only the last frame may be short."""
        if not self._chunks:
            return 0
        if frame_samples is None:
            chunk = self._chunks[0]
            return (len(chunk.pcm) - chunk.offset) // BYTES_PER_SAMPLE
        buffered_samples = self.generated_samples - self.sent_samples
        if buffered_samples >= frame_samples:
            return frame_samples
        return buffered_samples if self.is_generated else 0

    def take_frame(self, samples: int) -> PcmFrame:
        """Remove and return the next frame. ``samples`` must be buffered; ``meta`` is that of the first sample."""
        size = samples * BYTES_PER_SAMPLE
        chunk = self._chunks[0]
        meta = chunk.meta
        end = chunk.offset + size
        if end < len(chunk.pcm):
            pcm = chunk.pcm[chunk.offset : end]
            chunk.offset = end
        else:
            pcm = self._take_bytes(size)
        output = self._output
        if output is None:
            frame = PcmFrame(self.key, self._frames, self.sent_samples, pcm, meta)
            engine_samples = samples
        else:
            frame = PcmFrame(self.key, self._frames, self.sent_samples, output.encode(pcm), meta, samples)
            engine_samples = output.to_engine(self.sent_samples + samples) - output.to_engine(self.sent_samples)
        self._frames += 1
        self.sent_samples += samples
        self.uncredited_engine_samples += engine_samples
        return frame

    def _take_bytes(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            chunk = self._chunks[0]
            part = chunk.pcm[chunk.offset : chunk.offset + size]
            parts.append(part)
            size -= len(part)
            chunk.offset += len(part)
            if chunk.offset == len(chunk.pcm):
                self._chunks.popleft()
        return b"".join(parts)

    def take_words(self, before_sample: int | None = None) -> Words | None:
        """Return the new word timestamps that begin before ``before_sample`` (None: all), or None."""
        first = last = self._words_announced
        while last < len(self._words) and (before_sample is None or self._words[last].start_sample < before_sample):
            last += 1
        if first == last:
            return None
        self._words_announced = last
        source = self._text.source
        words = tuple(_word(source, timing) for timing in self._words[first:last])
        skipped = self._skipped[self._skipped_announced :]
        skipped = list(takewhile(lambda run: run.start < words[-1].start_char, skipped))
        self._skipped_announced += len(skipped)
        return Words(self.key, words, tuple(skipped))

    def played(self, samples: int) -> None:
        """Record the client's playback position; it never decreases and is capped at what was sent."""
        self.played_samples = max(self.played_samples or 0, min(max(samples, 0), self.sent_samples))

    def receipt(self, reason: str, outcome: Outcome) -> Receipt:
        """Build the playback report; the text is split at the played position if known, else at the sent one."""
        source = self._text.source
        position_samples = self.sent_samples if self.played_samples is None else self.played_samples
        is_complete = self.is_generated and self.text_ended and self.error is None and self.truncated is None
        fully_played = outcome is Outcome.DONE or (is_complete and position_samples == self.generated_samples)
        whole = Receipt(
            reason=reason,
            samples_generated=self.generated_samples,
            samples_sent=self.sent_samples,
            samples_played=self.played_samples,
            text_spoken=source,
            text_remaining="",
            words=tuple(_word(source, timing) for timing in self._words),
            alignment=self._alignment,
            skipped=tuple(self._skipped),
        )
        return cut_at(whole, position_samples, fully_played=fully_played)


def _word(source: str, timing: WordTiming) -> Word:
    text = source[timing.start_char : timing.end_char]
    return Word(text, timing.start_char, timing.end_char, timing.start_sample, timing.end_sample)
