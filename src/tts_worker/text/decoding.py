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
        self._high = ""  # the first half of a surrogate pair

    def feed(self, delta: str | bytes) -> str:
        """The characters that are complete with ``delta``."""
        if isinstance(delta, bytes):
            if not delta:
                return ""
            lost = _REPLACEMENT if self._high else ""
            self._high = ""
            return lost + self._bytes.decode(delta)
        if not delta:
            return ""
        lost = self._bytes.decode(b"", True)  # bytes that never became a character
        text = self._high + delta
        self._high = ""
        if "\ud800" <= text[-1] <= "\udbff":
            self._high = text[-1]
            text = text[:-1]
        return lost + _joined(text)

    def end(self) -> str:
        """What became of the incomplete character at the end, if there was one."""
        lost = _REPLACEMENT if self._high else ""
        self._high = ""
        return lost + self._bytes.decode(b"", True)


def _joined(text: str) -> str:
    """Pairs of surrogates become their character, others U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
