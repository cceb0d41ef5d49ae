"""Checks of what a caller gives a session: a wrong type is refused before anything has changed."""

from __future__ import annotations

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


def whole_samples(samples: object) -> int:
    """Return a number of samples as an int; NumPy's integers are some, too. Raises InvalidRequest."""
    try:
        return operator.index(samples)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(f"a number of samples must be an int, not {type(samples).__name__}") from None
