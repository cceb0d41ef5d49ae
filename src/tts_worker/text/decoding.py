"""Text that arrives in pieces: bytes cut inside a character, strings cut inside a surrogate pair.

Owns the one canonical text that everything else counts its offsets in. UTF-8 that is broken and surrogates without
their other half become U+FFFD. It knows nothing of what the text means.
"""

from __future__ import annotations

import codecs

_REPLACEMENT = "\ufffd"


class TextDecoder:
    """Joins ``str`` and UTF-8 ``bytes`` deltas. Incomplete characters wait for the next delta of the same kind."""

    def __init__(self) -> None:
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._high_surrogate = ""  # the first half of a surrogate pair

    def feed(self, delta: str | bytes) -> str:
        """The characters that are complete with ``delta``."""
        if isinstance(delta, bytes):
            if not delta:
                return ""
            replaced = _REPLACEMENT if self._high_surrogate else ""
            self._high_surrogate = ""
            return replaced + self._bytes.decode(delta)
        if not delta:
            return ""
        replaced = self._bytes.decode(b"", True)  # bytes that never became a character
        text = self._high_surrogate + delta
        self._high_surrogate = ""
        if "\ud800" <= text[-1] <= "\udbff":
            self._high_surrogate = text[-1]
            text = text[:-1]
        return replaced + _join_surrogates(text)

    def end(self) -> str:
        """What became of the incomplete character at the end, if there was one."""
        replaced = _REPLACEMENT if self._high_surrogate else ""
        self._high_surrogate = ""
        return replaced + self._bytes.decode(b"", True)


def _join_surrogates(text: str) -> str:
    """Pairs of surrogates become their character, others U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
