"""Score how text is read aloud: the words that the CPU voice gets, compared with the words of a speaker.

    python -m tools.reading_score tests/data/reading/agent_sentences.tsv [FILE ...] [--json] [--failures N]

A line of a file is a case: id, text, words, and any number of other accepted words, separated by tabs; ``\\n`` in the
text is a line break, and a line that begins with # is a comment. The letters before the digits of the id are its class.
A case is right if the phonemes of the text are those of one of the wordings. Stress, pauses, spaces and the difference
between reduced vowels do not count, so spelling and punctuation do not either.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from tts_worker.engine.cpu.hibari.model import HibariModel
from tts_worker.engine.cpu.phrases.text import Phonemizer
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.english.words import ONES, TENS
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.types import Segment, UrlMode

_KIND = re.compile(r"(?:en_)?([A-Za-z]+)")
# A mark after which no abbreviation is looked for. The stop of a title and of "a.m." stays.
_STOP = re.compile(r"(?<![A-Za-z]\.[A-Za-z])(?<!\b[MDS][rst])(?<!\bMrs)\.(?=[\"”)]?(?:\s|$))")
_SPELLING = {
    "AM": "A.M.",
    "us dollars": "US dollars",
    "oclock": "o'clock",
    "august": "August",
    "abc": "ABC",
    "cdf": "CDF",
}
_RESPELLED = re.compile(rf"\b(?:{'|'.join(_SPELLING)})\b")
_NUMBER = rf"(?:{'|'.join((*ONES, *filter(None, TENS)))})"
_AND = re.compile(rf"(?<=hundred)(?= and {_NUMBER}) and|(?<=thousand)(?= and {_NUMBER}) and")
_OH = re.compile(r"\bo\b")
_NEGATIVE = re.compile(rf"\bnegative(?= (?:point|{_NUMBER}))", re.IGNORECASE)
_APART = re.compile(r"\b(kilo|mega|giga|milli) (?=liter|watt|volt)")
"""Spellings of wordings that mislead the phonemizer."""
_SILENT = re.compile(r"[ˈˌ.,;:!?—…\"“”()\-]")
_REDUCED = str.maketrans({"ᵊ": "ə", "ɐ": "ə", "ᵻ": "ə", "T": "t", "ʔ": "t"})
_WEAK = {"ə": "A", "ði": "ðə", "tʊ": "tə"}
"""Words said in two ways: the letter or article "a", "the" and "to" before a vowel that may be in another segment."""


@dataclass(frozen=True, slots=True)
class Case:
    """A text and the words that a speaker says for it.

    Attributes:
        id: Class and number, such as "money-07" or "en_date12".
        text: The written text.
        wordings: Accepted readings; the first one is preferred.
    """

    id: str
    text: str
    wordings: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The class: the letters before the digits of the id."""
        found = _KIND.match(self.id)
        return found.group(1) if found else self.id


@dataclass(frozen=True, slots=True)
class Result:
    """How a case was read.

    Attributes:
        case: The case.
        spoken: The text of its segments.
        phonemes: What the voice gets, with stress and pauses.
        expected_phonemes: What it gets for the first wording.
        is_right: Whether the phonemes are those of an accepted wording.
    """

    case: Case
    spoken: str
    phonemes: str
    expected_phonemes: str
    is_right: bool


def read_cases(path: Path) -> list[Case]:
    """Read the cases of a file.

    Raises:
        ValueError: A line has no wording.
    """
    cases = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        name, *texts = line.split("\t")
        wordings = tuple(filter(None, texts[1:]))
        if not wordings:
            raise ValueError(f"{path.name}, line {number}: a case has an id, a text and its words")
        cases.append(Case(name, texts[0].replace("\\n", "\n"), wordings))
    return cases


def score(cases: Iterable[Case], urls: UrlMode = UrlMode.KEEP, *, allow_british: bool = False) -> list[Result]:
    """Read each case and compare it with its wordings, or with these in American words too."""
    if allow_british:
        cases = [replace(case, wordings=(*case.wordings, *map(american, case.wordings))) for case in cases]
    return [_result(case, urls) for case in cases]


def american(wording: str) -> str:
    """Return numbers as Americans say them: no "and" after hundreds, "zero" for "o", "minus" for "negative"."""
    return _OH.sub("zero", _AND.sub("", _NEGATIVE.sub("minus", wording)))


def spoken_segments(text: str, urls: UrlMode = UrlMode.KEEP) -> list[Segment]:
    """Return the segments of an English utterance as its engine gets them."""
    pipeline = TextPipeline(TextOptions(urls=urls), None, Verbalizer(("en",)))
    return pipeline.feed(text) + pipeline.end()


@cache
def phonemizer() -> Phonemizer:
    """Load the phonemizer of the CPU voice, once; takes a second."""
    return HibariModel().phonemizer


def phonemes_of(segments: Iterable[Segment]) -> str:
    """Return the phonemes that the CPU voice gets."""
    names = _names()
    return " ".join(
        "".join(names[number] for number in phrase.ids[1:-1])
        for segment in segments
        for phrase in phonemizer().phonemize(segment)
        if phrase is not None
    )


@cache
def _names() -> dict[int, str]:
    return {number: phoneme for phoneme, number in phonemizer().vocabulary.items()}


def _result(case: Case, urls: UrlMode) -> Result:
    accepted = (reading for wording in case.wordings for reading in _readings(wording))  # no more than it takes
    first = next(accepted)
    try:
        segments = spoken_segments(case.text, urls)
    except Exception as error:  # a rule that fails is a wrong reading, and no end of the measure
        return Result(case, repr(error), "", first, False)
    phonemes = phonemes_of(segments)
    audible = _audible(phonemes)
    return Result(
        case,
        " | ".join(segment.text for segment in segments),
        phonemes,
        first,
        any(_audible(reading) == audible for reading in chain((first,), accepted)),
    )


def _readings(wording: str) -> tuple[str, str]:
    """Return the phonemes of words, whole and cut into segments: a homograph may depend on the words beside it."""
    words = _STOP.sub("!", _RESPELLED.sub(lambda word: _SPELLING[word[0]], _APART.sub(r"\1", wording)))
    pipeline = TextPipeline(TextOptions(markdown=False))
    segments = pipeline.feed(words) + pipeline.end()
    return phonemes_of([Segment.whole(words)]), phonemes_of(segments)


def _audible(phonemes: str) -> str:
    words = _SILENT.sub("", phonemes.translate(_REDUCED)).replace("ɹɹ", "ɹ").split()
    return "".join(_WEAK.get(word, word) for word in words)


# -- report ------------------------------------------------------------------------------------------------------------


def figures_of(results: Sequence[Result]) -> dict[str, Any]:
    """Return the counts of each class and the failures, for JSON."""
    classes: dict[str, dict[str, int]] = {}
    for result in results:
        counts = classes.setdefault(result.case.kind, {"right": 0, "cases": 0})
        counts["right"] += result.is_right
        counts["cases"] += 1
    failures = [
        {
            "id": result.case.id,
            "text": result.case.text,
            "expected": result.case.wordings[0],
            "spoken": result.spoken,
            "phonemes": result.phonemes,
            "expected_phonemes": result.expected_phonemes,
        }
        for result in results
        if not result.is_right
    ]
    right = len(results) - len(failures)
    return {"right": right, "cases": len(results), "classes": classes, "failures": failures}


def _table(figures: dict[str, Any], max_failures: int) -> str:
    rows = [*sorted(figures["classes"].items()), ("all", figures)]
    lines = [
        f"  {name:<12}{row['right']:>5} of {row['cases']:>3} {100 * row['right'] / max(1, row['cases']):>6.1f} %"
        for name, row in rows
    ]
    for failure in figures["failures"][:max_failures]:
        lines += [
            f"\n{failure['id']}  {failure['text']!r}",
            f"  expected: {failure['expected']}",
            f"  spoken:   {failure['spoken']}",
            f"  phonemes: {failure['phonemes']}",
            f"  expected: {failure['expected_phonemes']}",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score of each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print a JSON list with the figures of each file")
    parser.add_argument("--failures", type=int, default=1000, metavar="N", help="print at most N failures of each file")
    parser.add_argument("--urls", type=UrlMode, choices=list(UrlMode), default=UrlMode.KEEP, help="how URLs are read")
    parser.add_argument("--british", action="store_true", help="take British words of a number for the American ones")
    args = parser.parse_args(arguments)
    figures = []
    for path in args.files:
        try:
            cases = read_cases(path)
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from None
        figures.append({"file": path.name, **figures_of(score(cases, args.urls, allow_british=args.british))})
    if args.json:
        print(json.dumps(figures, ensure_ascii=False, indent=1))
    else:
        for one in figures:
            print(f"{one['file']}\n{_table(one, args.failures)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
