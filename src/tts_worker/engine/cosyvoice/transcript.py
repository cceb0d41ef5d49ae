"""CosyVoice's text normalizer and sentence splitter, rule by rule.

These rules define the text that the language model received when the parity figures were recorded; the streaming path
uses ``segmenter`` and ``front_end`` instead. Transcripts of prompts pass ``normalize``. Input that makes the reference
crash (blanks only, a number of 40 digits, a leading quote) is accepted here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import groupby

from tts_worker.errors import MissingExtra
from tts_worker.text.front_end import spell_out_number
from tts_worker.text.language import contains_chinese

# Lengths in characters for Chinese, in tokens for English.
MAX_LENGTH = 80
MIN_LENGTH = 60
GLUE_LENGTH = 20

_DROPPED = str.maketrans({**dict.fromkeys("（）【】`"), "\n": None})
_STOPS = {True: "。？！；：、.?!;", False: ".?!;:"}
Rewriter = Callable[[str, bool], str]
"""``(text, is_chinese) -> text``: writes numbers and dates as words."""


def wetext_rewriter() -> Rewriter:
    """Return the rewriter that the reference uses if wetext is installed.

    Raises:
        MissingExtra: wetext is not installed.
    """
    try:
        from wetext import Normalizer
    except ImportError:
        raise MissingExtra("wetext normalization", "normalise") from None
    chinese = Normalizer(remove_erhua=False)
    english = Normalizer()
    return lambda text, is_chinese: str((chinese if is_chinese else english).normalize(text))


def normalize(text: str, *, rewrite: Rewriter | None = None, enabled: bool = True) -> str:
    """Return ``text`` as the reference passes it on unsplit: unchanged with a ``<|tag|>`` or if not ``enabled``."""
    return _normalize(text, rewrite)[0] if _applies(text, enabled) else text


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
    if not _applies(text, enabled):
        return [text]
    text, chinese = _normalize(text, rewrite)
    length = len if chinese else count_tokens
    return [
        piece for piece in _merge(_sentences(text, _STOPS[chinese], chinese), length) if not is_only_punctuation(piece)
    ]


def _applies(text: str, enabled: bool) -> bool:
    return enabled and text != "" and not ("<|" in text and "|>" in text)


def _normalize(text: str, rewrite: Rewriter | None) -> tuple[str, bool]:
    text = text.strip()
    chinese = contains_chinese(text)
    if rewrite:
        text = rewrite(text, chinese)
    if not chinese:
        return spell_out_numbers(text), False
    text = _without_blanks(text.replace("\n", ""))
    text = text.replace("²", "平方").replace("³", "立方").replace(".", "。").replace(" - ", "，")
    text = text.translate(_DROPPED).replace("——", " ")
    return re.sub("[，,、]+$", "。", text), True


def _without_blanks(text: str) -> str:
    """Drop spaces, except between two ASCII characters that are not spaces."""

    def solid(i: int) -> bool:
        # As in the reference, text[-1] precedes the first character, and a blank follows the last one.
        return i < len(text) and text[i].isascii() and text[i] != " "

    return "".join(c for i, c in enumerate(text) if c != " " or (solid(i + 1) and solid(i - 1)))


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


def spell_out_numbers(text: str) -> str:
    """Replace every run of digits by English words; a run of superscripts becomes "zero", as in the reference."""
    runs = ((is_digits, list(run)) for is_digits, run in groupby(text, str.isdigit))
    return "".join(
        spell_out_number("".join(filter(str.isdecimal, run))) if is_digits else "".join(run) for is_digits, run in runs
    )
