"""American phonemes in a British accent, for words whose phonemes are given: dictionaries have their own.

The letters are those of the networks. Americans say "father" and "lot" with one vowel; here it becomes that of "lot".
"""

from __future__ import annotations

import re
from types import MappingProxyType

_LETTERS = str.maketrans("OɾæᵻT", "Qtaɪt")
_BEFORE_R = MappingProxyType({"ɑ": "ɑː", "ɔ": "ɔː", "ɜ": "ɜː", "ɛ": "ɛː", "ɪ": "ɪə", "i": "ɪə", "ʊ": "ʊə", "ə": "ə"})
_ALONE = MappingProxyType({"ɑ": "ɒ", "ɔ": "ɔː", "u": "uː", "ˈi": "ˈiː", "ˌi": "ˌiː"})
_VOWELS = "aɑɐɒəɛɜɪiʊuʌᵊAIQWY"
_SILENT_R = re.compile(rf"([{''.join(_BEFORE_R)}])ɹ(?![ˈˌ]?[{_VOWELS}])")
_SHORT = re.compile("([ɑɔu]|[ˈˌ]i)(?!ː|ɹ)")


def british_phonemes(american: str) -> str:
    """Return phonemes as a British speaker says them: "stˈɑɹt" is "stˈɑːt". British ones stay as they are."""
    long = _SILENT_R.sub(lambda match: _BEFORE_R[match[1]], american.translate(_LETTERS))
    return _SHORT.sub(lambda match: _ALONE[match[1]], long)
