"""Parser of ``StartSessionRequest.options``, a map of strings.

Unknown names are ignored, because clients may send their own; an invalid value is an InvalidRequest naming the option.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from tts_worker.audio.resampler import MAX_RATE_HZ, MIN_RATE_HZ, RATE_STEP_HZ
from tts_worker.errors import InvalidRequest
from tts_worker.server.grpc.frames import StreamFormat
from tts_worker.types import SessionOptions, UrlMode

_Value = TypeVar("_Value")

MAX_OPTION_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Parsed options; ``unknown`` lists the names that were ignored."""

    session: SessionOptions
    stream_format: StreamFormat
    unknown: tuple[str, ...] = ()


def _boolean(value: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return known[value.strip().lower()]


def _finite_number(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _json_object(value: str) -> dict[str, object]:
    data = json.loads(value)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


class _OptionReader:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.remaining = dict(options)
        if sum(len(value) for value in self.remaining.values()) > MAX_OPTION_CHARS:
            raise InvalidRequest(f"options may have at most {MAX_OPTION_CHARS} characters")

    def take(self, name: str, convert: Callable[[str], _Value], what: str) -> _Value | None:
        value = self.remaining.pop(name, None)
        if value is None or value == "":
            return None
        try:
            return convert(value)
        except (ValueError, KeyError, RecursionError):
            raise InvalidRequest(f"option {name} must be {what}") from None

    def milliseconds(self, name: str) -> float | None:
        value = self.take(name, _finite_number, "a number of milliseconds")
        return None if value is None else value / 1000


def parse_start_options(options: Mapping[str, str], defaults: StreamFormat) -> StartOptions:
    """Parse the options; the hub checks that the voice exists and that numbers are in range. Raises InvalidRequest."""
    reader = _OptionReader(options)
    stream_format = _stream_format(reader, defaults)
    lead_ms = reader.take("lead_ms", _finite_number, "a number of milliseconds")
    speed = reader.take("speed", _finite_number, "a number")
    realtime = reader.take("realtime", _boolean, "true or false")
    session = SessionOptions(
        voice=reader.take("voice", str, "a name"),
        speed=1.0 if speed is None else speed,
        seed=reader.take("seed", int, "an integer") or 0,
        language=reader.take("language", str, "a language tag"),
        instruct=reader.take("instruct", str, "text"),
        realtime=stream_format.packetize if realtime is None else realtime,
        lead_ms=lead_ms,
        frame_ms=stream_format.frame_ms,
        raw_chunks=not stream_format.packetize,
        lexicon=reader.take("lexicon", _json_object, "a JSON object"),
        markdown=reader.take("markdown", _boolean, "true or false"),
        urls=reader.take("urls", UrlMode, "drop or host"),
        normalise=reader.take("normalise", _boolean, "true or false"),
        pause_timeout_s=reader.milliseconds("pause_timeout_ms"),
        text_idle_timeout_s=reader.milliseconds("text_idle_timeout_ms"),
        flush_after_ms=reader.take("flush_after_ms", _finite_number, "a number of milliseconds"),
    )
    return StartOptions(session, stream_format, tuple(sorted(reader.remaining)))


def _stream_format(reader: _OptionReader, defaults: StreamFormat) -> StreamFormat:
    rate_hz = reader.take("sample_rate", int, "an integer, in Hz")
    frame_ms = reader.take("frame_ms", int, "an integer")
    packetize = reader.take("packetize", _boolean, "true or false")
    stream_format = StreamFormat(
        defaults.sample_rate_hz if rate_hz is None else rate_hz,
        defaults.frame_ms if frame_ms is None else frame_ms,
        defaults.packetize if packetize is None else packetize,
    )
    if not MIN_RATE_HZ <= stream_format.sample_rate_hz <= MAX_RATE_HZ or stream_format.sample_rate_hz % RATE_STEP_HZ:
        raise InvalidRequest(f"option sample_rate must be {MIN_RATE_HZ} to {MAX_RATE_HZ} in steps of {RATE_STEP_HZ}")
    if not 5 <= stream_format.frame_ms <= 200 or stream_format.sample_rate_hz * stream_format.frame_ms % 1000:
        raise InvalidRequest("option frame_ms must be 5 to 200 and hold a whole number of samples")
    return stream_format


def add_shaper_lead(options: SessionOptions, stream_format: StreamFormat, default_lead_ms: float) -> SessionOptions:
    """Extend the playout lead by the audio in the frame shaper's buffer, so the client gets the requested lead."""
    lead_ms = default_lead_ms if options.lead_ms is None else options.lead_ms
    in_range = 0 <= lead_ms <= 10_000  # the hub rejects other values
    return replace(options, lead_ms=min(lead_ms + stream_format.buffered_ms, 10_000.0) if in_range else lead_ms)
