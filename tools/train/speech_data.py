"""Speech data of a training: units, pitch and codes of all sentences, audio of some, in compact files.

``units.npz`` has what text and codes are made of, ``audio.npz`` the audio of the first sentences.
Both can be made anywhere from ``corpus.txt``; the result depends on the configuration only.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tools.train.codes import CodeBook
from tools.train.config import Config
from tools.train.teacher import RATE_HZ, Sentence, Teacher
from tools.train.text import make_corpus
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.voices.features import MelSpectrogram

CORPUS = "corpus.txt"
UNITS = "units.npz"
CODES = "codes.json"
AUDIO = "audio.npz"
PARTS = "parts.npz"
GRAPH = "teacher.onnx"
HALVES_PER_S = 50

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class UnitData:
    """Sentences as units of half tokens.

    Attributes:
        texts: The sentences.
        units: Symbols of the units.
        tokens: ``[sentences]`` length of each.
        halves: ``[2*N]`` units of all sentences.
        pitch_hz: ``[2*N]``, 0: not voiced.
        spelled: Their phonemes, with the text's marks and spaces.
        places: ``[N]`` character of the phonemes that each token says.
    """

    texts: tuple[str, ...]
    spelled: tuple[str, ...]
    units: tuple[str, ...]
    tokens: Array
    halves: Array
    pitch_hz: Array
    places: Array

    @cached_property
    def ends(self) -> Array:
        return np.cumsum(self.tokens)

    @property
    def hours(self) -> float:
        return float(self.ends[-1]) * 2 / HALVES_PER_S / 3600

    def of(self, values: Array, sentence: int, per_token: int = 1) -> Array:
        """The part of ``values`` (``per_token`` a token) that belongs to a sentence."""
        end = int(self.ends[sentence])
        return values[(end - int(self.tokens[sentence])) * per_token : end * per_token]

    def first(self, sentences: int) -> UnitData:
        """The first sentences only."""
        tokens = self.tokens[:sentences]
        count = int(tokens.sum())
        return replace(
            self,
            texts=self.texts[:sentences],
            spelled=self.spelled[:sentences],
            tokens=tokens,
            halves=self.halves[: 2 * count],
            pitch_hz=self.pitch_hz[: 2 * count],
            places=self.places[:count],
        )

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            texts=np.array("\n".join(self.texts)),
            spelled=np.array("\n".join(self.spelled)),
            units=np.array("\n".join(self.units)),
            tokens=self.tokens.astype(np.int32),
            halves=self.halves.astype(np.int16),
            pitch_hz=self.pitch_hz.astype(np.float16),
            places=self.places.astype(np.int16),
        )

    @classmethod
    def load(cls, path: Path) -> UnitData:
        with np.load(path) as data:
            return cls(
                tuple(str(data["texts"]).split("\n")),
                tuple(str(data["spelled"]).split("\n")),
                tuple(str(data["units"]).split("\n")),
                data["tokens"].astype(np.int64),
                data["halves"].astype(np.int64),
                data["pitch_hz"].astype(np.float32),
                data["places"].astype(np.int64),
            )


@dataclass(frozen=True)
class AudioData:
    """Audio of the first sentences of ``UnitData``, in order.

    Attributes:
        samples: ``[sentences]`` length of each.
        audio: ``[samples]`` int16 at 24 kHz.
        pitch_hz: ``[samples / 480]``.
    """

    samples: Array
    audio: Array
    pitch_hz: Array

    def save(self, path: Path) -> None:
        np.savez(path, samples=self.samples, audio=self.audio, pitch_hz=self.pitch_hz.astype(np.float32))

    @classmethod
    def load(cls, path: Path) -> AudioData:
        with np.load(path) as data:
            return cls(data["samples"].astype(np.int64), data["audio"], data["pitch_hz"].astype(np.float32))


@dataclass(frozen=True)
class PartData:
    """Parts of the audio of ``AudioData``, for a vocoder that filters its excitation.

    Attributes:
        noise: ``[samples]`` int16: what does not depend on the pitch.
        harmonics: ``[samples / 240 + sentences, bins]`` half precision, ``SpeechParts.harmonics`` of each sentence.
    """

    noise: Array
    harmonics: Array

    def save(self, path: Path) -> None:
        np.savez(path, noise=self.noise, harmonics=self.harmonics)

    @classmethod
    def load(cls, path: Path) -> PartData:
        with np.load(path) as data:
            return cls(data["noise"], data["harmonics"])


def prepare(config: Config, run: Path, workers: int, report: Callable[[str], None]) -> None:
    """Make the missing files in ``run``."""
    run.mkdir(parents=True, exist_ok=True)
    if not (run / CORPUS).is_file():
        lines = make_corpus(config.text, run / config.text.folder, config.seed)
        (run / CORPUS).write_text("\n".join(lines), "utf-8")
        report(f"{len(lines)} sentences")
    if not (run / UNITS).is_file():
        data = read_units((run / CORPUS).read_text("utf-8").splitlines(), run / GRAPH, workers)
        data.save(run / UNITS)
        report(f"{data.hours:.2f} h of units, {len(data.units)} units")
    units = UnitData.load(run / UNITS)
    if not (run / CODES).is_file():
        book = CodeBook.train(units.units, units.halves, units.pitch_hz, config.data.pitch_buckets, config.data.codes)
        book.save(run / CODES)
        report(f"{len(book)} codes")
    if not (run / AUDIO).is_file():
        wanted = config.data.audio_hours * 3600 * RATE_HZ
        count = int(np.searchsorted(units.ends * (RATE_HZ * 2 // HALVES_PER_S), wanted)) + 1
        audio = say_all(units.first(count), CodeBook.load(run / CODES), run / GRAPH, workers)
        audio.save(run / AUDIO)
        report(f"{len(audio.audio) / RATE_HZ / 3600:.2f} h of audio")
    if config.sizes.source_filter and not (run / PARTS).is_file():
        texts = units.texts[: len(AudioData.load(run / AUDIO).samples)]
        say_parts(texts, run / GRAPH, workers).save(run / PARTS)
        report("parts of the audio")


def read_units(lines: Iterable[str], graph: Path, workers: int) -> UnitData:
    """Phonemize and time sentences; those that the teacher cannot say as one sentence are left out."""
    sentences = [sentence for sentence in _map(_read, lines, graph, workers) if sentence is not None]
    units = tuple(sorted({unit for sentence in sentences for unit in sentence.units}))
    number = {unit: i for i, unit in enumerate(units)}
    halves, pitch, places, tokens = [], [], [], []
    for sentence in sentences:
        index = sentence.unit_of_half()
        symbols = np.array([number[unit] for unit in sentence.units])
        halves.append(symbols[index])
        pitch.append(sentence.pitch_of_half())
        places.append(sentence.place_of_unit()[index[1::2]])
        tokens.append(len(index) // 2)
    return UnitData(
        tuple(sentence.text for sentence in sentences),
        tuple(sentence.phonemes for sentence in sentences),
        units,
        np.array(tokens),
        np.concatenate(halves),
        np.concatenate(pitch),
        np.concatenate(places),
    )


def say_all(units: UnitData, book: CodeBook, graph: Path, workers: int) -> AudioData:
    """Synthesize all sentences of ``units`` with the pitch of their codes."""
    codes = book.encode(book.numbers(units.units)[units.halves], units.pitch_hz)
    pitch_hz = [book.pitch_of_half(units.of(codes, i), units.of(units.pitch_hz, i, 2)) for i in range(len(units.texts))]
    audio = list(_map(_say, zip(units.texts, pitch_hz, strict=True), graph, workers))
    return AudioData(np.array([len(wave) for wave in audio]), np.concatenate(audio), np.concatenate(pitch_hz))


def say_parts(texts: Sequence[str], graph: Path, workers: int) -> PartData:
    """Parts of the audio that ``say_all`` makes of ``texts``."""
    parts = list(_map(_say_part, texts, graph, workers))
    return PartData(np.concatenate([noise for noise, _ in parts]), np.concatenate([levels for _, levels in parts]))


def mel_of(audio: AudioData, config: CosyVoiceConfig) -> Array:
    """Mel of each sentence: ``[frames, mel]`` half precision."""
    dims = config.mel
    features = MelSpectrogram(
        dims.sample_rate_hz, dims.n_fft, dims.window_samples, dims.hop_samples, dims.bins, dims.fmin_hz, dims.fmax_hz
    )
    parts = []
    for end, count in zip(np.cumsum(audio.samples), audio.samples, strict=True):
        wave = torch.from_numpy(audio.audio[end - count : end].astype(np.float32) / 32768)
        parts.append(features(wave[None])[0].half().numpy())
    return np.concatenate(parts)


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """A permutation that depends on seed and epoch only."""
    order = list(range(count))
    random.Random(seed * 1_000_003 + epoch).shuffle(order)
    return order


_teacher: Teacher | None = None


def _start(graph: Path) -> None:
    global _teacher
    _teacher = Teacher(graph)


def _read(text: str) -> Sentence | None:
    assert _teacher is not None
    return _teacher.read(text)


def _say(job: tuple[str, Array]) -> Array:
    text, pitch_hz = job
    assert _teacher is not None
    sentence = _teacher.read(text)
    assert sentence is not None, text
    wave = _teacher.say(sentence, len(text), pitch_hz)
    return _as_int16(wave)


def _say_part(text: str) -> tuple[Array, Array]:
    assert _teacher is not None
    sentence = _teacher.read(text)
    assert sentence is not None, text
    parts = _teacher.say_parts(sentence, len(text))
    return _as_int16(parts.noise), parts.harmonics.astype(np.float16)


def _as_int16(wave: Array) -> Array:
    return (wave * 32767).clip(-32768, 32767).astype(np.int16)


def _map(function: Callable[[Any], Any], lines: Iterable[Any], graph: Path, workers: int) -> Iterator[Any]:
    if workers <= 1:
        _start(graph)
        yield from map(function, lines)
        return
    Teacher(graph)  # writes the graph
    with multiprocessing.get_context("spawn").Pool(workers, _start, (graph,)) as pool:
        yield from itertools.chain.from_iterable([pool.imap(function, lines, chunksize=32)])
