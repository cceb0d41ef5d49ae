"""Data types shared by all layers: keys, commands, events, frames, notices.

They are frozen and picklable and need only the standard library. Audio positions are *samples* from the start of the
utterance, at the engine's rate in its commands and events and at the session's ``sample_rate`` everywhere else; text
positions are *characters of the original text* before filters, lexicon and normalization.

Audio is *generated* by the engine, *sent* by the worker, and *played* by the client, which alone knows the position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, NamedTuple

from tts_worker.errors import ErrorInfo

SAMPLE_RATE_HZ = 24_000
"""Sample rate of all audio inside the worker; the output stage of a session resamples (``audio.output``)."""

SAMPLE_RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
"""Sample rates that a client can choose."""

BYTES_PER_SAMPLE = 2
"""PCM is signed 16-bit little-endian, mono."""

BREAK_CHARS_PER_S = 15
"""Silence that a text asks for counts in quotas as text that takes as long to speak."""

FRAME_SAMPLES = 480
"""20 ms at 24 kHz: the default frame of real-time transports."""


class Encoding(str, Enum):
    """Encoding of the audio that a client receives, mono."""

    PCM = "pcm_s16le"
    MULAW = "mulaw"  # G.711, one byte per sample, 8 kHz
    ALAW = "alaw"  # G.711, one byte per sample, 8 kHz
    OPUS = "opus"  # one packet per frame, no container
    WAV = "wav"  # s16le behind a header, for downloads


# -- identity ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class UtteranceKey:
    """Identifies an utterance. STOP retires its key; later messages with a retired key are dropped."""

    session: str
    generation: int


# -- text -------------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A run of spoken text and the original characters ``[start, end)`` it stands for.

    A tuple, because text makes many of them and a frozen dataclass takes three times as long to make.

    Attributes:
        text: The spoken text; may differ from the original (lexicon, normalization).
        start: First original character; an inserted run has ``start == end``.
        end: End of the original characters.
        phonemes: Pronunciation in the engine's alphabet; None leaves it to the engine.
    """

    text: str
    start: int
    end: int
    phonemes: str | None = None


EXPRESSIONS = ("rate", "volume", "pitch", "style", "sound")
"""What a span of text can ask for: a part of an ``Expression``, or a vocalization."""


class Expression(NamedTuple):
    """How a span of text is spoken, relative to the voice and the parameters of the utterance.

    A vocalization is not an expression but a control tag in the text, such as ``[laughter]``.

    Attributes:
        rate: Factor of the speaking rate.
        volume_db: Change of the level, in dB.
        pitch_semitones: Change of the pitch.
        style: Emotion or manner of speaking in a word or a few ("happy", "whispering"); "" for the voice's own.
    """

    rate: float = 1.0
    volume_db: float = 0.0
    pitch_semitones: float = 0.0
    style: str = ""

    def within(self, outer: Expression) -> Expression:
        """Return what a span with this expression inside another one has: changes add up, the inner style wins."""
        return Expression(
            self.rate * outer.rate,
            self.volume_db + outer.volume_db,
            self.pitch_semitones + outer.pitch_semitones,
            self.style or outer.style,
        )


NEUTRAL = Expression()
"""The voice and the parameters of the utterance as they are."""


@dataclass(frozen=True, slots=True, order=True)
class Skipped:
    """Original characters ``[start, end)`` that the voice does not speak.

    ``reason`` is ``script`` for letters of a script that it cannot read, ``pronunciation`` for a word that its
    phonemizer has no phonemes for; others may follow.
    """

    start: int
    end: int
    reason: str = "script"


_MARKS = frozenset(",.;:!?…、。，．；：！？")
_NO_SPACE_BEFORE = _MARKS | frozenset(")]}»”’")


def omissions(text: str, runs: Iterable[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Return the ranges of ``text`` to replace, and by what, so that it reads well without ``runs``.

    The spaces around a run go with it, and so do the marks after it if no word before it keeps them; words do not join.

    Args:
        text: The text.
        runs: Disjoint ranges in order.
    """
    found: list[tuple[int, int]] = []
    for run_start, run_end in runs:
        start, end = run_start, run_end
        while start and text[start - 1].isspace():
            start -= 1
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        follows_word = start > 0 and text[start - 1].isalnum()
        while end < len(text) and (text[end].isspace() or (not follows_word and text[end] in _MARKS)):
            end += 1
        found.append((start, end))
    return [(start, end, _between(text, start, end)) for start, end in found]


def _between(text: str, start: int, end: int) -> str:
    """Return what separates the text before ``start`` from that after ``end``."""
    if not start or end == len(text) or text[end] in _NO_SPACE_BEFORE:
        return ""
    had_space = text[start].isspace() or text[end - 1].isspace()
    return " " if had_space or (text[start - 1].isalnum() and text[end].isalnum()) else ""


class Boundary(str, Enum):
    """Why a segment ends; engines derive the pause after it."""

    WORD = "word"  # for engines that take text word by word
    CLAUSE = "clause"  # comma, dash, colon
    SENTENCE = "sentence"  # full stop, question or exclamation mark
    PARAGRAPH = "paragraph"  # line break, list item, heading
    FORCED = "forced"  # too long without punctuation: cut at a space, no pause
    BREAK = "break"  # a silence of ``Segment.pause_ms`` follows
    FLUSH = "flush"  # requested by the caller
    END = "end"  # end of the text


@dataclass(frozen=True, slots=True)
class Segment:
    """Text that is ready to be synthesized.

    The ranges ``[start, end)`` of consecutive segments tile the original text from 0: text removed by a filter belongs
    to the segment after it. Only unspoken text may follow the last segment. Where an engine takes text word by word, a
    flush after the last word is a segment without spans. So is a break without text before it.

    Attributes:
        index: Number of the segment in its utterance.
        spans: The spoken text.
        start: Start of its range in the original text.
        end: End of the range.
        boundary: Why it ends.
        pause_ms: Silence after it, with ``Boundary.BREAK``.
        skipped: Original characters that ``spans`` lack because the voice cannot speak them, in order.
        expressions: Changes of the expression: each holds from its original offset to the next one; ``NEUTRAL`` before
            the first.
    """

    index: int
    spans: tuple[Span, ...]
    start: int
    end: int
    boundary: Boundary
    pause_ms: int = 0
    skipped: tuple[Skipped, ...] = ()
    expressions: tuple[tuple[int, Expression], ...] = ()

    @classmethod
    def whole(cls, text: str, phonemes: str | None = None) -> Segment:
        """Return all of ``text`` as the only segment of an utterance, spoken as ``phonemes`` if given."""
        return cls(0, (Span(text, 0, len(text), phonemes),), 0, len(text), Boundary.END)

    @property
    def text(self) -> str:
        """The spoken text."""
        return "".join(span.text for span in self.spans)

    def expression_at(self, char: int) -> Expression:
        """Return the expression of an original character."""
        return next((expression for start, expression in reversed(self.expressions) if start <= char), NEUTRAL)


@dataclass(frozen=True, slots=True)
class WordTiming:
    """A word timestamp: original characters ``[start_char, end_char)`` at samples ``[start_sample, end_sample)``."""

    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Word:
    """A word timestamp for the client. ``text`` is the original text of ``[start_char, end_char)``."""

    text: str
    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


class Alignment(str, Enum):
    """How an engine determines word timestamps."""

    MEASURED = "measured"  # from the durations of the model
    ESTIMATED = "estimated"  # interpolated
    NONE = "none"


# -- options of a session ---------------------------------------------------------------------------------------------


class State(str, Enum):
    IDLE = "idle"
    SPEAKING = "speaking"
    PAUSED = "paused"
    CLOSED = "closed"


class UrlMode(str, Enum):
    """How a bare URL is read. The text of a Markdown link is always read, its target never."""

    DROP = "drop"
    HOST = "host"  # "https://www.example.com/a?b" is read as "example.com"
    KEEP = "keep"


DropReasoning = bool | Literal["from_start"]
"""Whether reasoning and tool text is dropped; "from_start": a text begins within reasoning."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of one session; None selects the worker's default.

    Attributes:
        model: The engine that must be used.
        needs: Capabilities that the engine must have.
        realtime: Send audio at playback pace, at most ``lead_ms`` ahead. Otherwise send it as fast as it is
            generated; paced sessions are scheduled first.
        own_clock: With ``realtime`` off: the reader takes audio at playback pace (a media track). A call.
        buffered: With ``realtime`` off: the client plays the audio from its own buffer while it is generated (a
            vendor's WebSocket client). A call, whose lead is measured against a virtual playhead.
        reports_playback: The transport reports all that was played (a telephone call): an utterance ends when its last
            sample was played, and only reported samples count as played.
        raw_chunks: Return the engine's chunks, unpaced, instead of frames of ``frame_ms``.
        sample_rate: Sample rate of the audio and unit of all positions, in Hz; by default 24,000, or 8,000 with a
            telephone encoding.
        encoding: Encoding of the audio, see ``Encoding``; by default ``pcm_s16le``.
        lexicon: Word -> spelling or /phonemes/; or stored lexicons: ``NAME`` or ``NAME@VERSION``, several separated by
            commas, of which an earlier one wins.
        markdown: Keep Markdown, emoji and URLs from being read aloud.
        flush_after_ms: Text pause after which complete words are spoken (0: only at punctuation, ``flush`` and end).
        traceparent: W3C trace context of the later utterances; None takes that of the request.
    """

    voice: str | None = None
    model: str | None = None
    needs: tuple[str, ...] = ()
    speed: float = 1.0
    seed: int = 0
    language: str | None = None
    instruct: str | None = None
    realtime: bool = True
    own_clock: bool = False
    buffered: bool = False
    reports_playback: bool = False
    lead_ms: float | None = None
    frame_ms: int | None = None
    raw_chunks: bool = False
    sample_rate: int | None = None
    encoding: str | None = None
    lexicon: Mapping[str, Any] | str | None = None
    markdown: bool | None = None
    urls: UrlMode | None = None
    normalize: bool | None = None
    pause_timeout_s: float | None = None
    text_idle_timeout_s: float | None = None
    flush_after_ms: float | None = None
    traceparent: str | None = None

    def voicing(self, voice: str) -> SynthesisParams:
        """Return the parameters of an utterance with these options."""
        return SynthesisParams(voice, self.speed, self.seed, self.language, self.instruct)


TRACEPARENT = "traceparent"
"""Name of the W3C trace context as an HTTP header, as gRPC metadata and as a field of ``start``."""


# -- session -> engine ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SynthesisParams:
    """Parameters of an utterance. The same parameters, text and engine version give the same samples.

    Attributes:
        voice: Name of the voice.
        speed: Speaking rate (2.0 = twice as fast).
        seed: Seed of the random numbers.
        language: BCP-47 tag of the text; None detects it.
        instruct: Style instruction, for engines with that capability.
    """

    voice: str
    speed: float = 1.0
    seed: int = 0
    language: str | None = None
    instruct: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Begin an utterance.

    Attributes:
        credit_samples: Audio that may be emitted before more credit arrives.
        paced: A call, scheduled by deadline; otherwise a download, served after calls.
        buffered: A call whose client takes audio at once and plays it from its own buffer, so that returned credit does
            not tell what was played.
    """

    key: UtteranceKey
    params: SynthesisParams
    credit_samples: int
    paced: bool = True
    buffered: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    key: UtteranceKey
    segment: Segment


@dataclass(frozen=True, slots=True)
class Speech:
    """Speech tokens to render instead of text, as voice conversion needs them.

    For engines with the capability "speech_tokens". An utterance has either text or speech. Audio may end at a
    boundary between two commands, so they should meet where the speech is quiet.
    """

    key: UtteranceKey
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndText:
    """No more text or speech follows. The engine answers with Done when it has emitted all audio."""

    key: UtteranceKey


@dataclass(frozen=True, slots=True)
class Credit:
    """The client took ``samples``: the engine may emit as many more."""

    key: UtteranceKey
    samples: int


@dataclass(frozen=True, slots=True)
class Hold:
    """PAUSE: spend no engine time on this utterance until Release."""

    key: UtteranceKey


@dataclass(frozen=True, slots=True)
class Release:
    key: UtteranceKey


@dataclass(frozen=True, slots=True)
class Express:
    """Speak so from the next word on that is not synthesized; the expressions of spans are within this one."""

    key: UtteranceKey
    expression: Expression


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop the utterance now. Nothing more is emitted for it, not even Done."""

    key: UtteranceKey


Command = Open | Text | Speech | EndText | Credit | Hold | Release | Express | Cancel


def unpaced_share(slots: int) -> int:
    """Slots that unpaced utterances or sessions may take: three quarters, so that calls find a free one."""
    return max(1, slots * 3 // 4)


# -- engine -> session ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkMeta:
    """Origin of a chunk, for logs, playback reports and benchmarks.

    Attributes:
        index: Number of the chunk in its utterance.
        text_start: First original character.
        text_end: End of the original characters.
        start_sample: Position in the utterance.
        wall_ms: Engine time spent on the chunk.
        stages_ms: Engine time by stage (engine specific).
        details: Other figures of what it was rendered from, for the log (engine specific).
    """

    index: int
    text_start: int
    text_end: int
    start_sample: int
    wall_ms: float
    stages_ms: tuple[tuple[str, float], ...] = ()
    details: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Audio:
    """One chunk of an utterance, in order.

    ``words`` are new word timestamps at or after the chunk's first sample; a word is announced at the latest with the
    chunk it begins in. ``skipped`` are words that the engine does not speak, at the latest with the word after them.
    """

    key: UtteranceKey
    pcm: bytes
    meta: ChunkMeta
    words: tuple[WordTiming, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE


@dataclass(frozen=True, slots=True)
class Done:
    """All audio was emitted.

    Attributes:
        truncated: The reason if the audio ends before the text, else None.
        skipped: Words that the engine does not speak, after those of the last audio.
    """

    key: UtteranceKey
    truncated: str | None = None
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """Synthesis of this utterance failed; other utterances are not affected."""

    key: UtteranceKey
    error: ErrorInfo


Event = Audio | Done | Failed


# -- session -> client ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PcmFrame:
    """Audio for the client, mono.

    Attributes:
        index: Number of the frame in the utterance, from 0.
        start_sample: Position of its first sample.
        pcm: The audio in the encoding of the session, which is s16le unless it chose another one.
        meta: Origin of its first sample.
        encoded_samples: Samples in the frame; None stands for s16le, whose size tells it.
    """

    key: UtteranceKey
    index: int
    start_sample: int
    pcm: bytes
    meta: ChunkMeta
    encoded_samples: int | None = None

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE if self.encoded_samples is None else self.encoded_samples


class Outcome(str, Enum):
    """How an utterance ended. Exactly one per utterance."""

    DONE = "done"
    STOPPED = "stopped"
    TRUNCATED = "truncated"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The playback report of an utterance. ``text_spoken + text_remaining`` is always the complete input text.

    Attributes:
        reason: Why the utterance ended.
        samples_generated: Audio generated by the engine.
        samples_sent: Audio sent to the client.
        samples_played: Audio played, as reported by the client; None if it did not report.
        text_spoken: Text up to the played position, or up to the sent one without a report.
        text_remaining: The rest of the text.
        words: Timestamped words of ``text_spoken``.
        alignment: How the timestamps were determined.
        skipped: What the voice skipped of ``text_spoken``: it was not heard. In order, without overlap.
    """

    reason: str
    samples_generated: int
    samples_sent: int
    samples_played: int | None
    text_spoken: str
    text_remaining: str
    words: tuple[Word, ...] = ()
    alignment: Alignment = Alignment.NONE
    skipped: tuple[Skipped, ...] = ()

    @property
    def text_heard(self) -> str:
        """``text_spoken`` without what the voice skipped: what belongs into a chat history."""
        return text_heard(self.text_spoken, self.skipped)

    def split(self, cut: int) -> Receipt:
        """Return the report for the case that the first ``cut`` characters of the text were spoken."""
        text = self.text_spoken + self.text_remaining
        return replace(
            self,
            text_spoken=text[:cut],
            text_remaining=text[cut:],
            words=tuple(word for word in self.words if word.end_char <= cut),
            skipped=skipped_before(cut, self.skipped),
        )


def skipped_before(cut: int, skipped: Iterable[Skipped]) -> tuple[Skipped, ...]:
    """Return the part of ``skipped`` in the first ``cut`` characters."""
    return tuple(replace(run, end=min(run.end, cut)) for run in skipped if run.start < cut)


def text_heard(text: str, skipped: Iterable[Skipped]) -> str:
    """Return ``text`` without what was ``skipped``, and without the spaces and marks that this leaves behind."""
    parts: list[str] = []
    done = 0
    for start, end, between in omissions(text, [(run.start, run.end) for run in skipped]):
        parts += text[done:start], between
        done = end
    return "".join([*parts, text[done:]])


@dataclass(frozen=True, slots=True)
class Started:
    """An utterance was accepted; its audio follows."""

    key: UtteranceKey
    params: SynthesisParams


@dataclass(frozen=True, slots=True)
class Words:
    """Word timestamps, sent before the frame in which they begin.

    Attributes:
        skipped: What the voice skips before the last of them. What it skips at the end is in the report alone.
    """

    key: UtteranceKey
    words: tuple[Word, ...]
    skipped: tuple[Skipped, ...] = ()


class ControlName(str, Enum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of an utterance."""

    key: UtteranceKey
    outcome: Outcome
    receipt: Receipt
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A control command was handled: the result of the command, and an event.

    As an event it follows everything that the command caused, so that of a STOP follows the playback reports.

    Attributes:
        command: The command.
        applied: False if it changed nothing (already paused, nothing to stop).
        key: The current utterance, if any; for a STOP the first one that it ended.
        position_samples: Audio sent of that utterance, 0 without one.
        ended: The utterances that a STOP ended, as far as their reports are known: a remote session has none yet.
    """

    command: ControlName
    applied: bool
    key: UtteranceKey | None = None
    position_samples: int = 0
    ended: tuple[Ended, ...] = ()


Notice = Started | Words | Acknowledged | Ended
Output = PcmFrame | Started | Words | Acknowledged | Ended


@dataclass(frozen=True, slots=True)
class ComputationCounts:
    """How often one kind of computation of an engine ran since the warm-up.

    Attributes:
        name: Name of the computation: ``decode``, ``flow`` and so on.
        captured: Shapes with a CUDA graph.
        refused: Shapes whose capture failed; they run without a graph.
        replays: Replays of graphs.
        eager_calls: Calls without a graph.
    """

    name: str
    captured: int = 0
    refused: int = 0
    replays: int = 0
    eager_calls: int = 0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine reports about its operation.

    Attributes:
        computations: How its computations ran.
        last_step: What the last step did, in a few words.
        stages_s: Time spent in each stage since the warm-up.
    """

    computations: tuple[ComputationCounts, ...] = ()
    last_step: str = ""
    stages_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Description of an engine.

    Attributes:
        name: Name of the engine.
        voices: Names of its voices.
        languages: BCP-47 primary tags.
        alignment: How it determines word timestamps.
        max_utterances: Utterances it can hold at the same time.
        sample_rate_hz: Rate of its audio.
        text_by_word: It wants segments word by word, while the text is being written.
        front_end: Its text follows the rules of CosyVoice's front end (``front_end``), in whole segments.
        speed_range: Supported ``SynthesisParams.speed``.
        device: Device it runs on.
        control_tags: Tags in the text that it acts on, such as ``[laughter]``.
        phonemes: Phonemes that a lexicon, a ``<phoneme>`` tag or the text (``[AA1]``) can prescribe; empty for IPA.
        expressions: What it performs of an ``Expression``: "rate", "volume", "pitch", "style". It ignores the rest.
        moods: The styles that it performs without instructions; it ignores others.
        capabilities: Optional features ("instruct": it follows ``SynthesisParams.instruct``; "speech_tokens": it
            renders ``Speech``).
        mixable: Groups of ``voices``, of each of which it speaks mixes by name (``voices.named_mixes``).
        uninstructed: Those of ``voices`` that follow no instruction although the engine does, for lack of prompt audio.
        extra: Engine-specific facts.
        degraded: Why it is slower than it should be, one reason each; known once it is warm.
        test_signal: Its audio is not speech: the level stays as it is.
    """

    name: str
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    alignment: Alignment
    max_utterances: int
    sample_rate_hz: int = SAMPLE_RATE_HZ
    text_by_word: bool = False
    front_end: bool = False
    speed_range: tuple[float, float] = (0.5, 2.0)
    device: str = "cpu"
    control_tags: tuple[str, ...] = ()
    phonemes: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    moods: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    mixable: tuple[tuple[str, ...], ...] = ()
    uninstructed: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = field(default=())
    degraded: tuple[str, ...] = ()
    test_signal: bool = False

    def unsupported_expressions(self, *, follows_instructions: bool) -> tuple[str, ...]:
        """Return those of ``EXPRESSIONS`` that a voice does not perform; a style takes moods or instructions."""
        performed = {name for name in self.expressions if self.moods or follows_instructions or name != "style"}
        if any(tag[0] == "[" for tag in self.control_tags):
            performed.add("sound")
        return tuple(name for name in EXPRESSIONS if name not in performed)
