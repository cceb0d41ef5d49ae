"""The text rules of CosyVoice's own front end for Chinese and English, on the segments of a stream.

``shape`` has those that follow any reading. Chinese: spaces are dropped except between two ASCII characters, full stops
and "²" become Chinese, brackets and backquotes are dropped, " - " and "——" become pauses. The end of the text gets a
full stop. ``FrontEnd`` is the reference's front end (setting ``text.reading: reference``): it follows wetext, or stands
alone where that is not installed, and the digits that are left become English words.

A segment is Chinese if it contains a Chinese character, so the result does not depend on how the stream was split. The
reference decides this for the whole text, which a stream does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tts_worker.text.language import LanguageDetector, contains_chinese
from tts_worker.text.reading.english.words import ONES, SCALES, TENS
from tts_worker.text.span_rewriting import Rewrite, rewrite_spans
from tts_worker.types import Boundary, Segment, Span

_STOPS = {"zh": "。？！；：、.?!;", "en": ".?!;:"}

_CHINESE_MARKS = {"²": "平方", "³": "立方", ".": "。", "——": " ", " - ": "，"}
_CHINESE_RULES = re.compile(r" - (?=[!-~])(?<=[!-~] - )| (?![!-~])|(?<![!-~]) |\.(?!(?<=\d\.)\d)|[\n²³（）【】`]|——")
_LAST_COMMAS = re.compile("[，,、]+$")
_ENGLISH_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+(?!\d|(?:st|nd|rd|th|s)\b)")


def shape(segment: Segment, language: str | None) -> Segment:
    """Return ``segment``, whose numbers are words, with the rules of ``language``, if it is English or Chinese."""
    return _with_rules(segment, "zh" if language == "yue" else language, spell_digits=False)


class FrontEnd:
    """Applies the rules of the reference to the segments of one utterance, in order.

    Args:
        languages: Languages of the voice; empty or "mul" means any.
        explicit: Language requested by the caller.
    """

    def __init__(self, languages: Sequence[str], explicit: str | None = None) -> None:
        self._detector = LanguageDetector(languages, explicit)

    def detect(self, text: str) -> str | None:
        """Return the primary tag whose rules apply to ``text``, the next segment; None if unknown."""
        language = self._detector.detect(text)
        if language == "yue" or (language == "en" and contains_chinese(text)):
            return "zh"
        return language

    def apply(self, segment: Segment, language: str | None) -> Segment:
        """Return ``segment`` with the rules of ``language`` applied; there are none except for "en" and "zh"."""
        return _with_rules(segment, language, spell_digits=True)


def _with_rules(segment: Segment, language: str | None, *, spell_digits: bool) -> Segment:
    if language not in _STOPS or not segment.spans:
        return segment
    found = _chinese(segment.text) if language == "zh" else _english(segment.text) if spell_digits else ()
    spans = rewrite_spans(segment.spans, found)
    if segment.boundary is Boundary.END:
        spans = _ended(spans, language)
    if not any(char.isalnum() for span in spans for char in span.text):
        return segment
    return replace(segment, spans=tuple(spans))


def _chinese(text: str) -> Iterator[Rewrite]:
    for found in _CHINESE_RULES.finditer(text):
        yield found.start(), found.end(), _CHINESE_MARKS.get(found.group(), "")


def _english(text: str) -> Iterator[Rewrite]:
    for found in _ENGLISH_NUMBER.finditer(text):
        digits = found.group().replace(",", "")
        by_digit = len(digits) > 1 and int(digits[0]) == 0  # "1.05", "007": the reference loses the zeros
        words = " ".join(map(spell_out_number, digits)) if by_digit else spell_out_number(digits)
        yield found.start(), found.end(), words


def _ended(spans: list[Span], language: str) -> list[Span]:
    """End a text: Chinese commas become a full stop, text without a stop gets one."""
    text = "".join(span.text for span in spans)
    if language == "zh" and (commas := _LAST_COMMAS.search(text)) is not None:
        return rewrite_spans(spans, [(commas.start(), commas.end(), "。")])
    if text and text[-1] not in _STOPS[language]:
        return [*spans, Span("。" if language == "zh" else ".", spans[-1].end, spans[-1].end)]
    return spans


# -- numbers of the reference ------------------------------------------------------------------------------------------


def spell_out_number(digits: str) -> str:
    """Return decimal digits of any script as an English number; more than 36 of them one by one."""
    digits = "".join(str(int(digit)) for digit in digits).lstrip("0") or "0"
    if len(digits) > 3 * len(SCALES):
        return " ".join(ONES[int(digit)] for digit in digits)
    if int(digits) < 20:
        return ONES[int(digits)]
    groups = [int(digits[max(0, end - 3) : end]) for end in range(len(digits), 0, -3)]  # least significant first
    parts = [_below_thousand(group) + SCALES[i] for i, group in enumerate(groups) if group][::-1]
    if len(parts) > 1 and 0 < groups[0] < 100:
        parts[-2:] = [f"{parts[-2]} and {parts[-1]}"]
    return ", ".join(parts)


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    low = ONES[rest] if rest < 20 else TENS[rest // 10] + (f"-{ONES[rest % 10]}" if rest % 10 else "")
    if not hundreds:
        return low
    return f"{ONES[hundreds]} hundred" + (f" and {low}" if rest else "")
