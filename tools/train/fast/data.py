"""Data of a voice in the folder of a run: sentences, and what the teacher makes of them.

Data comes in parts of equal size, each with a seed of its own, so that it does not depend on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from tools.train.config import TextConfig
from tools.train.fast.teacher import KokoroTeacher, SpokenPhrase, load_phrases, save_phrases
from tools.train.text import held_out, make_corpus, make_mandarin_corpus
from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.hibari.model import AMERICAN, MANDARIN
from tts_worker.engine.cpu.phrases.text import Phonemizer
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import ConfigError
from tts_worker.types import SAMPLE_RATE_HZ, Segment

CORPUS, MANDARIN_CORPUS = "corpus.txt", "mandarin.txt"
_PART_PHRASES = 25
_PART_SEEDS = 1000

Report = Callable[[str], None]


def corpus(run: Path, text: TextConfig, seed: int, language: str = AMERICAN) -> list[str]:
    """Return the sentences of a run in a language: those of ``CORPUS`` or ``MANDARIN_CORPUS`` if that exists.

    Raises:
        ConfigError: There are none.
    """
    path = run / (MANDARIN_CORPUS if language == MANDARIN else CORPUS)
    if not path.is_file():
        make = make_mandarin_corpus if language == MANDARIN else make_corpus
        path.write_text("".join(f"{line}\n" for line in make(text, run / text.folder, seed)), "utf-8")
    if lines := path.read_text("utf-8").splitlines():
        return lines
    raise ConfigError(f"{path} has no sentences")


def voice_sentences(lines: list[str], voice: int, voices: int) -> list[str]:
    """Return ``lines`` from another place for each of several voices: together they learn from more sentences."""
    start = len(lines) * voice // voices
    return lines[start:] + lines[:start]


def phoneme_ids(phonemizer: Phonemizer, sentences: Iterable[str]) -> Iterator[tuple[int, ...]]:
    """Yield the phoneme ids of the phrases that ``sentences`` consist of."""
    for sentence in sentences:
        for phrase in phonemizer.phonemize(Segment.whole(sentence)):
            if phrase is not None:
                yield phrase.ids


def part_files(run: Path, name: str) -> list[Path]:
    """Return the files of the data ``name`` that are there, in order."""
    return sorted(run.glob(f"{name}-*.npz"))


def save_parts(run: Path, name: str, phrases: Sequence[SpokenPhrase]) -> None:
    """Write the data ``name`` in parts."""
    for number, first in enumerate(range(0, len(phrases), _PART_PHRASES)):
        save_phrases(_part_file(run, name, number), phrases[first : first + _PART_PHRASES])


def _part_file(run: Path, name: str, number: int) -> Path:
    return run / f"{name}-{number:04d}.npz"


class PhraseData(Protocol):
    """What a voice learns from."""

    def spoken(self, audio_s: float) -> list[SpokenPhrase]:
        """Phrases with audio, ``audio_s`` or slightly more, as far as there are any."""
        ...

    def prosody(self, audio_s: float) -> list[SpokenPhrase]:
        """Phrases of which the audio is not used."""
        ...

    def held_out(self) -> list[SpokenPhrase]:
        """Phrases with audio of the held-out sentences."""
        ...

    def sentences(self) -> list[str]:
        """The held-out sentences."""
        ...


class VoiceData:
    """What a voice learns from, in a folder.

    Args:
        run: The folder.
        style: The teacher's style.
        phonemizer: Reads the sentences.
        sentences: Sentences in the order in which they are used.
        language: Language of the held-out sentences.
        seed: Seed of the teacher's noise.
        threads: Threads of the teacher.
        report: Takes a line of progress.
    """

    def __init__(
        self,
        run: Path,
        style: Floats,
        phonemizer: Phonemizer,
        sentences: Iterable[str],
        *,
        language: str,
        seed: int,
        threads: int,
        report: Report,
    ) -> None:
        self._run = run
        self._style = style
        self._phonemizer = phonemizer
        self._sentences = sentences
        self._language = language
        self._seed = seed
        self._threads = threads
        self._report = report

    def spoken(self, audio_s: float) -> list[SpokenPhrase]:
        """Phrases with audio, ``audio_s`` or slightly more, as long as there are sentences."""
        return self._parts("spoken", self._sentences, audio_s, speaks=True)

    def prosody(self, audio_s: float) -> list[SpokenPhrase]:
        """Phrases without audio."""
        return self._parts("prosody", self._sentences, audio_s, speaks=False)

    def held_out(self) -> list[SpokenPhrase]:
        """Phrases with audio of the held-out sentences."""
        return self._parts("held_out", self.sentences(), float("inf"), speaks=True)

    def sentences(self) -> list[str]:
        """The held-out sentences of the language."""
        return held_out(self._language)

    def _parts(self, name: str, sentences: Iterable[str], audio_s: float, *, speaks: bool) -> list[SpokenPhrase]:
        ids = phoneme_ids(self._phonemizer, sentences)
        phrases: list[SpokenPhrase] = []
        frames = 0
        while frames * FRAME_SAMPLES < audio_s * SAMPLE_RATE_HZ and (batch := list(islice(ids, _PART_PHRASES))):
            number = len(phrases) // _PART_PHRASES
            path = _part_file(self._run, name, number)
            is_new = not path.is_file()
            if is_new:
                seed = _PART_SEEDS * self._seed + number
                teacher = KokoroTeacher(self._style, speaks=speaks, seed=seed, threads=self._threads)
                save_phrases(path, [teacher.say(phrase) for phrase in batch])
            part = load_phrases([path])
            phrases += part
            frames += sum(phrase.frames for phrase in part)
            if is_new:
                self._report(f"{name}: {len(phrases)} phrases, {frames * FRAME_SAMPLES / SAMPLE_RATE_HZ:.0f} s")
        return phrases
