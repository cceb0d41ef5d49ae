"""Word alignment of a text with its rewriting: "one hundred dollars" comes from "$100".

Pure functions, defined for any two strings; time is linear in the length of long texts.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator

from tts_worker.text.characters import breaks_before, word_weight

_BLOCK_WORDS = 64
"""A gap of more words is aligned in blocks, which keeps hostile text linear; no segment has as many."""


# -- words ------------------------------------------------------------------------------------------------------------


def word_ranges(text: str) -> list[tuple[int, int]]:
    """Return the words of ``text`` as ranges.

    A word is a run without whitespace, or one grapheme cluster in scripts without spaces (punctuation stays with its
    neighbor). A run of punctuation counts as a word here.
    """
    found: list[tuple[int, int]] = []
    start = -1
    for index, char in enumerate(text):
        if char.isspace():
            if start >= 0:
                found.append((start, index))
            start = -1
        elif start < 0:
            start = index
        elif breaks_before(text[index - 1], char):
            found.append((start, index))
            start = index
    if start >= 0:
        found.append((start, len(text)))
    return found


def _comparison_key(word: str) -> str:
    """Return the letters and digits of ``word`` without case or accents; words with equal keys match."""
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(char for char in decomposed if char.isalnum()) or word


def _likeness(source: str, target: str) -> int:
    """Return how likely ``target`` rewrites ``source``: identical words score highest, then abbreviations."""
    if source == target:
        return 8 + min(len(source), 8)
    if source[0] != target[0] or source.isdigit() or not source.isalnum():
        return 0
    short, long = sorted((source, target), key=len)
    remaining = iter(long)
    if all(char in remaining for char in short):  # "dr" in "doctor", "jan" in "january"
        return 3 + min(len(short), 4)
    return 0


# -- project ----------------------------------------------------------------------------------------------------------


def align_words(source: str, target: str) -> list[tuple[int, int, int, int]]:
    """Align every word of ``target`` with a range of ``source``.

    Words are those of ``word_ranges`` (characters in scripts without spaces). Time is linear beyond about 60 words.

    Returns:
        ``(target_start, target_end, source_start, source_end)`` for every word of ``target``, in order. Source ranges
        are monotonic, and empty for an inserted word with no free source word.
    """
    source_units = word_ranges(source)
    target_units = word_ranges(target)
    source_keys = [_comparison_key(source[a:b]) for a, b in source_units]
    target_keys = [_comparison_key(target[a:b]) for a, b in target_units]
    pairs = list(_anchors(source_keys, target_keys, 0, 0))
    pairs.append((len(source_keys), len(target_keys)))
    ranges: list[tuple[int, int]] = []
    place = 0  # source offset up to which words are assigned
    s = t = 0
    for s_anchor, t_anchor in pairs:
        gap = source_units[s:s_anchor]
        words = [target[a:b] for a, b in target_units[t:t_anchor]]
        ranges += _distribute(source, gap, words, place)
        if s_anchor < len(source_units):
            ranges.append(source_units[s_anchor])
            place = source_units[s_anchor][1]
        s = s_anchor + 1
        t = t_anchor + 1
    return [(*words, *origin) for words, origin in zip(target_units, ranges, strict=True)]


def _anchors(source: list[str], target: list[str], s0: int, t0: int) -> Iterator[tuple[int, int]]:
    """Yield index pairs (shifted by ``s0, t0``) of matching words, strictly increasing on both sides."""
    head = 0
    while head < len(source) and head < len(target) and source[head] == target[head]:
        yield s0 + head, t0 + head
        head += 1
    source = source[head:]
    target = target[head:]
    s0 = s0 + head
    t0 = t0 + head
    tail = 0
    while tail < len(source) and tail < len(target) and source[-1 - tail] == target[-1 - tail]:
        tail += 1
    s_end = len(source) - tail
    t_end = len(target) - tail
    yield from _inner_anchors(source[:s_end], target[:t_end], s0, t0)
    for step in range(tail):
        yield s0 + s_end + step, t0 + t_end + step


def _inner_anchors(source: list[str], target: list[str], s0: int, t0: int) -> Iterator[tuple[int, int]]:
    # Long texts are split into the same number of blocks, of at most 64 words, and aligned block by block.
    blocks = 1 if len(source) * len(target) <= _BLOCK_WORDS**2 else max(len(source), len(target)) // _BLOCK_WORDS + 1
    s = t = 0
    for number in range(1, blocks + 1):
        s_cut = len(source) * number // blocks
        t_cut = len(target) * number // blocks
        yield from ((s0 + s + a, t0 + t + b) for a, b in _best_pairs(source[s:s_cut], target[t:t_cut]))
        s = s_cut
        t = t_cut


def _best_pairs(source: list[str], target: list[str]) -> list[tuple[int, int]]:
    """Return the pairing with the greatest total likeness, by dynamic programming in ``O(source * target)``."""
    width = len(target) + 1
    best = [[0] * width for _ in range(len(source) + 1)]
    likeness = [[_likeness(s, t) for t in target] for s in source]
    for s in range(len(source) - 1, -1, -1):
        row = best[s]
        below = best[s + 1]
        like = likeness[s]
        for t in range(len(target) - 1, -1, -1):
            skip = max(below[t], row[t + 1])
            row[t] = max(skip, like[t] + below[t + 1]) if like[t] else skip
    pairs: list[tuple[int, int]] = []
    s = t = 0
    while s < len(source) and t < len(target):
        if likeness[s][t] and best[s][t] == likeness[s][t] + best[s + 1][t + 1]:
            pairs.append((s, t))
            s = s + 1
            t = t + 1
        elif best[s][t] == best[s + 1][t]:
            s += 1
        else:
            t += 1
    return pairs


def _distribute(source: str, gap: list[tuple[int, int]], words: list[str], place: int) -> list[tuple[int, int]]:
    """Assign the source words in ``gap`` to the target ``words`` between the same two anchors.

    Words are assigned in order and by weight: several target words share a source word, or one target word covers
    several. Without a free source word, the words count as inserted at ``place``.
    """
    if not words:
        return []
    if not gap:
        return [(place, place)] * len(words)
    source_weights = [word_weight(source[a:b]) for a, b in gap]
    target_weights = [word_weight(word) for word in words]
    if len(words) >= len(gap):
        return [gap[group] for group in _assign_groups(target_weights, source_weights)]
    groups = _assign_groups(source_weights, target_weights)
    ranges: list[tuple[int, int]] = []
    for number in range(len(words)):
        first = bisect_left(groups, number)
        last = bisect_left(groups, number + 1) - 1
        ranges.append((gap[first][0], gap[last][1]))
    return ranges


def _assign_groups(items: list[int], groups: list[int]) -> list[int]:
    """Assign a group number to every item, in order, with shares close to the weights of ``groups``.

    Every group gets at least one item. Requires ``len(items) >= len(groups) >= 1`` and positive weights.
    """
    item_total = sum(items)
    group_total = sum(groups)
    result: list[int] = []
    group = 0
    done = 0  # weight of the assigned items
    limit = groups[0]  # weight of the groups up to and including the current one
    for number, item in enumerate(items):
        remaining = len(items) - number
        must_advance = len(groups) - 1 - group >= remaining  # the other groups need all remaining items
        middle_is_beyond = (2 * done + item) * group_total > 2 * limit * item_total
        if result and group + 1 < len(groups) and result[-1] == group and (must_advance or middle_is_beyond):
            group += 1
            limit += groups[group]
        result.append(group)
        done += item
    return result
