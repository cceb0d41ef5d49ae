"""Detects the language of a segment, which decides how numbers and dates are read.

Evidence is the script, common words and letters such as "ñ". Text without any ("12:30", "25 °C", a name in Latin
letters between Korean sentences) follows the requested language, then the text before it, then the voice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from tts_worker.text import tables

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
_CHINESE = re.compile("[\u4e00-\u9fff]")
_KANA = re.compile("[\u3041-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]+")
_CYRILLIC = re.compile("[\u0400-\u052f]+")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]+")

_HAN_LANGUAGES = ("zh", "yue", "ja")
_OTHER_SCRIPTS = frozenset({*_HAN_LANGUAGES, "ko", "ru", "uk", "bg", "el", "ar", "he", "hi", "th"})
_CYRILLIC_LANGUAGES = ("ru", "uk", "bg", "be", "kk", "ky", "mk", "mn", "sr", "tg", "tt")
_COMMON_WORDS = tables.words("common_words")
_MARKS = re.compile("[¿¡ñßäöüãõçœêîûë]")
_SYMBOLS = re.compile(
    "(?:(?<=[0-9°]) ?|(?<=[0-9] °))(?:[kcm]?m[23²³]?|[km]?g|[mc]?l|t|h|min|m?s|[CF]|[kM]?Wh?|V|[kMG]?Hz|[kKMGT]B)"
    "(?:/[hs])?(?![A-Za-z0-9])|(?:EUR|USD|GBP|JPY|CHF|KRW|RUB)(?![A-Za-z])"
)
"""Units and currencies, which no language owns: "25 °C"."""
_FEW_WORDS = 3
"""Latin words without a common one, up to which they are a name in a text of another script."""
_RECENT_WORDS = 24
_GREEK = "\u0370-\u037d\u037f-\u0386\u0388-\u03ff\u1f00-\u1fff"
_GREEK_SYMBOLS = re.compile(rf"[{_GREEK}](?:\s+[{_GREEK}])*")
"""Single Greek letters are symbols, such as that of an angle; a word has more of them."""


def primary_tag(language: str) -> str:
    """Return the primary subtag: ``"en"`` for ``"en-US"``."""
    return language.replace("_", "-").split("-")[0].lower()


def contains_chinese(text: str) -> bool:
    """Whether a text has a Chinese character, by the range that CosyVoice's front end goes by."""
    return _CHINESE.search(text) is not None


def is_written_in_latin(language: str) -> bool:
    """Whether a language is written in Latin letters."""
    return primary_tag(language) not in _OTHER_SCRIPTS


def foreign_runs(text: str, languages: Sequence[str]) -> list[tuple[int, int]]:
    """Return where ``text`` has letters of scripts that no language of a voice has.

    A run may have spaces inside. Latin letters are foreign to no voice, and single Greek ones are symbols; of scripts
    that are not known here, nothing is said.

    Args:
        text: The text.
        languages: Languages of the voice; "mul" or none means any.
    """
    if text.isascii() or (pattern := _foreign_pattern(tuple(languages))) is None:
        return []
    return [run.span() for run in pattern.finditer(text) if not _GREEK_SYMBOLS.fullmatch(run.group())]


@lru_cache(maxsize=256)
def _foreign_pattern(languages: tuple[str, ...]) -> re.Pattern[str] | None:
    tags = set(map(primary_tag, languages))
    if not tags or "mul" in tags:
        return None
    letters = "".join(ranges for ranges, readers in tables.rows("scripts") if tags.isdisjoint(readers.split()))
    if not letters:
        return None
    word = f"[{letters}][{letters}\u0300-\u036f]*"
    return re.compile(rf"{word}(?:\s+{word})*")


def language_of(text: str, languages: Sequence[str]) -> str | None:
    """Return the primary tag of a text that is most likely one of ``languages``; None if it has no letters.

    The script decides; among languages of one script, common words.
    """
    if not any(script.search(text) for script in (_HAN, _KANA, _HANGUL, _CYRILLIC, _LATIN)):
        return None
    return LanguageDetector(languages).detect(text)


class LanguageDetector:
    """Detects the language of each segment of one utterance, in order.

    Chinese is never a default: it needs Han characters or an explicit request. Digits before any other text are read in
    the only language of the voice; a voice of several reads them in English if it speaks that, else in its first.

    Args:
        languages: Languages of the voice; "mul" means any.
        explicit: Language requested by the caller. It applies if the script allows it, and to text without evidence.
    """

    def __init__(self, languages: Sequence[str], explicit: str | None = None) -> None:
        self._explicit = primary_tag(explicit) if explicit else None
        tags = tuple(dict.fromkeys(map(primary_tag, languages)))
        self._speaks_any = "mul" in tags or not tags
        self._languages = tags
        self._recent_words: deque[str] = deque(maxlen=_RECENT_WORDS)
        self._last_language: str | None = None

    def detect(self, text: str) -> str | None:
        """Return the primary tag for ``text``, the next segment of the utterance; None if unknown."""
        kana = len(_KANA.findall(text))
        words = [word.lower() for word in _LATIN.findall(_SYMBOLS.sub(" ", text))]
        evidence = {
            "han": len(_HAN.findall(text)) + kana,
            "latin": len(words),
            "hangul": len(_HANGUL.findall(text)),
            "cyrillic": len(_CYRILLIC.findall(text)),
        }
        script = max(evidence, key=lambda name: evidence[name])
        if not evidence[script]:
            return self._explicit or self._last_language or self._default()
        if script == "han":
            self._last_language = self._han_language(kana > 0)
        elif script == "latin":
            words += _MARKS.findall(text.lower())
            self._recent_words.extend(words)
            around = self._last_language or self._explicit
            self._last_language = around if _is_name(words, around) else self._latin_language()
        else:
            self._last_language = "ko" if script == "hangul" else self._cyrillic_language()
        return self._last_language

    def _cyrillic_language(self) -> str:
        if self._explicit in _CYRILLIC_LANGUAGES:
            return self._explicit
        return next((language for language in self._languages if language in _CYRILLIC_LANGUAGES), "ru")

    def _default(self) -> str | None:
        if len(self._languages) == 1 and not self._speaks_any:
            return self._languages[0]
        if self._speaks("en"):
            return "en"
        return next((language for language in self._languages[:1] if language not in ("zh", "yue")), None)

    def _speaks(self, language: str) -> bool:
        return self._speaks_any or language in self._languages

    def _han_language(self, has_kana: bool) -> str:
        if self._explicit in _HAN_LANGUAGES:
            return self._explicit
        if has_kana or self._last_language == "ja":  # Japanese also has words of Han characters only
            return "ja"
        candidates = [language for language in _HAN_LANGUAGES if language in self._languages]
        return candidates[0] if len(candidates) == 1 else "zh"

    def _latin_language(self) -> str | None:
        if self._explicit is not None and self._explicit not in _OTHER_SCRIPTS:
            return self._explicit
        if not self._speaks_any:
            candidates = [language for language in self._languages if language not in _OTHER_SCRIPTS]
            if len(candidates) == 1:
                return candidates[0]
        scores = {
            language: sum(word in common for word in self._recent_words)
            for language, common in _COMMON_WORDS.items()
            if self._speaks(language)
        }
        if not scores:
            return None
        best = max(scores, key=lambda language: scores[language])  # English on a tie
        return best


def _is_name(words: Sequence[str], around: str | None) -> bool:
    """Whether a few Latin words tell no language, in an utterance of a language of another script."""
    is_short = len(words) <= _FEW_WORDS and around in _OTHER_SCRIPTS
    return is_short and not any(word in common for word in words for common in _COMMON_WORDS.values())
