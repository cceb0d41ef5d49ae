"""Checks of what a caller gives a client: a wrong type is refused before anything has changed."""

from __future__ import annotations

import math
import operator

from tts_worker.errors import InvalidRequest


def check_text(text: object) -> None:
    """Refuse what is no text. Raises InvalidRequest."""
    if not isinstance(text, str | bytes):
        raise InvalidRequest(f"the text must be str or bytes, not {type(text).__name__}")


def check_reason(reason: object) -> None:
    """Refuse a reason that is no text. Raises InvalidRequest."""
    if not isinstance(reason, str):
        raise InvalidRequest(f"reason must be str, not {type(reason).__name__}")


def check_voice_name(voice: object) -> None:
    """Refuse a name of a voice that is no text. Raises InvalidRequest."""
    if not isinstance(voice, str):
        raise InvalidRequest(f"the name of a voice must be str, not {type(voice).__name__}")


def check_seconds(seconds: object, name: str, *, or_zero: bool = False) -> None:
    """Refuse what is no finite time above 0; ``or_zero`` also takes 0. Raises InvalidRequest."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds):
        is_valid = seconds >= 0 if or_zero else seconds > 0
    else:
        is_valid = False
    if not is_valid:
        raise InvalidRequest(f"{name} must be a number of seconds, {'0 or more' if or_zero else 'above 0'}")


def whole_samples(samples: object) -> int:
    """Return a number of samples as an int; NumPy's integers are some, too. Raises InvalidRequest."""
    try:
        return operator.index(samples)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(f"a number of samples must be an int, not {type(samples).__name__}") from None
