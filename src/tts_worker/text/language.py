"""Detects the language of a segment, which decides how numbers and dates are read.

Evidence is the script, common words and letters such as "ñ". Text without any ("12:30", "25 °C", a name in Latin
letters between Korean sentences) follows the requested language, then the text before it, then the voice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
_CHINESE = re.compile("[\u4e00-\u9fff]")
_KANA = re.compile("[\u3041-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]+")
_CYRILLIC = re.compile("[\u0400-\u052f]+")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]+")

_HAN_LANGUAGES = ("zh", "yue", "ja")
_OTHER_SCRIPTS = frozenset({*_HAN_LANGUAGES, "ko", "ru", "uk", "bg", "el", "ar", "he", "hi", "th"})
_CYRILLIC_LANGUAGES = ("ru", "uk", "bg", "be", "kk", "ky", "mk", "mn", "sr", "tg", "tt")
_COMMON_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the and is are to of you it that for at was with in on my this i we have will not your be by from or me "
        "he she they what can so if our no do as has had but an all up out about there their when how die am per come",
        "de": "der die das und ist nicht ich ein eine mit auf für zu den von wir sie es im sich auch dem um wie hat am "
        "uhr haben sind einen oder bei nach aus noch wird danke bitte hallo ihr ihre kostet heute morgen ß ä ö ü",
        "es": "el la los las que y es un una por para con del se su en lo como más pero está muy usted hay al de mi "
        "hola gracias cuesta tiene son hoy días años hasta sí ¿ ¡ ñ",
        "fr": "le la les et est une des que pour dans je vous il nous pas du au ce qui avec sur sont cette à de en un "
        "ou bonjour merci votre ans heures coûte aujourd'hui ç œ ê î û ë",
        "it": "il che di è una per non sono con gli della del la lo le ma anche alle si questo come ho un al ha ore "
        "anni ciao grazie costa oggi alla nel più",
        "pt": "o que não uma os para com do da em um as se por mais você está dos na de é tem olá obrigado obrigada "
        "custa hoje às anos ã õ ç",
        "nl": "de het een en van ik niet dat op te met voor zijn er maar om aan ook naar bij",
    }.items()
}
"""Words and letters that tell a language from the others in Latin letters."""
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
_SCRIPTS = (
    ("\u3005\u3007\u3105-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\uf9ff\U00020000-\U0003fffd", "zh yue ja"),
    ("\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f", "ja"),
    ("\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\uffa1-\uffdc", "ko"),
    ("\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f", " ".join(_CYRILLIC_LANGUAGES)),
    (_GREEK, "el"),
    ("\u0531-\u0556\u0561-\u0587", "hy"),
    ("\u0591-\u05bd\u05bf-\u05c2\u05c4-\u05f2\ufb1d-\ufb4f", "he yi"),
    (
        "\u0610-\u061a\u0620-\u065f\u066e-\u06d3\u06d5-\u06ef\u06fa-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdfb\ufe70-\ufefc",
        "ar fa ur ps sd ug ckb",
    ),
    ("\u0900-\u0963\u0971-\u097f", "hi mr ne sa"),
    ("\u0980-\u09e3\u09f0-\u09f1", "bn as"),
    ("\u0a01-\u0a5e\u0a70-\u0a75", "pa"),
    ("\u0a81-\u0ae3\u0af9-\u0aff", "gu"),
    ("\u0b01-\u0b63\u0b71", "or"),
    ("\u0b82-\u0bd7", "ta"),
    ("\u0c00-\u0c63", "te"),
    ("\u0c80-\u0ce3", "kn"),
    ("\u0d00-\u0d4e\u0d54-\u0d57\u0d5f-\u0d63\u0d7a-\u0d7f", "ml"),
    ("\u0d81-\u0ddf", "si"),
    ("\u0e01-\u0e3a\u0e40-\u0e4e", "th"),
    ("\u0e81-\u0ecd\u0edc-\u0edf", "lo"),
    ("\u0f00\u0f40-\u0f84\u0f88-\u0fbc", "bo dz"),
    ("\u1000-\u103f\u1050-\u108f\u109a-\u109d", "my"),
    ("\u10a0-\u10fa\u10fc-\u10ff\u1c90-\u1cbf", "ka"),
    ("\u1200-\u135f\u1380-\u138f", "am ti"),
    ("\u1780-\u17d3\u17dc\u17dd", "km"),
)
"""Letters and vowel signs of each script as ranges of a character class, and the languages written in it."""

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
    letters = "".join(ranges for ranges, readers in _SCRIPTS if tags.isdisjoint(readers.split()))
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
