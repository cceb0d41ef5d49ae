"""The teacher: the CPU voice (package hibari-tts), with the durations and the pitch that its network computes.

A frame of the teacher has 300 samples, a unit is a phoneme (with its stress) or a pause. Audio is cut so that speech
begins after 62 ms and ends 50 ms after the last phoneme, in whole tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

FRAME_SAMPLES = 300
HALF_SAMPLES = 480  # 20 ms: half a token, one frame of mel
TOKEN_SAMPLES = 2 * HALF_SAMPLES
RATE_HZ = 24_000
PAUSES = frozenset(" .,!?;:—…")
MIN_PITCH_HZ = 40.0
_STRESS = frozenset("ˈˌ")
_LATENCY_SAMPLES = 600  # half a window of the teacher's synthesis
_LEAD_IN_SAMPLES = 1500
_LEAD_OUT_SAMPLES = 1200
_MAX_FINAL_FRAMES = 16
_MAX_HARMONIC_HZ = 11_000.0
PART_HOP_SAMPLES = 240
PART_BIN_HZ = 40
PART_BINS = 151
_DURATIONS = "/Clip_output_0"  # of each id in frames of 25 ms, before rounding
_SPECTRA = ("lh", "theta", "ln", "lr", "phi")

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sentence:
    """A sentence as the teacher says it.

    Attributes:
        text: What is said.
        phonemes: In the teacher's alphabet.
        units: Phonemes with their stress, and pauses.
        frames: Duration of each unit.
        lead_frames: Silence before the first unit.
        pitch_hz: Pitch of each frame; not voiced below ``MIN_PITCH_HZ``.
    """

    text: str
    phonemes: str
    units: tuple[str, ...]
    frames: Ints
    lead_frames: int
    pitch_hz: Floats

    @property
    def span(self) -> tuple[int, int]:
        """First sample and number of samples of the cut audio, whole tokens."""
        begin = max(0, self.lead_frames * FRAME_SAMPLES - _LATENCY_SAMPLES - _LEAD_IN_SAMPLES)
        last = max(i for i, unit in enumerate(self.units) if unit not in PAUSES)
        frames = int(self.frames[:last].sum()) + min(int(self.frames[last]), _MAX_FINAL_FRAMES)
        end = (self.lead_frames + frames) * FRAME_SAMPLES - _LATENCY_SAMPLES + _LEAD_OUT_SAMPLES
        return begin, -(-(end - begin) // TOKEN_SAMPLES) * TOKEN_SAMPLES

    def unit_of_half(self) -> Ints:
        """Index of the unit in the middle of each half token: ``[2*tokens]``."""
        begin, samples = self.span
        middle = begin + np.arange(samples // HALF_SAMPLES) * HALF_SAMPLES + HALF_SAMPLES // 2 + _LATENCY_SAMPLES
        frame = middle / FRAME_SAMPLES - self.lead_frames
        return np.clip(np.searchsorted(np.cumsum(self.frames), frame, side="right"), 0, len(self.units) - 1)

    def pitch_of_half(self) -> Floats:
        """Pitch in the middle of each half token, 0 where it is not voiced: ``[2*tokens]``."""
        begin, samples = self.span
        at = (begin + np.arange(samples // HALF_SAMPLES) * HALF_SAMPLES + HALF_SAMPLES // 2) / FRAME_SAMPLES
        last = len(self.pitch_hz) - 1
        left = self.pitch_hz[np.clip(np.floor(at).astype(int), 0, last)]
        right = self.pitch_hz[np.clip(np.ceil(at).astype(int), 0, last)]
        nearest = self.pitch_hz[np.clip(np.rint(at).astype(int), 0, last)]
        between = np.where((left > 0) & (right > 0), left + (right - left) * (at - np.floor(at)), nearest)
        return np.where(between < MIN_PITCH_HZ, 0, between).astype(np.float32)

    def place_of_unit(self) -> Ints:
        """Character of ``phonemes`` at which each unit begins."""
        lengths = np.array([len(unit) for unit in self.units])
        places: Ints = np.cumsum(lengths) - lengths
        return places


@dataclass(frozen=True)
class SpeechParts:
    """What the cut audio consists of.

    Attributes:
        noise: ``[samples]``: the part that does not depend on the pitch, with noise or with phases of the network.
        harmonics: ``[samples / PART_HOP_SAMPLES + 1, PART_BINS]`` log amplitude of a harmonic at a time and frequency.
    """

    noise: Floats
    harmonics: Floats


class Teacher:
    """The CPU voice.

    Args:
        graph: File for its network with the durations as a further output; written if it is missing, for which the
            package onnx is needed.
    """

    def __init__(self, graph: Path) -> None:
        import onnxruntime
        from hibari import Hibari

        self._voice = Hibari()
        if not graph.is_file():
            _write_graph(Path(self._voice.model_path), graph)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._partly = onnxruntime.RunOptions()
        self._partly.only_execute_path_to_fetches = True

    def read(self, text: str) -> Sentence | None:
        """Phonemize ``text`` and compute durations and pitch; None if that is not one sentence with speech."""
        sentences = self._voice.phonemize(text)
        if len(sentences) != 1:
            return None
        phonemes = "".join(char for char in sentences[0] if char in self._voice.vocab)
        if not any(char not in PAUSES and char not in _STRESS for char in phonemes):
            return None
        durations, pitch = self._session.run([_DURATIONS, "f0"], self._inputs(phonemes), self._partly)
        frames = (np.rint(durations).astype(np.int64) * 2).reshape(-1)
        units, unit_frames = _join_stress(phonemes, frames[1:-1])
        return Sentence(text, phonemes, units, unit_frames, int(frames[0]), pitch[0])

    def say(self, sentence: Sentence, seed: int, pitch_hz: Floats) -> Floats:
        """Synthesize the cut audio with ``pitch_hz [2*tokens]``, 0 where it is not voiced.

        The pulses have the phase that the vocoder's harmonic source has for the same pitch from the beginning of the
        audio, which makes the waveform predictable from mel and pitch.
        """
        from hibari import dsp

        begin, samples = sentence.span
        outputs = self._session.run([*_SPECTRA, "f0"], self._inputs(sentence.phonemes))
        *spectra, pitch = (output[0] for output in outputs)
        excitation = np.zeros(len(pitch) * FRAME_SAMPLES, np.float32)
        pulses = _locked_pulses(pitch_hz)[: len(excitation) - begin]
        excitation[begin : begin + len(pulses)] = pulses
        with _replaced(dsp, "pulses", lambda _: excitation):
            return _cut(dsp.synth(*spectra, pitch, np.random.default_rng(seed)), begin, samples)

    def say_parts(self, sentence: Sentence, seed: int) -> SpeechParts:
        """Parts of the audio of ``say`` with the same ``seed``."""
        from hibari import dsp

        begin, samples = sentence.span
        outputs = self._session.run([*_SPECTRA, "f0"], self._inputs(sentence.phonemes))
        *spectra, pitch = (output[0] for output in outputs)
        levels = spectra[0].copy()  # what follows writes into its arguments
        with _replaced(dsp, "pulses", lambda _: np.zeros(len(pitch) * FRAME_SAMPLES, np.float32)):
            noise = _cut(dsp.synth(*spectra, pitch, np.random.default_rng(seed)), begin, samples)
        at = (begin + np.arange(samples // PART_HOP_SAMPLES + 1) * PART_HOP_SAMPLES) / FRAME_SAMPLES
        return SpeechParts(noise, levels_at(levels, at))

    def _inputs(self, phonemes: str) -> dict[str, Any]:
        return {"ids": np.asarray([self._voice.ids(phonemes)], np.int64), "speed": np.ones(1, np.float32)}


def _cut(audio: Floats, begin: int, samples: int) -> Floats:
    cut = np.zeros(samples, np.float32)
    part = audio[begin : begin + samples]
    cut[: len(part)] = part
    return cut


def levels_at(levels: Floats, frames: npt.NDArray[np.float64]) -> Floats:
    """``[frames, PART_BINS]`` log amplitudes of harmonics from the teacher's ``[bins, T]``, a bin each 20 Hz."""
    last = levels.shape[1] - 1
    left = np.clip(np.floor(frames).astype(int), 0, last)
    share = np.clip(frames - left, 0, 1)
    bins = levels[: 2 * PART_BINS : 2]
    between = bins[:, left] * (1 - share) + bins[:, np.minimum(left + 1, last)] * share
    amplitudes: Floats = (between.T - math.log(FRAME_SAMPLES)).astype(np.float32)
    return amplitudes


@functools.lru_cache
def lexicon(*names: str) -> frozenset[str]:
    """Words whose pronunciation the teacher looks up, in lower case: of ``gold`` (checked) and ``silver``."""
    import gzip
    import json

    import hibari

    words: set[str] = set()
    for name in names:
        file = Path(cast(str, hibari.__file__)).parent / "assets" / f"lexicon_us_{name}.json.gz"
        words.update(word.lower() for word in json.loads(gzip.decompress(file.read_bytes())))
    return frozenset(words)


def _write_graph(source: Path, target: Path) -> None:
    import onnx

    model = onnx.load(str(source))
    model.graph.output.append(onnx.ValueInfoProto(name=_DURATIONS))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(model.SerializeToString())


def _join_stress(phonemes: str, frames: Ints) -> tuple[tuple[str, ...], Ints]:
    """Join stress marks to the phonemes that follow."""
    units: list[str] = []
    lengths: list[int] = []
    mark, mark_frames = "", 0
    for symbol, count in zip(phonemes, frames.tolist(), strict=True):
        mark, mark_frames = mark + symbol, mark_frames + count
        if symbol not in _STRESS:
            units.append(mark)
            lengths.append(mark_frames)
            mark, mark_frames = "", 0
    return tuple(units), np.array(lengths)


def _locked_pulses(pitch_hz: Floats) -> Floats:
    """Band-limited pulses for ``pitch_hz`` per half token, with the phase of ``Source.harmonics``.

    The phase is summed per frame and linear between the middles of frames. All harmonics have the same amplitude:
    their sum is a Dirichlet kernel.
    """
    cycles = np.cumsum(pitch_hz.astype(np.float64)) * HALF_SAMPLES / RATE_HZ
    at = (np.arange(len(pitch_hz) * HALF_SAMPLES) + 0.5) / HALF_SAMPLES - 0.5
    angle = np.interp(at, np.arange(len(pitch_hz)), cycles) % 1 * 2 * np.pi
    hz = np.repeat(np.maximum(pitch_hz, MIN_PITCH_HZ), HALF_SAMPLES)
    count = np.floor(_MAX_HARMONIC_HZ / hz) + 0.5
    below = 2 * np.sin(angle / 2)
    is_peak = np.abs(below) <= 2e-3
    pulses = np.where(is_peak, count, np.sin(count * angle) / np.where(is_peak, 1, below)) - 0.5
    return np.where(np.repeat(pitch_hz > 0, HALF_SAMPLES), pulses, 0).astype(np.float32)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
