"""CosyVoice's sentence splitter, and its text normalizer with wetext, rule by rule.

These rules define the text that the language model received when the parity figures were recorded; the streaming path
uses ``segmenter`` and ``front_end`` instead. Input that makes the reference crash (a leading quote) is accepted here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from tts_worker.engine.cosyvoice.voices.enroll import Rewriter, apply_rules, is_unchanged
from tts_worker.errors import MissingExtra

# Lengths in characters for Chinese, in tokens for English.
MAX_LENGTH = 80
MIN_LENGTH = 60
GLUE_LENGTH = 20

_STOPS = {True: "。？！；：、.?!;", False: ".?!;:"}


def wetext_rewriter() -> Rewriter:
    """Return the rewriter that the reference uses if wetext is installed.

    Raises:
        MissingExtra: wetext is not installed.
    """
    try:
        from wetext import Normalizer
    except ImportError:
        raise MissingExtra("wetext normalization", "normalize") from None
    chinese = Normalizer(remove_erhua=False)
    english = Normalizer()
    return lambda text, is_chinese: str((chinese if is_chinese else english).normalize(text))


def normalize_and_split(
    text: str, count_tokens: Callable[[str], int], *, rewrite: Rewriter | None = None, enabled: bool = True
) -> list[str]:
    """Return the segments that the reference synthesizes in turn; empty for text with punctuation only.

    Args:
        text: Text to normalize.
        count_tokens: Length measure for English segments.
        rewrite: Rewriter of numbers and dates, or None.
        enabled: Whether to normalize; if False, ``text`` is the only segment.
    """
    if not enabled or is_unchanged(text):
        return [text]
    text, chinese = apply_rules(text, rewrite)
    length = len if chinese else count_tokens
    return [
        piece for piece in _merge(_sentences(text, _STOPS[chinese], chinese), length) if not is_only_punctuation(piece)
    ]


def _sentences(text: str, stops: str, chinese: bool) -> list[str]:
    """Split after every stop; a closing quote stays with its sentence, a stop without text before it is dropped."""
    if text and text[-1] not in stops:
        text += "。" if chinese else "."
    pieces: list[str] = []
    start = 0
    for i, c in enumerate(text):
        if c not in stops:
            continue
        if i > start:
            pieces.append(text[start : i + 1])
        start = i + 1
        if text[i + 1 : i + 2] in ('"', "”") and i + 1 < len(text):
            pieces.append((pieces.pop() if pieces else "") + text[i + 1])
            start = i + 2
    return pieces


def _merge(sentences: list[str], length: Callable[[str], int]) -> list[str]:
    """Join sentences up to the length limit; a short last one joins the one before it."""
    merged: list[str] = []
    current = ""
    for sentence in sentences:
        if length(current + sentence) > MAX_LENGTH and length(current) > MIN_LENGTH:
            merged.append(current)
            current = ""
        current += sentence
    if current and merged and length(current) < GLUE_LENGTH:
        merged[-1] += current
    elif current:
        merged.append(current)
    return merged


def is_only_punctuation(text: str) -> bool:
    return all(unicodedata.category(c)[0] in "PS" for c in text)
