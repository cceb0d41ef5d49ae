"""Transcripts of prompts, as CosyVoice's text normalizer gives them to the language model.

``tools/reference/text.py`` splits texts by the same rules. Input that makes the reference crash (blanks only, a number
of 40 digits) is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby

from tts_worker.text.front_end import spell_out_number
from tts_worker.text.language import contains_chinese

_DROPPED = str.maketrans({**dict.fromkeys("（）【】`"), "\n": None})
Rewriter = Callable[[str, bool], str]
"""``(text, is_chinese) -> text``: writes numbers and dates as words."""


def normalize(text: str, *, rewrite: Rewriter | None = None) -> str:
    """Return ``text`` as the reference passes it on unsplit: unchanged with a ``<|tag|>``."""
    return text if is_unchanged(text) else apply_rules(text, rewrite)[0]


def is_unchanged(text: str) -> bool:
    """Whether the rules leave ``text`` as it is: it is empty, or has a ``<|tag|>``."""
    return text == "" or ("<|" in text and "|>" in text)


def apply_rules(text: str, rewrite: Rewriter | None) -> tuple[str, bool]:
    """Return ``text`` after the rules of its language, and whether that is Chinese."""
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


def spell_out_numbers(text: str) -> str:
    """Replace every run of digits by English words; a run of superscripts becomes "zero", as in the reference."""
    runs = ((is_digits, list(run)) for is_digits, run in groupby(text, str.isdigit))
    return "".join(
        spell_out_number("".join(filter(str.isdecimal, run))) if is_digits else "".join(run) for is_digits, run in runs
    )
