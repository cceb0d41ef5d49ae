"""Incremental decoding: bytes split inside a character, strings split inside a surrogate pair.

Invalid UTF-8 and unpaired surrogates become U+FFFD. The decoded text is the canonical text that all offsets refer to.
"""

from __future__ import annotations

import codecs
import re

_REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Join pairs of surrogates and replace unpaired ones."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TextDecoder:
    """Joins ``str`` and UTF-8 ``bytes`` deltas; an incomplete character waits for the next delta of the same kind."""

    def __init__(self) -> None:
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._high_surrogate = ""  # first half of a surrogate pair
        self.may_wait = False  # whether part of a character may wait for the rest

    def feed(self, delta: str | bytes) -> str:
        """Return the characters completed by ``delta``."""
        if not self.may_wait and isinstance(delta, str) and (delta.isascii() or _SURROGATE.search(delta) is None):
            return delta
        if not delta:
            return ""
        self.may_wait = True
        if isinstance(delta, bytes):
            replaced = _REPLACEMENT if self._high_surrogate else ""
            self._high_surrogate = ""
            return replaced + self._bytes.decode(delta)
        replaced = self._bytes.decode(b"", True)  # an incomplete character before this delta
        text = self._high_surrogate + delta
        self._high_surrogate = ""
        if "\ud800" <= text[-1] <= "\udbff":
            self._high_surrogate = text[-1]
            text = text[:-1]
        self.may_wait = self._high_surrogate != ""
        return replaced + replace_surrogates(text)

    def end(self) -> str:
        """Return the replacement of an incomplete last character, or an empty string."""
        replaced = _REPLACEMENT if self._high_surrogate else ""
        self._high_surrogate = ""
        return replaced + self._bytes.decode(b"", True)
