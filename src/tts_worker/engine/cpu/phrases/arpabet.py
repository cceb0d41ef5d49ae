"""CMU's phonemes (ARPABET) in the letters of the networks: "T AH0 M EY1 T OW2" is "təmˈAtˌO"."""

from __future__ import annotations

import re
from types import MappingProxyType

_TABLE = """
AA ɑ  AE æ  AH ʌ  AH0 ə  AO ɔ  AW W  AY I  EH ɛ  ER ɜɹ  ER0 əɹ  EY A  IH ɪ  IY i  OW O  OY Y  UH ʊ  UW u
B b  CH ʧ  D d  DH ð  F f  G ɡ  HH h  JH ʤ  K k  L l  M m  N n  NG ŋ  P p  R ɹ  S s  SH ʃ  T t  TH θ  V v  W w
Y j  Z z  ZH ʒ
"""
_LETTERS = MappingProxyType(dict(re.findall(r"(\w+) (\w+)", _TABLE)))
_STRESS = MappingProxyType({"0": "", "1": "ˈ", "2": "ˌ"})


def phonemes_of_arpabet(written: str) -> str | None:
    """Return the phonemes, with the stress mark before the vowel; None if ``written`` is something else, such as IPA.

    A word in ARPABET has a digit for stress after a vowel, which nothing else has that is written in its letters.
    """
    parts = written.split()
    if not any(part[-1] in _STRESS for part in parts):
        return None
    phonemes = ""
    for part in parts:
        letters = _LETTERS.get(part) or _LETTERS.get(part.rstrip("012"))
        if letters is None:
            return None
        phonemes += _STRESS.get(part[-1], "") + letters
    return phonemes
