"""Mandarin in the phonemes of Kokoro: words and tones.

Text comes in words (``text.reading``). The readings of characters come from pypinyin with its phrases, their sounds
from pinyin-to-ipa.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tts_worker.engine.cpu.phrases.text import Phonemizer, TextRun, text_runs
from tts_worker.types import Segment

_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_PIECES = re.compile(rf"(?P<han>[{_HAN}]+)|[^{_HAN}]+")
_HAN_CHAR = re.compile(f"[{_HAN}]")
_MAX_RUN_CHARS = 60  # words do not span runs; clauses are shorter
_PUNCTUATION = str.maketrans("，。！？；：、（）《》「」【】", ",.!?;:,()“”“”“”")
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
"""IPA as Kokoro writes it: one character for an affricate, arrows for tones, a vowel for a syllabic consonant."""


class MandarinPhonemizer(Phonemizer):
    """English and Mandarin: Han characters are read as Mandarin."""

    def runs(self, segment: Segment) -> Iterator[TextRun]:
        is_mandarin = _HAN_CHAR.search(segment.text) is not None
        for run in text_runs(segment):
            if run.phonemes is not None or not is_mandarin:
                yield run
            else:
                yield from _mandarin_runs(run)


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
