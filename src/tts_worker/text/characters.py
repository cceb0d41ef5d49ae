"""Character properties: scripts without spaces, grapheme cluster boundaries, spoken duration.

The cluster rules are a reduced form of Unicode Standard Annex 29 (extended grapheme clusters) that needs only
``unicodedata``. For characters in common use they may join two clusters but never split one.
"""

from __future__ import annotations

import re
import unicodedata

ZERO_WIDTH_JOINER = "\u200d"

FIRST_IDEOGRAPH = "\u3005"
"""First character of the unspaced scripts in which every character may end a word (kana, Han, Yi).

In Thai, Lao, Myanmar and Khmer a single character does not show where a word ends.
"""

UNSPACED_CLASS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b-\u303c"  # ideographic iteration mark, zero and numerals
    "\u3041-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"  # kana, Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd\ua000-\ua48c"  # Han, Yi
)
"""Characters of scripts without spaces between words, for a regular expression."""
_UNSPACED = re.compile(f"[{UNSPACED_CLASS}]")
_KANA = re.compile("[\u3041-\u312f\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f]")

_PICTOGRAPH = re.compile(
    "[\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u25a0-\u2775\u2794-\u27bf\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10b-\U0001fbff]"
)
# Letters that form one syllable: leading consonants (L), vowels (V), trailing consonants (T), and whole syllables,
# of which every 28th has no trailing consonant.
_L, _V, _T = "\u1100-\u115f\ua960-\ua97c", "\u1160-\u11a7\ud7b0-\ud7c6", "\u11a8-\u11ff\ud7cb-\ud7fb"
_LV = "".join(map(chr, range(0xAC00, 0xD7A4, 28)))
_JOINED_HANGUL = re.compile(f"[{_L}][{_L}{_V}\uac00-\ud7a3]|[{_V}{_LV}][{_V}{_T}]|[{_T}\uac00-\ud7a3][{_T}]")

# Letters by category that UAX 29 counts as spacing marks: Thai and Lao "am".
_SPACING_LETTERS = "\u0e33\u0eb3"


def is_unspaced(char: str) -> bool:
    """Return whether ``char`` belongs to a script that does not put spaces between words."""
    return char >= "\u0e00" and _UNSPACED.match(char) is not None


def is_emoji_modifier(char: str) -> bool:
    return "\U0001f3fb" <= char <= "\U0001f3ff"


def is_regional_indicator(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def is_pictograph(char: str) -> bool:
    """Return whether ``char`` is an emoji, dingbat or shape. Circled digits are read aloud, so they are not."""
    return char >= "\u2300" and _PICTOGRAPH.match(char) is not None


def extends(char: str) -> bool:
    """Return whether ``char`` extends the character before it: combining marks, joiners, variation selectors, tags."""
    if char < "\u0300":
        return False
    return (
        unicodedata.category(char) in ("Mn", "Me", "Mc")
        or char in "\u200c\u200d"
        or char in _SPACING_LETTERS
        or is_emoji_modifier(char)
        or "\U000e0020" <= char <= "\U000e007f"
        or char in "\uff9e\uff9f"
    )


def _may_cut(text: str, index: int) -> bool:
    """Return whether a cluster ends before ``text[index]`` (``0 < index < len(text)``)."""
    before = text[index - 1]
    after = text[index]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if extends(after):
        return False
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return False
    if before == ZERO_WIDTH_JOINER and is_pictograph(after):
        return False
    if unicodedata.combining(before) == 9:  # a virama joins the consonant that follows
        return not unicodedata.category(after).startswith("L")
    if is_regional_indicator(before) and is_regional_indicator(after):
        first = index - 1
        while first > 0 and is_regional_indicator(text[first - 1]):
            first -= 1
        return (index - first) % 2 == 0  # flags are pairs, counted from the start of the run
    return not _JOINED_HANGUL.match(text, index - 1)


def cluster_end(text: str, index: int) -> int:
    """Return the smallest offset at or after ``index`` (clamped to the text) that does not split a grapheme cluster."""
    index = max(0, min(index, len(text)))
    while 0 < index < len(text) and not _may_cut(text, index):
        index += 1
    return index


def is_opener(char: str) -> bool:
    """Return whether ``char`` is an opening bracket or quote, which belongs to the text after it."""
    return unicodedata.category(char) in ("Ps", "Pi") if char > "\x7f" else char in "([{"


def is_closer(char: str) -> bool:
    """Return whether ``char`` is a closing bracket or quote (also straight), which belongs to the text before it."""
    return unicodedata.category(char) in ("Pe", "Pf") if char > "\x7f" else char in ")]}\"'"


def begins_unspaced(text: str) -> bool:
    """Return whether no space precedes ``text``: its script has none. Opening quotes do not matter."""
    return is_unspaced(next((char for char in text if not is_opener(char)), text[0]))


def ends_unspaced(text: str) -> bool:
    """Return whether no space follows ``text``: its script has none. Closing quotes do not matter."""
    return is_unspaced(next((char for char in reversed(text) if not is_closer(char)), text[-1]))


def breaks_before(before: str, char: str) -> bool:
    """Return whether a new word begins at ``char`` without a space before it."""
    if extends(char) or is_opener(before):
        return False
    if is_unspaced(char):
        return True
    # After ideographs, letters, digits and opening brackets begin a word; other punctuation is attached.
    return _tail_is_unspaced(before) and (is_spoken(char) or is_opener(char))


def _tail_is_unspaced(char: str) -> bool:
    # Ideographic punctuation ends a word, as an ideograph does.
    return is_unspaced(char) or "\u3000" <= char <= "\u303f" or "\uff00" <= char <= "\uff0f" or char in "：；？！"


def is_spoken(char: str) -> bool:
    """Return whether ``char`` is pronounced: letters, digits and symbols are, punctuation and spaces are not."""
    if char.isalnum():
        return True
    category = unicodedata.category(char)
    return category[0] in "LNS" or char in "%&@#*"


def spoken_weight(char: str) -> int:
    """Return the spoken duration of ``char`` in Latin letters (about 1/15 s each); 0 for punctuation."""
    if char.isascii():
        if char.isalpha():
            return 1
        if char.isdigit():
            return 3
        return 3 if char in "$%&@+=*#<>|~^/\\" else 0
    if is_unspaced(char):
        return 2 if _KANA.match(char) else 1 if char < "\u1800" else 3
    if "\uac00" <= char <= "\ud7a3":  # a Hangul syllable
        return 3
    category = unicodedata.category(char)[0]
    return 3 if category in "NS" else 1 if category in "L" else 0


def word_weight(word: str) -> int:
    """Return the spoken weight of ``word`` plus one for the space after it."""
    return 1 + sum(map(spoken_weight, word))
