"""Makes a bundle's respelling: the phonemes of the teacher's lexicon, endings, and fragments for all other words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tools.train.teacher import lexicon
from tts_worker.engine.cosyvoice.tokens.respelling import ENDING, FRAGMENT

_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_CARRIER = ("Then", "appeared")  # words around one whose phonemes are asked for

_FRAGMENTS = """
a æ ai A ar ɑɹ au ɔ aw ɔ ay A b b c k ch ʧ ci sɪ ce sɛ ck k cy si d d dge ʤ e ɛ ea i ed d ee i er əɹ es z eu ju ew u
ey i f f g ɡ ge ʤ gh ɡ h h i ɪ ie i igh I ing ɪŋ ir ɜɹ j ʤ k k kn n l l le ᵊl ll l ly li m m mm m n n ng ŋ nn n o ɑ oa O
oi Y oo u or ɔɹ ou W ow O oy Y p p ph f pp p qu kw q k r ɹ rr ɹ s s 's z sch ʃ sh ʃ sion ʒən ss s t t tch ʧ th θ tion
ʃən tt t u ʌ ur ɜɹ v v w w wh w wr ɹ x ks y i z z zh ʒ zz z
"""
"""English letters and how they are mostly pronounced."""


_S = "s/fkptθ ᵻz/sʃzʒʤʧ z"
_ED = "ᵻd/tTd t/fkpsʃʧθ d"
_ING = "ɪŋ"
_DOUBLED = "bdglmnprtz"


def endings() -> dict[str, str]:
    """Regular English endings of words: plural, genitive and verbs."""
    result = {"ies=y": "z", "'s": _S, "s": _S, "es": _S}
    result |= {"ed=e": _ED, "ied=y": "d", "ed": _ED, "ing=e": _ING, "ing": _ING}
    for letter in _DOUBLED:  # planned, planning
        result |= {f"{letter * 2}ed={letter}": _ED, f"{letter * 2}ing={letter}": _ING}
    return {f"{ENDING}{written}": spoken for written, spoken in result.items()}


def fragments() -> dict[str, str]:
    """Spelling of parts of words."""
    parts = _FRAGMENTS.split()
    return {f"{FRAGMENT}{letters}": phonemes for letters, phonemes in zip(parts[::2], parts[1::2], strict=True)}


def spellings(texts: Sequence[str], spelled: Sequence[str], lexicon_words: Iterable[str] = ()) -> dict[str, str]:
    """Spelling of each word: the most frequent one in sentences, else the one between two other words.

    Args:
        texts: Sentences.
        spelled: Their phonemes.
        lexicon_words: Words of the teacher's lexicon.
    """
    heard: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, phonemes in zip(texts, spelled, strict=True):
        words, pronounced = text.split(), phonemes.split()
        if len(words) == len(pronounced):
            for word, form in zip(words, pronounced, strict=True):
                if match := _WORD.fullmatch(word.strip(",.?!").lower()):
                    heard[match[0]][form.strip(",.?!")] += 1
    result = {word: forms.most_common(1)[0][0] for word, forms in heard.items()}
    known = set("".join(spelled))
    result.update(_looked_up([word for word in lexicon_words if word not in result and _WORD.fullmatch(word)]))
    return {word: phonemes for word, phonemes in sorted(result.items()) if phonemes and known.issuperset(phonemes)}


def _looked_up(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    if not words:
        return
    from hibari import Hibari

    voice = Hibari()
    for word in words:
        pronounced = " ".join(voice.phonemize(" ".join((_CARRIER[0], word, _CARRIER[1])) + ".")).split()
        if len(pronounced) == 1 + len(_CARRIER):
            yield word, pronounced[1]


def write(file: Path, texts: Sequence[str], spelled: Sequence[str], whole_lexicon: bool) -> None:
    """Write ``respelling.tsv``."""
    words = sorted(lexicon("gold")) if whole_lexicon else ()
    table = {**spellings(texts, spelled, words), **endings(), **fragments()}
    file.write_text("".join(f"{word}\t{phonemes}\n" for word, phonemes in table.items()), "utf-8")
