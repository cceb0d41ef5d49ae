"""Mandarin in the phonemes of the networks: words and tones; and where it begins and ends in a text.

Text comes in words (``text.reading``). The readings of characters come from pypinyin with its phrases, their sounds
from pinyin-to-ipa.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from tts_worker.engine.cpu.phrases.text import EnglishG2P, Phonemizer, TextRun, inner_boundary, text_runs
from tts_worker.errors import MissingPackage
from tts_worker.text.span_rewriting import clipped, is_plain
from tts_worker.types import Segment, Span

_HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff"
_PIECES = re.compile(rf"(?P<han>[{_HAN}]+)|[^{_HAN}]+")
_HAN_CHAR = re.compile(f"[{_HAN}]")
_STRETCH = re.compile(rf"[{_HAN}]+(?:[\W\d_]+[{_HAN}]+)*[^\w\s]*")
"""Mandarin up to the next letter of another script, with the marks after it."""
_PACKAGES = (("pypinyin", "pypinyin"), ("pinyin_to_ipa", "pinyin-to-ipa"))
"""Modules that read Mandarin and their distributions."""
_MAX_RUN_CHARS = 60  # words do not span runs; clauses are shorter
_PUNCTUATION = str.maketrans("，。！？；：、（）《》「」【】", ",.!?;:,()“”“”“”")
_OPENING = " \t\n“(‘"
_SYMBOLS = {
    "ts": "ʦ",
    "tɕ": "ʨ",
    "ʈʂ": "ꭧ",
    "˧˩˧": "↓",
    "˧˥": "↗",
    "˥˩": "↘",
    "˥": "→",
    "\u027b\u0329": "ɨ",
    "\u0279\u0329": "ɨ",
    "\u032f": "",
}
"""IPA as the networks have it: one character for an affricate, arrows for tones, a vowel for a syllabic consonant."""


class MandarinPhonemizer(Phonemizer):
    """English and Mandarin: Han characters are read as Mandarin.

    Raises:
        MissingPackage: A package that reads Mandarin is not installed.
    """

    def __init__(self, english: EnglishG2P, vocabulary: Mapping[str, int]) -> None:
        for module, distribution in _PACKAGES:
            if find_spec(module) is None:
                raise MissingPackage("Mandarin", distribution)
        super().__init__(english, vocabulary)

    def runs(self, segment: Segment) -> Iterator[TextRun]:
        is_mandarin = _HAN_CHAR.search(segment.text) is not None
        for run in text_runs(segment):
            if run.phonemes is not None or not is_mandarin:
                yield run
            else:
                yield from _mandarin_runs(run)


def contains_han(segment: Segment) -> bool:
    """Whether a segment has Han characters to be read."""
    return any(span.phonemes is None and _HAN_CHAR.search(span.text) for span in segment.spans)


def divided(segment: Segment) -> Iterator[tuple[bool, Segment]]:
    """Yield the parts of a segment and whether each is Mandarin. Marks belong to what they follow."""
    text = "".join(span.text if span.phonemes is None else "x" * len(span.text) for span in segment.spans)
    pieces: list[tuple[bool, Span]] = []
    for span, inside in clipped(segment.spans, [(*run.span(), "") for run in _STRETCH.finditer(text)]):
        if not is_plain(span):
            pieces.append((bool(inside), span))
            continue
        done = 0
        for first, last, _ in inside:
            pieces += [(False, _piece(span, done, first)), (True, _piece(span, first, last))]
            done = last
        pieces.append((False, _piece(span, done, len(span.text))))
    parts = groupby((piece for piece in pieces if piece[1].text), lambda piece: piece[0])
    found = [(is_mandarin, tuple(span for _, span in part)) for is_mandarin, part in parts]
    for number, (is_mandarin, spans) in enumerate(found, 1):
        part = replace(segment, spans=spans)
        if number < len(found):
            marked = part.text.translate(_PUNCTUATION).rstrip(_OPENING)
            part = replace(part, boundary=inner_boundary(marked))
        yield is_mandarin, part


def _piece(span: Span, first: int, last: int) -> Span:
    return Span(span.text[first:last], span.start + first, span.start + last)


def _mandarin_runs(run: TextRun) -> Iterator[TextRun]:
    """Divide a run into Mandarin words with phonemes, and the text between them."""
    for piece in _PIECES.finditer(run.text):
        start = run.start + piece.start()
        if piece["han"]:
            yield from _words(piece.group(), start)
        else:
            yield TextRun(piece.group().translate(_PUNCTUATION), start)


def _words(text: str, start: int) -> Iterator[TextRun]:
    from pypinyin.seg.mmseg import seg

    for begin in range(0, len(text), _MAX_RUN_CHARS):
        at = start + begin
        for word in seg.cut(text[begin : begin + _MAX_RUN_CHARS]):
            yield TextRun(word, at, _word_phonemes(word), is_word=True)
            at += len(word)


@lru_cache(maxsize=4096)
def _word_phonemes(word: str) -> str:
    """Return the phonemes of a word with its tones; a character without a reading has none."""
    from pypinyin import Style, lazy_pinyin

    syllables = lazy_pinyin(word, style=Style.TONE3, neutral_tone_with_five=True, tone_sandhi=True)
    return "".join(map(_syllable_phonemes, syllables))


@lru_cache(maxsize=2048)
def _syllable_phonemes(pinyin: str) -> str:
    from pinyin_to_ipa import pinyin_to_ipa

    phonemes = ""
    with suppress(Exception):  # not a syllable of its table
        readings: Any = pinyin_to_ipa(pinyin)
        phonemes = "".join(readings[0])
    for written, symbol in _SYMBOLS.items():
        phonemes = phonemes.replace(written, symbol)
    return phonemes
