"""The vocabulary that every layer speaks: keys, commands, events, frames, notices.

Frozen, picklable, standard library only. Nothing here computes; nothing here knows a clock, a socket or a tensor.
Positions in sound are counted in *samples* of the session's rate from the start of the utterance, positions in text
in *characters of the original text* as the caller wrote it (before filters, lexicon and normalisation).

Three words that are never mixed: *generated* (the engine made it), *sent* (it left the worker), *played* (the
listener heard it; only the client knows).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tts_worker.errors import ErrorInfo

SAMPLE_RATE_HZ = 24_000
"""Rate of everything inside the worker; transports resample at the edge."""

BYTES_PER_SAMPLE = 2
"""PCM is signed 16-bit little-endian, mono."""

FRAME_SAMPLES = 480
"""20 ms at 24 kHz: the unit in which real-time transports send sound."""


# -- identity ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class UtteranceKey:
    """The only identity of work. STOP retires a key for ever; whatever still carries it is dropped where it is seen."""

    session: str
    generation: int


# -- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """A run of spoken text and the original characters ``[start, end)`` that it says.

    ``text`` may differ from the original (lexicon, normalisation); a run that was inserted has ``start == end``.
    ``phonemes`` (the engine's alphabet) overrides the engine's own reading when not None.
    """

    text: str
    start: int
    end: int
    phonemes: str | None = None


class Boundary(str, Enum):
    """Why a segment ends where it ends; engines choose the pause after it from this."""

    WORD = "word"  # an engine that takes text word by word asked for it
    CLAUSE = "clause"  # comma, dash, colon
    SENTENCE = "sentence"  # full stop, question or exclamation mark
    PARAGRAPH = "paragraph"  # line break, list item, heading
    FORCED = "forced"  # too long without punctuation: cut at a space, no pause
    FLUSH = "flush"  # the caller asked for what is there
    END = "end"  # end of the text


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of text that may be spoken now. The ranges ``[start, end)`` of consecutive segments tile the original
    text from 0, so that whatever a filter removed belongs to the segment after it; only a silent tail may follow the
    last one."""

    index: int
    spans: tuple[Span, ...]
    start: int
    end: int
    boundary: Boundary

    @property
    def text(self) -> str:
        """The spoken text."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True, slots=True)
class WordTiming:
    """When original characters ``[start_char, end_char)`` sound: samples ``[start_sample, end_sample)``."""

    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Word:
    """A word time for the client. ``text`` is the original text of ``[start_char, end_char)``."""

    text: str
    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


class Alignment(str, Enum):
    """How an engine knows its word times."""

    MEASURED = "measured"  # from the durations the model itself used
    ESTIMATED = "estimated"  # interpolated
    NONE = "none"


# -- session -> engine ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SynthesisParams:
    """What an utterance sounds like. ``speed`` is the pace (2.0 = twice as fast); the same params, text and engine
    version give the same samples. ``instruct`` is a style request for engines that take one."""

    voice: str
    speed: float = 1.0
    seed: int = 0
    language: str | None = None
    instruct: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Begin an utterance. The engine may emit at most ``credit_samples`` until more credit comes.

    ``paced``: credit comes back at the pace of playback (a call); else as fast as audio is made (a download).
    """

    key: UtteranceKey
    params: SynthesisParams
    credit_samples: int
    paced: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    key: UtteranceKey
    segment: Segment


@dataclass(frozen=True, slots=True)
class EndText:
    """No more text will come. The engine answers with Done when it has emitted everything."""

    key: UtteranceKey


@dataclass(frozen=True, slots=True)
class Credit:
    """The listener took ``samples``: the engine may emit as many more, and the utterance's lead shrank by as many."""

    key: UtteranceKey
    samples: int


@dataclass(frozen=True, slots=True)
class Hold:
    """PAUSE: spend no step on this utterance until Release."""

    key: UtteranceKey


@dataclass(frozen=True, slots=True)
class Release:
    key: UtteranceKey


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget the utterance now. Nothing more is emitted for it, not even Done."""

    key: UtteranceKey


Command = Open | Text | EndText | Credit | Hold | Release | Cancel


def unpaced_share(slots: int) -> int:
    """How many of ``slots`` unpaced utterances or sessions may hold: three quarters, so that a call finds one."""
    return max(1, slots * 3 // 4)


# -- engine -> session ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkMeta:
    """Where a chunk of sound comes from, for logs, receipts and benchmarks.

    ``text_start, text_end``: original characters; ``start_sample``: position in the utterance; ``wall_ms``: time the
    engine spent on it; ``stages_ms``: the same by stage, engine specific.
    """

    index: int
    text_start: int
    text_end: int
    start_sample: int
    wall_ms: float
    stages_ms: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound of an utterance, in order. ``words`` are the words that begin at or after this chunk's first sample and
    were not announced before; an engine announces a word at the latest with the chunk it begins in."""

    key: UtteranceKey
    pcm: bytes
    meta: ChunkMeta
    words: tuple[WordTiming, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE


@dataclass(frozen=True, slots=True)
class Done:
    """All sound was emitted. ``truncated`` says why the speech ends before the text does, None if it does not."""

    key: UtteranceKey
    truncated: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine gave up on this utterance (only this one)."""

    key: UtteranceKey
    error: ErrorInfo


Event = Audio | Done | Failed


# -- session -> client ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PcmFrame:
    """Sound for the client: s16le mono. ``index`` counts the frames of the utterance from 0."""

    key: UtteranceKey
    index: int
    start_sample: int
    pcm: bytes
    meta: ChunkMeta

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE


class Outcome(str, Enum):
    """How an utterance ended. Exactly one per utterance."""

    DONE = "done"
    STOPPED = "stopped"
    TRUNCATED = "truncated"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an utterance. ``text_spoken + text_remaining`` is the text that came in, always.

    ``samples_played`` is the client's word, None if it said nothing; the text is then cut by ``samples_sent``.
    ``words`` are the words of ``text_spoken`` that have a time; ``alignment`` says how far to trust them.
    """

    reason: str
    samples_generated: int
    samples_sent: int
    samples_played: int | None
    text_spoken: str
    text_remaining: str
    words: tuple[Word, ...] = ()
    alignment: Alignment = Alignment.NONE


@dataclass(frozen=True, slots=True)
class Started:
    """An utterance was accepted; its sound follows."""

    key: UtteranceKey
    params: SynthesisParams


@dataclass(frozen=True, slots=True)
class Words:
    """Word times, sent before the frame they begin in."""

    key: UtteranceKey
    words: tuple[Word, ...]


class ControlName(str, Enum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A control command was handled. ``applied`` is False where it changed nothing (already paused, nothing to stop).

    A STOP that ended utterances is acknowledged by their ``Ended``, so it appears here only with ``applied=False``.
    ``position_samples`` is what had been sent of the utterance in ``key`` (0 without one).
    """

    command: ControlName
    applied: bool
    key: UtteranceKey | None = None
    position_samples: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of an utterance."""

    key: UtteranceKey
    outcome: Outcome
    receipt: Receipt
    error: ErrorInfo | None = None


Notice = Started | Words | Acknowledged | Ended
Output = PcmFrame | Started | Words | Acknowledged | Ended


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine can do. ``voices`` are the names it speaks with; ``languages`` BCP-47 primary tags;
    ``capabilities`` what not every engine can ("instruct": it follows ``SynthesisParams.instruct``)."""

    name: str
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    alignment: Alignment
    max_utterances: int
    sample_rate_hz: int = SAMPLE_RATE_HZ
    text_by_word: bool = False  # wants segments word by word (text while it is being written)
    reads_numbers: bool = False  # writes numbers and dates out by itself, so that text need not be normalized
    speed_range: tuple[float, float] = (0.5, 2.0)
    device: str = "cpu"
    capabilities: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = field(default=())
