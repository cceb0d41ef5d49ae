"""What a caller gives a client: a wrong type, or a file that cannot be read, is refused before anything has changed."""

from __future__ import annotations

import math
import operator
from pathlib import Path

from tts_worker.errors import InvalidRequest
from tts_worker.types import UtteranceKey


def check_text(text: object) -> None:
    """Refuse what is no text. Raises InvalidRequest."""
    if not isinstance(text, str | bytes):
        raise InvalidRequest(f"the text must be str or bytes, not {type(text).__name__}")


def check_str(value: object, name: str) -> None:
    """Refuse a value that is no text. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be str, not {type(value).__name__}")


def check_key(key: object) -> None:
    """Refuse what names no utterance. Raises InvalidRequest."""
    if key is not None and not isinstance(key, UtteranceKey):
        raise InvalidRequest(f"key must be an UtteranceKey, not {type(key).__name__}")


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


def read_file(path: Path) -> bytes:
    """Return the content of a file; blocks. Raises InvalidRequest."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL character
        raise InvalidRequest(f"the path cannot be read: {error}") from None
