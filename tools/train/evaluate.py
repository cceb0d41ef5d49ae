"""Scores a bundle on the held-out sentences: each stage apart, and text to audio through the streaming engine.

The recognizer and the quality score are those of the quality tests (extra ``quality``). ``teacher`` is the limit: the
teacher's audio itself.
"""

from __future__ import annotations

import hashlib
import importlib
import wave
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np
import torch

from tools.train.bundle import CODES
from tools.train.codes import CodeBook
from tools.train.flow import flow_mel
from tools.train.speech_data import AudioData, UnitData, mel_of, read_units, say_all
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise
from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices
from tts_worker.features.offline.engine import load_offline_engine, speak
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Audio, SynthesisParams
from tts_worker.voices.files import VOICES_DIR, load_voice, stored_voices

STAGES = ("teacher", "copy", "codes", "text")


class Judge(Protocol):
    """Of ``tests.quality.judge``; audio is PCM at 24 kHz."""

    def transcribe(self, pcm: bytes) -> str: ...

    def wer(self, references: Sequence[str], hypotheses: Sequence[str]) -> float: ...

    def mos(self, pcm: bytes) -> float: ...


@dataclass(frozen=True)
class Score:
    """Result of a stage.

    Attributes:
        wer: Word error rate of all sentences.
        mos: Mean predicted opinion score, 1 to 5.
        real_time_factor: Seconds of work per second of audio; only of ``text``.
        first_audio_ms: Median time to the first audio; only of ``text``.
    """

    wer: float
    mos: float
    real_time_factor: float | None = None
    first_audio_ms: float | None = None


class Evaluation:
    """Scores of one bundle.

    Args:
        bundle: The bundle, with one voice; ``codes.json`` in it for the stages before ``text``.
        sentences: What is said.
        graph: File for the teacher's network.
        judge: Recognizer and quality score.
        out: Folder for the audio; None: none is written.
    """

    def __init__(
        self, bundle: Bundle, sentences: Sequence[str], graph: Path, judge: Judge, out: Path | None = None
    ) -> None:
        self._bundle = bundle
        self._sentences = sentences
        self._graph = graph
        self._judge = judge
        self._out = out
        self._teacher: tuple[UnitData, AudioData] | None = None

    def score(self, stage: str) -> Score:
        """Score one of ``STAGES``."""
        if stage == "text":
            return self._score_text()
        makers: dict[str, Callable[[], list[bytes]]] = {
            "teacher": self._teacher_audio,
            "copy": self._copied_audio,
            "codes": self._coded_audio,
        }
        return Score(*self._judged(stage, makers[stage]()))

    def _judged(self, stage: str, clips: list[bytes]) -> tuple[float, float]:
        if self._out is not None:
            for i, pcm in enumerate(clips):
                _write_wave(self._out / f"{stage}-{i:02d}.wav", pcm)
        recognized = [self._judge.transcribe(pcm) for pcm in clips]
        wer = self._judge.wer(self._sentences[: len(clips)], recognized)
        return round(wer, 4), round(float(np.mean([self._judge.mos(pcm) for pcm in clips])), 3)

    def _score_text(self) -> Score:
        root = self._bundle.path / VOICES_DIR
        name = stored_voices(root)[0]
        voice = load_voice(root, name)
        clips, seconds, first = [], 0.0, []
        engine = load_offline_engine(self._bundle.path, {name: voice}, device="cpu", threads=torch.get_num_threads())
        for i, text in enumerate(self._sentences):
            pipeline = TextPipeline(TextOptions())
            segments = [*pipeline.feed(text), *pipeline.end()]
            begin = perf_counter()
            parts: list[bytes] = []
            for event in speak(engine, SynthesisParams(name, seed=i), segments):
                if isinstance(event, Audio):
                    if not parts:
                        first.append(perf_counter() - begin)
                    parts.append(event.pcm)
            seconds += perf_counter() - begin
            clips.append(b"".join(parts))
        audio_s = sum(map(len, clips)) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        wer, mos = self._judged("text", clips)
        return Score(wer, mos, round(seconds / audio_s, 3), round(1000 * float(np.median(first)), 1))

    @property
    def _taught(self) -> tuple[UnitData, AudioData]:
        """The sentences as the teacher says them."""
        if self._teacher is None:
            units = read_units(self._sentences, self._graph, 1)
            book = CodeBook.load(self._bundle.path / CODES)
            self._teacher = units, say_all(units, book, self._graph, 1)
        return self._teacher

    def _teacher_audio(self) -> list[bytes]:
        _, audio = self._taught
        return [part.tobytes() for part in np.split(audio.audio, np.cumsum(audio.samples)[:-1])]

    def _copied_audio(self) -> list[bytes]:
        _, audio = self._taught
        mel = mel_of(audio, self._bundle.config)
        frames = np.cumsum(audio.samples // self._bundle.config.mel.hop_samples)[:-1]
        networks = Networks.load(self._bundle)
        return [vocode(networks, part.astype(np.float32)) for part in np.split(mel, frames)]

    def _coded_audio(self) -> list[bytes]:
        units, _ = self._taught
        book = CodeBook.load(self._bundle.path / CODES)
        codes = book.encode(book.numbers(units.units)[units.halves], units.pitch_hz)
        networks = Networks.load(self._bundle)
        voice = next(iter(bundled_voices(self._bundle.speaker_info, self._bundle.config).values()))
        speaker = torch.from_numpy(np.array(voice.embedding))[None]
        return [
            vocode(networks, flow_mel(networks.chunked_flow, units.of(codes, i), speaker))
            for i in range(len(units.tokens))
        ]


def evaluate(
    path: Path, sentences: Sequence[str], graph: Path, stages: Sequence[str], out: Path | None, threads: int
) -> dict[str, object]:
    """Score a bundle; the result can be written as JSON."""
    judge: Judge = importlib.import_module("tests.quality.judge").Judge()
    torch.set_num_threads(threads)
    evaluation = Evaluation(Bundle.open(path), sentences, graph, judge, out)
    scores = {stage: asdict(evaluation.score(stage)) for stage in stages}
    return {
        "bundle": str(path.name),
        "weights": weights_hash(path),
        "sentences": len(sentences),
        "threads": threads,
        "stages": scores,
    }


def weights_hash(path: Path) -> str:
    """Beginning of the SHA-256 of a bundle's weights: whether scores belong to them."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def vocode(networks: Networks, mel: np.ndarray[tuple[int, ...], np.dtype[np.floating]], seed: int = 0) -> bytes:
    """Audio of ``mel [frames, bins]`` as PCM, with the noise of utterances with ``seed``."""
    frames = torch.from_numpy(mel).T[None]
    audio, _ = networks.hift(frames, HashedNoise(torch.tensor([seed]), not networks.hift.dims.causal))
    return to_pcm(audio[0].numpy())


def _write_wave(path: Path, pcm: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(BYTES_PER_SAMPLE)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(pcm)
