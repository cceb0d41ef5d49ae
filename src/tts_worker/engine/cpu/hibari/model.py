"""The network of the CPU voice: model loading and the call from phoneme ids to spectra and durations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases.onnx_session import open_session
from tts_worker.engine.cpu.phrases.text import EnglishG2P, Phonemizer
from tts_worker.errors import EngineFault

VOICE = "heart"
AMERICAN, BRITISH = "en-US", "en-GB"
MODEL_SHA256 = "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"
"""hibari.onnx of hibari-tts 0.2.1, the voice "heart"."""

REPAIR = 'pip install --force-reinstall --no-deps "hibari-tts==0.2.1"'

OUTPUTS = ("/head/Add_output_0", "f0", "/Clip_output_0")
"""All parts of a frame side by side, the pitch, and frame pairs per phoneme id.

The first and the last are inner tensors; the model declares transposed slices of the first.
"""
_FRAMES_PER_DURATION = 2

HARMONIC, HARMONIC_PHASE, NOISE, FREE, FREE_PHASE = range(5)
"""Parts of a spectrum. The model calls them ``lh``, ``theta`` (before tanh), ``ln``, ``lr`` and ``phi``.

Magnitudes are logarithms, phases are in rad.
"""


@dataclass(frozen=True, slots=True)
class Spectra:
    """Output of the network for a phrase of L phoneme ids and F frames.

    Attributes:
        parts: ``[F, 5, 601] float32``; the second index is ``HARMONIC`` to ``FREE_PHASE``.
        f0_hz: Pitch ``[F] float32``, 0 where unvoiced.
        duration_frames: Frames per phoneme id ``[L] int64``; the sum is F.
        gains: Factor of each frame ``[F] float32``; None leaves the level as it is.
    """

    parts: Floats
    f0_hz: Floats
    duration_frames: NDArray[np.int64]
    gains: Floats | None = None

    @property
    def frames(self) -> int:
        return len(self.f0_hz)


@dataclass(frozen=True, slots=True)
class VoiceModel:
    """Weights of a further voice.

    Attributes:
        name: Name of the voice.
        path: A model with the inputs and outputs of hibari.onnx.
        sha256: Its hash.
        language: BCP-47 tag of its accent.
    """

    name: str
    path: Path
    sha256: str
    language: str = AMERICAN


class HibariModel:
    """The loaded networks of all voices; one per process. Loading takes a third of a second.

    A further voice takes 6 MB of memory, and its file of 8 MB stays in the page cache, where all workers share it.

    Args:
        model_path: The model of the voice ``heart``; None selects the installed one.
        threads: Threads of the network; one is fastest for a model this small.
        voices: Further voices.

    Attributes:
        voices: Names of the voices, ``heart`` first.

    Raises:
        EngineFault: The voice is not installed, a model is missing, not one of this engine or does not have the
            expected hash, or two voices have one name.
    """

    def __init__(self, model_path: Path | None = None, threads: int = 1, voices: Iterable[VoiceModel] = ()) -> None:
        self._assets = _assets()
        voices = tuple(voices)
        heart = VoiceModel(VOICE, model_path or default_model_path(), MODEL_SHA256)
        self._sessions = {VOICE: _open(heart, threads, REPAIR)}
        for voice in voices:
            if voice.name in self._sessions:
                raise EngineFault(f"an installed package has another voice {voice.name}; uninstall it")
            self._sessions[voice.name] = _open(voice, threads, "install the package of the voice again")
        self.voices = tuple(self._sessions)
        self._languages = {voice.name: voice.language for voice in (heart, *voices)}
        self._phonemizers: dict[str, Phonemizer] = {}

    @property
    def phonemizer(self) -> Phonemizer:
        """The phonemizer of the voice ``heart``."""
        return self.phonemizer_in(AMERICAN)

    def phonemizer_of(self, voice: str) -> Phonemizer:
        """Return what converts text to the network's phonemes in the accent of a voice."""
        return self.phonemizer_in(self._languages[voice])

    def phonemizer_in(self, language: str) -> Phonemizer:
        """Return the phonemizer of an accent, the American one for all that are not British.

        Its first use takes half a second to load the dictionaries.
        """
        is_british = language.lower().replace("_", "-") == BRITISH.lower()
        accent = BRITISH if is_british else AMERICAN
        if accent not in self._phonemizers:
            vocabulary = json.loads((self._assets / "vocab.json").read_text(encoding="utf-8"))
            english = self.phonemizer.english.load_british() if is_british else EnglishG2P.load()
            self._phonemizers[accent] = Phonemizer(english, vocabulary)
        return self._phonemizers[accent]

    def predict(self, ids: Sequence[int], speed: float | Floats, voice: str = VOICE) -> Spectra:
        """Run the network; takes about 0.2 ms of one core per id.

        Args:
            ids: Phoneme ids including both pads.
            speed: 1.0 is the normal speed; one for all or ``[L]``.
            voice: One of ``voices``.
        """
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.atleast_1d(np.asarray(speed, np.float32))}
        head, f0_hz, durations = self._sessions[voice].run(OUTPUTS, inputs)
        return Spectra(
            parts=head.reshape(head.shape[1], FREE_PHASE + 1, -1),
            f0_hz=f0_hz[0],
            duration_frames=np.rint(durations).astype(np.int64) * _FRAMES_PER_DURATION,
        )


def _open(voice: VoiceModel, threads: int, repair: str) -> Any:
    try:
        model = voice.path.read_bytes()
    except OSError as error:
        raise EngineFault(f"the model of the voice {voice.name} cannot be read ({error.strerror}); {repair}") from None
    if hashlib.sha256(model).hexdigest() != voice.sha256:
        raise EngineFault(
            f"the model {voice.path.name} of the voice {voice.name} does not match its expected hash; {repair}"
        )
    try:
        file = None if voice.name == VOICE else voice.path
        return open_session(model, OUTPUTS, threads, file, vectors=("speed",))
    except Exception as error:  # ONNX Runtime has a class for each of its codes
        raise EngineFault(
            f"the model {voice.path.name} of the voice {voice.name} is not one of this engine: {str(error)[:300]}"
        ) from None


def default_model_path() -> Path:
    """Return the model of the installed voice. Raises EngineFault."""
    return _assets() / "hibari.onnx"


def _assets() -> Path:
    try:
        import hibari
    except ImportError:
        raise EngineFault(f"the CPU voice is not installed; {REPAIR}") from None
    return Path(hibari.__file__).parent / "assets"
