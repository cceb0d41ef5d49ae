"""Phonemization: a segment's text becomes phrases of phoneme ids with the source words they speak.

The text is untrusted: G2P markup in it has no effect, words and phrases are bounded, and unspeakable characters are
skipped.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tts_worker.engine.cpu.phrases.arpabet import phonemes_of_arpabet
from tts_worker.engine.cpu.phrases.british import british_phonemes
from tts_worker.text.spoken_words import SpokenWord, spoken_words
from tts_worker.types import Boundary, Expression, Segment

MAX_PHONEMES = 200
"""Limit of one phrase at normal speed: about 12 s of speech, 40 ms of one core in the network."""

MAX_BATCH_CHARS = 250
"""Limit of one G2P call, which takes about a millisecond for that much text."""

_PAD_ID = 0
_MAX_WORD_CHARS = 30  # the G2P takes cubic time in the length of text without spaces
_WORD_PIECE_CHARS = 24
_MAX_NUMBER_DIGITS = 15  # the G2P has no names for longer numbers; they are read digit by digit

_WORD = re.compile(r"\S+")
_DIGITS = re.compile(rf"\d{{{_MAX_NUMBER_DIGITS + 1},}}")
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD_CHARS + 1},}}")
_INNER_BREAK = re.compile(r"(?<=[^\w\s])(?=\w)")
_LONG_PIECE = re.compile(rf"\S{{{_WORD_PIECE_CHARS}}}(?=\S)")
_SUPPORTED_NUMERALS = "½¼¾²³"
_CLAUSE_MARKS = frozenset(",;:.!?—…")
_STRESSES = frozenset("ˈˌ")
_SILENT_CHARS = frozenset(' ;:,.!?—…"()“”↓→↗↘')
_SENTENCE_MARKS = frozenset(".!?…")
_MARKS = str.maketrans("’‒―", "'-—")
"""Marks that the G2P knows under another character."""
_QUOTES = re.compile('["“”]')
"""They are silent, and next to one the G2P reads a word with a hyphen in parts: "ninety-nine" as nine, ity, nine."""


# Loan words that the G2P reads by English spelling rules.
_ACCENTED = {
    "résumé": "ɹˈɛzəmˌA",
    "résumés": "ɹˈɛzəmˌAz",
    "crème": "kɹˈɛm",
    "déjà": "dˌAʒˈɑ",
    "jalapeño": "hˌɑləpˈAnjO",
    "jalapeños": "hˌɑləpˈAnjOz",
    "pokémon": "pˈOkəmˌɑn",
    "zoë": "zˈOi",
    "são": "sˈW",
    "à": "ɑ",
    "tête": "tˈɛt",
    "touché": "tuʃˈA",
    "protégé": "pɹˈOTəʒˌA",
    "protégés": "pɹˈOTəʒˌAz",
    "exposé": "ˌɛkspOzˈA",
    "rosé": "ɹOzˈA",
    "pâté": "pɑtˈA",
    "château": "ʃætˈO",
    "curaçao": "kjˌʊɹəsˈW",
    "brontë": "bɹˈɑnti",
    "chloë": "klˈOi",
    "chloé": "klˈOi",
    "beyoncé": "biˈɑnsˌA",
    "josé": "hOzˈA",
    "garcía": "ɡɑɹsˈiə",
    "sánchez": "sˈænʧɛz",
    "cancún": "kænkˈun",
    "mêlée": "mˈAlA",
}
_OTHER_LETTERS = re.compile("ñ|ée?s?$", re.IGNORECASE)


_IPA = {
    **{"eɪ": "A", "aɪ": "I", "oʊ": "O", "əʊ": "O", "aʊ": "W", "ɔɪ": "Y", "tʃ": "ʧ", "t͡ʃ": "ʧ", "dʒ": "ʤ", "d͡ʒ": "ʤ"},
    **{"ɝ": "ɜɹ", "ɚ": "əɹ", "g": "ɡ", "r": "ɹ", "ɫ": "l"},
}
_IPA_SIGNS = re.compile("|".join(_IPA))
_VOWELS = "æaɑʌɐɔɒoəɛeɜɪiʊuyøœᵊᵻAIOQWY"
_STRESS_BEFORE_ONSET = re.compile(rf"([ˈˌ])([^ˈˌ\s{_VOWELS}]+)(?=[{_VOWELS}])")


def phonemes_of_ipa(written: str) -> str:
    """Return phonemes that a person wrote in IPA in the letters of the networks; those letters stay as they are.

    The networks have one letter for each diphthong and affricate, and the stress mark before the vowel instead of the
    syllable: "ˈnaɪki" is "nˈIki".
    """
    return _STRESS_BEFORE_ONSET.sub(r"\2\1", _IPA_SIGNS.sub(lambda sign: _IPA[sign.group()], written))


@dataclass(frozen=True, slots=True)
class PhraseWord:
    """A source word and the phoneme ids that speak it.

    Attributes:
        start_char: First character of the word in the original text.
        end_char: End of the word, exclusive.
        first_id: Index of its first phoneme id in the phrase.
        end_id: End of its phoneme ids, exclusive.
    """

    start_char: int
    end_char: int
    first_id: int
    end_id: int


@dataclass(frozen=True, slots=True)
class Phrase:
    """Input of one network call.

    Attributes:
        ids: Phoneme ids with the pads that the network expects at both ends.
        words: Spoken source words in order, without overlap.
        boundary: Determines the pause after the phrase.
        expressions: How each of ``words`` is spoken; empty if all are neutral.
        voice: Voice that speaks it; None for that of the utterance.
    """

    ids: tuple[int, ...]
    words: tuple[PhraseWord, ...]
    boundary: Boundary
    expressions: tuple[Expression, ...] = ()
    voice: str | None = None


@dataclass(frozen=True, slots=True)
class _PhoneticWord:
    """A word in the G2P's output and its source range in the segment's text."""

    start: int
    end: int
    phonemes: str


@dataclass(frozen=True, slots=True)
class TextRun:
    """Part of a segment's text.

    Attributes:
        text: The characters.
        start: Their offset in the segment's text.
        phonemes: How they are spoken; None leaves that to the G2P.
        is_word: Whether ``phonemes`` is a word although no spaces surround it, as in Chinese.
    """

    text: str
    start: int
    phonemes: str | None = None
    is_word: bool = False


@dataclass(frozen=True, slots=True)
class EnglishG2P:
    """The parts of hibari's G2P. Its own text normalization is not used: it gets words (``text.reading``).

    Attributes:
        g2p: A ``hibari.g2p.G2P``.
        make_token: The ``Tok`` class of hibari.
    """

    g2p: Any
    make_token: Callable[..., Any]

    @classmethod
    def load(cls) -> EnglishG2P:
        """Load it for American English; takes half a second."""
        from hibari.g2p import G2P
        from hibari.g2p.token import Tok

        return cls(G2P(), Tok)

    def load_british(self) -> EnglishG2P:
        """Load British English, 20 MB: tokenizer and tagger, which take 50, are those of American English."""
        from hibari.g2p import G2P

        british = G2P(british=True)
        british.tokenizer, british.tagger = self.g2p.tokenizer, self.g2p.tagger
        return EnglishG2P(british, self.make_token)


class Phonemizer:
    """Converts segments to phrases with hibari's G2P.

    Args:
        english: The G2P.
        vocabulary: Maps a phoneme character to its id. Other characters are skipped.
    """

    def __init__(self, english: EnglishG2P, vocabulary: Mapping[str, int]) -> None:
        self.english = english
        self.g2p = english.g2p
        self.make_token = english.make_token
        self.vocabulary = vocabulary
        self._silent_ids = frozenset(vocabulary[char] for char in _SILENT_CHARS | _STRESSES if char in vocabulary)
        self._stress_ids = frozenset(vocabulary[char] for char in _STRESSES if char in vocabulary)

    def phonemize(self, segment: Segment, max_phonemes: int = MAX_PHONEMES) -> Iterator[Phrase | None]:
        """Yield the phrases of a segment; each item takes a bounded amount of work.

        None stands for a batch of text that gave no phrase. The last phrase carries the boundary of the segment.
        """
        words = _SourceWords(spoken_words(segment))
        pending: Phrase | None = None
        for runs in _batches(self.runs(segment)):
            units = self._phonemize_batch(runs)
            has_phrase = False
            for phrase in self._phrases(units, words, max_phonemes):
                if pending is not None:
                    yield pending
                pending = phrase
                has_phrase = True
            if not has_phrase:
                yield None
        if pending is not None:
            yield Phrase(pending.ids, pending.words, segment.boundary)

    def runs(self, segment: Segment) -> Iterator[TextRun]:
        """Divide the text of a segment into what the G2P reads and what has given phonemes."""
        return text_runs(segment)

    # -- G2P ----------------------------------------------------------------------------------------------------------

    def _phonemize_batch(self, runs: Sequence[TextRun]) -> list[_PhoneticWord]:
        """Phonemize a batch; if the G2P fails, phonemize word by word and drop the words that it cannot process.

        The G2P's rules and dictionaries are large and not tested with all of Unicode; one word must not silence others.
        """
        try:
            return self._phonemize_runs(runs)
        except Exception:
            units: list[_PhoneticWord] = []
            for word in _single_words(runs):
                with suppress(Exception):
                    units += self._phonemize_runs([word])
            return units

    def _phonemize_runs(self, runs: Sequence[TextRun]) -> list[_PhoneticWord]:
        """Phonemize runs of text. Errors of the G2P propagate."""
        tokens: list[Any] = []
        chunks: list[tuple[int, int]] = []  # source ranges of whitespace-separated token groups
        is_joined = False  # no space has followed the last chunk yet
        follows_word = False
        for run in runs:
            if run.is_word or (follows_word and run.text[:1].isalnum()):
                is_joined = False
                if tokens:
                    tokens[-1].whitespace = " "
            follows_word = run.is_word
            if run.phonemes is not None:
                phonemes = run.phonemes if run.is_word else self._given(run.phonemes)
                token = self.make_token(run.text, "NN", "", phonemes=phonemes, rating=5)
                new_tokens = [token]
                ranges = [(run.start, run.start + len(run.text))]
                joins_previous = is_joined
            else:
                pieces = list(_pieces(run))
                pairs = _with_possessives(self.g2p.tokenizer(" ".join(text for text, _, _ in pieces)))
                tags = self.g2p.tagger([text for text, _ in pairs]) if pairs else []
                new_tokens = [
                    self.make_token(text, tag, space, **self._accented(text))
                    for (text, space), tag in zip(pairs, tags, strict=True)
                ]
                ranges = [(start, end) for _, start, end in pieces]
                joins_previous = is_joined and not run.text[:1].isspace()
            if is_joined and not joins_previous:
                tokens[-1].whitespace = " "
            if new_tokens:
                if joins_previous and chunks:
                    start, end = ranges[0]
                    chunks[-1] = (min(chunks[-1][0], start), max(chunks[-1][1], end))
                    ranges = ranges[1:]
                chunks += ranges
                tokens += new_tokens
                is_joined = not (run.phonemes is None and run.text[-1:].isspace())
                tokens[-1].whitespace = "" if is_joined else " "
            elif run.text[-1:].isspace():
                is_joined = False
        return list(_phonetic_words(self.g2p.phonemize_tokens(tokens), chunks)) if tokens else []

    def _given(self, written: str) -> str:
        """Return phonemes that a person wrote, in the accent of the G2P."""
        phonemes = phonemes_of_arpabet(written) or phonemes_of_ipa(written)
        return british_phonemes(phonemes) if self.g2p.british else phonemes

    def _accented(self, word: str) -> dict[str, Any]:
        """Return arguments of the token of a word with accents, whose spelling misleads the G2P.

        Its dictionary has many such words without their accents: "Noël", "décor". A final "é" and "ñ" are letters of
        their own: "divorcé", "señor".
        """
        if word.isascii():
            return {}
        written = unicodedata.normalize("NFC", word)
        stem = written.removesuffix("'s")
        ending = written[len(stem) :]
        if phonemes := _ACCENTED.get(stem.lower()):
            last = phonemes[-1]
            possessive = "s" if last in "fkpt" else "ᵻz" if last in "szʃʒʧʤ" else "z"
            return {"phonemes": self._given(phonemes + (possessive if ending else "")), "rating": 5}
        lexicon = self.g2p.lexicon
        plain = "".join(char for char in unicodedata.normalize("NFD", stem) if not unicodedata.combining(char))
        is_known = plain.isascii() and plain.isalpha() and (plain in lexicon.golds or plain in lexicon.silvers)
        return {"alias": plain + ending} if is_known and not _OTHER_LETTERS.search(stem) else {}

    # -- phrases ------------------------------------------------------------------------------------------------------

    def _phrases(self, units: Sequence[_PhoneticWord], words: _SourceWords, max_phonemes: int) -> Iterator[Phrase]:
        """Pack words into phrases of at most ``max_phonemes``, preferably cut after punctuation."""
        line: list[tuple[_PhoneticWord, list[int]]] = []
        length = 0
        for unit in units:
            ids = [self.vocabulary[char] for char in unit.phonemes if char in self.vocabulary]
            for start in range(0, len(ids), max_phonemes):
                part = ids[start : start + max_phonemes]
                while line and length + 1 + len(part) > max_phonemes:
                    cut = _best_cut(line)
                    yield from self._phrase(line[:cut], words)
                    line = line[cut:]
                    length = sum(len(part_ids) + 1 for _, part_ids in line)
                line.append((unit, part))
                length += len(part) + 1
        yield from self._phrase(line, words)

    def _phrase(self, line: Sequence[tuple[_PhoneticWord, list[int]]], words: _SourceWords) -> Iterator[Phrase]:
        ids = [_PAD_ID]
        spans: list[tuple[int, int, int, int]] = []  # source range, range of the audible ids
        for unit, unit_ids in line:
            if len(ids) > 1:
                ids.append(self.vocabulary[" "])
            audible = [index for index, phoneme in enumerate(unit_ids, len(ids)) if phoneme not in self._silent_ids]
            if audible:
                first = audible[0]
                while first > len(ids) and unit_ids[first - 1 - len(ids)] in self._stress_ids:
                    first -= 1  # the network gives the stress mark part of the phoneme's duration
                spans.append((unit.start, unit.end, first, audible[-1] + 1))
            ids += unit_ids
        ids.append(_PAD_ID)
        if spans:
            yield Phrase(tuple(ids), _phrase_words(spans, words), inner_boundary(line[-1][0].phonemes))


def _with_possessives(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join "José" and "'s", which the G2P reads as one word only if it knows the letters."""
    joined: list[tuple[str, str]] = []
    for text, space in pairs:
        if text == "'s" and joined and not joined[-1][0].isascii() and not joined[-1][1]:
            joined[-1] = (joined[-1][0] + text, space)
        else:
            joined.append((text, space))
    return joined


def inner_boundary(phonemes: str) -> Boundary:
    """Return the boundary between two phrases of one segment, from the punctuation before the cut."""
    last = phonemes.rstrip('"”)')[-1:]
    if last in _SENTENCE_MARKS:
        return Boundary.SENTENCE
    return Boundary.CLAUSE if last in _CLAUSE_MARKS else Boundary.FORCED


def _best_cut(line: Sequence[tuple[_PhoneticWord, list[int]]]) -> int:
    """Return how many words of a full line form a phrase: up to the last punctuation in its second half, else all."""
    total = sum(len(ids) for _, ids in line)
    for cut in range(len(line), 0, -1):
        if 2 * sum(len(ids) for _, ids in line[:cut]) < total:
            break
        if line[cut - 1][0].phonemes[-1:] in _CLAUSE_MARKS:
            return cut
    return len(line)


def _phonetic_words(tokens: Sequence[Any], chunks: Sequence[tuple[int, int]]) -> Iterator[_PhoneticWord]:
    """Join tokens without a space between them; each group corresponds to one chunk."""
    chunk_index = 0
    phonemes = ""
    for index, token in enumerate(tokens):
        phonemes += token.phonemes or ""
        if token.whitespace or index == len(tokens) - 1:
            # The G2P preserves spaces. If it ever drops one, the remaining words get the range of the last chunk.
            start, end = chunks[min(chunk_index, len(chunks) - 1)]
            if phonemes.strip():
                yield _PhoneticWord(start, end, phonemes.strip())
            chunk_index += 1
            phonemes = ""


class _SourceWords:
    """Looks up the source words of a segment by position in its spoken text."""

    def __init__(self, words: Sequence[SpokenWord]) -> None:
        self._words = words
        self._starts = [word.spoken_start for word in words]
        self._ends = [word.spoken_end for word in words]

    def within(self, start: int, end: int) -> list[SpokenWord]:
        """Return the words that overlap ``[start, end)`` of the spoken text."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return list(self._words[first:last])


def _phrase_words(spans: Sequence[tuple[int, int, int, int]], source: _SourceWords) -> tuple[PhraseWord, ...]:
    """Map audible phoneme ids to source words.

    Ids that speak several words ("7:30 pm" is read as one time) are divided in proportion to the characters of each.
    """
    result: list[PhraseWord] = []
    for start, end, first, last in spans:
        words = source.within(start, end)
        shares = [min(end, word.spoken_end) - max(start, word.spoken_start) for word in words]
        done = 0
        total = max(1, sum(shares))
        for word, share in zip(words, shares, strict=True):
            begin = first + (last - first) * done // total
            done += share
            finish = first + (last - first) * done // total
            if result and result[-1].start_char == word.start_char:
                result[-1] = PhraseWord(word.start_char, word.end_char, result[-1].first_id, finish)
            elif not result or word.start_char >= result[-1].end_char:
                result.append(PhraseWord(word.start_char, word.end_char, begin, finish))
    return tuple(result)


# -- bounded input of the G2P ------------------------------------------------------------------------------------------


def _batches(runs: Iterable[TextRun]) -> Iterator[list[TextRun]]:
    """Divide text into batches of bounded length, cut at spaces where possible."""
    batch: list[TextRun] = []
    capacity = MAX_BATCH_CHARS
    for run in runs:
        rest = run
        while rest.text:
            if rest.phonemes is not None or len(rest.text) <= capacity:
                batch.append(rest)
                capacity -= len(rest.text)
                break
            cut = _cut_before(rest.text, capacity)
            if cut:
                batch.append(TextRun(rest.text[:cut], rest.start))
                rest = TextRun(rest.text[cut:], rest.start + cut)
            if batch:
                yield batch
            batch = []
            capacity = MAX_BATCH_CHARS
        if capacity <= 0:
            yield batch
            batch = []
            capacity = MAX_BATCH_CHARS
    if batch:
        yield batch


def _cut_before(text: str, capacity: int) -> int:
    """Return where to cut ``text`` so that at most ``capacity`` characters precede the cut.

    The cut is after the last clause if that uses at least half of the capacity, otherwise after the last space; 0 if
    the text should start a new batch.
    """
    spaces = [index for index in range(1, capacity + 1) if text[index - 1].isspace()]
    for index in reversed(spaces):
        if 2 * index < capacity:
            break
        if text[index - 2] in _CLAUSE_MARKS:
            return index
    if spaces:
        return spaces[-1]
    return capacity if capacity == MAX_BATCH_CHARS else 0


def text_runs(segment: Segment) -> Iterator[TextRun]:
    """Join spans without given phonemes: a word may continue in the next span."""
    text = ""
    start = 0
    position = 0
    for span in segment.spans:
        if span.phonemes is not None and span.text:
            if text:
                yield TextRun(text, start)
            yield TextRun(span.text, position, span.phonemes)
            text = ""
            start = position + len(span.text)
        else:
            text += span.text
        position += len(span.text)
    if text:
        yield TextRun(text, start)


def _single_words(runs: Sequence[TextRun]) -> Iterator[TextRun]:
    for run in runs:
        if run.phonemes is not None:
            yield run
        else:
            for word in _WORD.finditer(run.text):
                yield TextRun(word.group(), run.start + word.start())


def _pieces(run: TextRun) -> Iterator[tuple[str, int, int]]:
    """Yield what the G2P gets of a run, without spaces, with the range of the word that it belongs to."""
    for word in _WORD.finditer(run.text):
        for piece in _bounded(_QUOTES.sub("", word.group().translate(_MARKS))).split():
            yield piece, run.start + word.start(), run.start + word.end()


def _bounded(text: str) -> str:
    """Rewrite ``text`` so that the G2P takes bounded time.

    No word exceeds 30 characters, no number the G2P's range, and control and format characters are removed. The G2P's
    inline markup is harmless: the phonemizer never calls the entry point that parses it.
    """
    clean = "".join(map(_supported_char, text))
    clean = _DIGITS.sub(lambda digits: " ".join(digits.group()), clean)
    return _LONG_WORD.sub(lambda word: _LONG_PIECE.sub(r"\g<0> ", _INNER_BREAK.sub(" ", word.group())), clean)


def _supported_char(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cf":  # joiners and direction marks occur within words
        return ""
    if category in ("Cc", "Cs"):
        return " "
    if category in ("Nd", "No") and not char.isascii() and char not in _SUPPORTED_NUMERALS:
        # The G2P treats every Unicode digit as a number but can only convert ASCII digits.
        return str(unicodedata.digit(char, " "))
    if len(char.lower()) != 1:  # "İ": the G2P indexes lower-case letters one to one
        return unicodedata.normalize("NFKD", char)[0]
    return char
