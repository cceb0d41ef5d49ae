"""Parser of ``StartSessionRequest.options``, a map of strings: the fields of ``start``, and the stream's format.

Unknown names are ignored, because clients may send their own; an invalid value is an InvalidRequest naming the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from tts_worker.audio.resampler import MAX_RATE_HZ, MIN_RATE_HZ, RATE_STEP_HZ
from tts_worker.errors import InvalidRequest
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.protocol.json_codec import parse_object, parse_start_query, parse_strings
from tts_worker.protocol.messages import Message, StartMessage
from tts_worker.types import Encoding, SessionOptions

MAX_OPTIONS = 64
MAX_OPTION_CHARS = 20_000


class _OwnOptions(Message, tag="options"):
    """Options that ``start`` does not have, or has in seconds."""

    sample_rate: int | None = None
    frame_ms: int | None = None
    packetize: bool | None = None
    checksums: bool | None = None
    pause_timeout_ms: float | None = None
    text_idle_timeout_ms: float | None = None


_OWN = frozenset(_OwnOptions.__struct_fields__)
_SHARED = frozenset(StartMessage.__struct_fields__) - {"raw_chunks", "model", "needs", "encoding", *_OWN}
"""The request names the model, and ``packetize`` decides on chunks."""

_OTHER_ENCODINGS = frozenset(Encoding) - {Encoding.PCM}


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Parsed options; ``unknown`` lists the names that were ignored."""

    session: SessionOptions
    stream_format: StreamFormat
    unknown: tuple[str, ...] = ()


def parse_start_options(options: Mapping[str, str], defaults: StreamFormat) -> StartOptions:
    """Parse the options; the hub checks that the voice exists and that numbers are in range. Raises InvalidRequest."""
    if len(options) > MAX_OPTIONS:
        raise InvalidRequest(f"there may be at most {MAX_OPTIONS} options")
    if sum(len(value) for value in options.values()) > MAX_OPTION_CHARS:
        raise InvalidRequest(f"options may have at most {MAX_OPTION_CHARS} characters")
    if options.get("encoding") in _OTHER_ENCODINGS:
        raise InvalidRequest("option encoding must be pcm_s16le; Converse and WebSocket sessions send other encodings")
    own = parse_strings({name: options[name] for name in _OWN & options.keys() if options[name]}, _OwnOptions)
    shared = {name: options[name] for name in _SHARED & options.keys() if options[name]}
    lexicon = shared.pop("lexicon", None)
    stream_format = _stream_format(own, defaults)
    start = parse_start_query(shared)
    session = replace(
        start.options(),
        realtime=start.realtime if "realtime" in shared else stream_format.packetize,
        frame_ms=stream_format.frame_ms,
        raw_chunks=not stream_format.packetize,
        sample_rate=stream_format.sample_rate_hz,
        lexicon=parse_object(lexicon, "option lexicon") if lexicon and lexicon.lstrip().startswith("{") else lexicon,
        pause_timeout_s=_seconds(own.pause_timeout_ms, start.pause_timeout_s),
        text_idle_timeout_s=_seconds(own.text_idle_timeout_ms, start.text_idle_timeout_s),
    )
    known = _OWN | _SHARED | ({"encoding"} if options.get("encoding") == Encoding.PCM else set())
    return StartOptions(session, stream_format, tuple(sorted(options.keys() - known)))


def _seconds(milliseconds: float | None, seconds: float | None) -> float | None:
    return seconds if milliseconds is None else milliseconds / 1000


def _stream_format(own: _OwnOptions, defaults: StreamFormat) -> StreamFormat:
    stream_format = StreamFormat(
        defaults.sample_rate_hz if own.sample_rate is None else own.sample_rate,
        defaults.frame_ms if own.frame_ms is None else own.frame_ms,
        defaults.packetize if own.packetize is None else own.packetize,
        bool(own.checksums),
    )
    if not MIN_RATE_HZ <= stream_format.sample_rate_hz <= MAX_RATE_HZ or stream_format.sample_rate_hz % RATE_STEP_HZ:
        raise InvalidRequest(f"option sample_rate must be {MIN_RATE_HZ} to {MAX_RATE_HZ} in steps of {RATE_STEP_HZ}")
    if not 5 <= stream_format.frame_ms <= 200:
        raise InvalidRequest("option frame_ms must be 5 to 200")
    step_ms = 1000 // gcd(1000, stream_format.sample_rate_hz)
    if stream_format.frame_ms % step_ms:
        raise InvalidRequest(
            f"with a sample_rate of {stream_format.sample_rate_hz}, option frame_ms must be a multiple of {step_ms}, "
            "so that a frame has a whole number of samples"
        )
    return stream_format


def add_shaper_lead(options: SessionOptions, stream_format: StreamFormat, default_lead_ms: float) -> SessionOptions:
    """Extend the playout lead by the audio in the frame shaper's buffer, so the client gets the requested lead."""
    lead_ms = default_lead_ms if options.lead_ms is None else options.lead_ms
    in_range = 0 <= lead_ms <= 10_000  # the hub rejects other values
    return replace(options, lead_ms=min(lead_ms + stream_format.buffered_ms, 10_000.0) if in_range else lead_ms)
