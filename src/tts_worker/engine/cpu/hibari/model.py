"""The network of the CPU voice: model loading and the call from phoneme ids to spectra and durations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases.mandarin import MandarinPhonemizer
from tts_worker.engine.cpu.phrases.onnx_session import open_session
from tts_worker.engine.cpu.phrases.text import EnglishG2P, Phonemizer
from tts_worker.errors import EngineFault
from tts_worker.text.language import primary_tag
from tts_worker.voices.installed import CPU_FAMILY, FOLDER
from tts_worker.voices.named_mixes import Mix, mix_of

if TYPE_CHECKING:
    from tts_worker.voices.packs import VoicePack

VOICE = "heart"
AMERICAN, BRITISH, MANDARIN = "en-US", "en-GB", "zh"
MODEL_SHA256 = "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"
"""hibari.onnx of hibari-tts 0.2.1, the voice "heart"."""

REPAIR = 'pip install --force-reinstall --no-deps "hibari-tts==0.2.1"'
_REPAIR_VOICE = "install the package of the voice again"

OUTPUTS = ("/head/Add_output_0", "f0", "/Clip_output_0")
"""All parts of a frame side by side, the pitch, and frame pairs per phoneme id.

The first and the last are inner tensors; the model declares transposed slices of the first.
"""
_FRAMES_PER_DURATION = 2

VOICE_INPUT = "voice"
"""Input of a network of several voices: what a voice has for itself."""

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
        network: A model with the inputs and outputs of hibari.onnx and the input ``VOICE_INPUT``; of several voices.
        vector: File of numpy with what the voice has for itself ``[V] float16``.
        sha256: Hash of both files, one after the other.
        language: BCP-47 tag of its accent, or of the language that it speaks beside English.
        gender: As in its voice pack.
        loudness_lufs: Likewise; None if that has none.
    """

    name: str
    network: Path
    vector: Path
    sha256: str
    language: str = AMERICAN
    gender: str | None = None
    loudness_lufs: float | None = None


class HibariModel:
    """The loaded networks of all voices; one per process. Loading takes a third of a second.

    Further voices share a network or several: 6 MB of memory, and 0.15 MB for each voice.

    Args:
        model_path: The model of the voice ``heart``; None selects the installed one.
        threads: Threads of the network; one is fastest for a model this small.
        voices: Further voices.

    Attributes:
        voices: Names of the voices, ``heart`` first.
        mixable: Those of which mixes can be named: the voices of each network but that of ``heart``.

    Raises:
        EngineFault: The voice is not installed, a model is missing, not one of this engine or does not have the
            expected hash, or two voices have one name.
    """

    def __init__(self, model_path: Path | None = None, threads: int = 1, voices: Iterable[VoiceModel] = ()) -> None:
        self._assets = _assets()
        self._languages = {VOICE: AMERICAN}
        heart = _heart_pack()
        self._genders = {VOICE: heart.gender}
        self._levels_lufs = {VOICE: heart.loudness_lufs}
        self._networks = {VOICE: _heart(model_path or default_model_path(), threads)}
        self._vectors: dict[str, Floats] = {}
        shared: dict[Path, list[VoiceModel]] = {}
        for voice in voices:
            if voice.name in self._languages:
                raise EngineFault(f"an installed package has another voice {voice.name}; uninstall it")
            self._languages[voice.name] = voice.language
            self._genders[voice.name] = voice.gender
            self._levels_lufs[voice.name] = voice.loudness_lufs
            shared.setdefault(voice.network, []).append(voice)
        for own in shared.values():
            session, vectors = _open_shared(own, threads)
            self._networks |= dict.fromkeys(vectors, session)
            self._vectors |= vectors
        self.voices = tuple(self._languages)
        self.mixable = tuple(tuple(voice.name for voice in own) for own in shared.values() if len(own) > 1)
        self._phonemizers: dict[str, Phonemizer] = {}

    @property
    def phonemizer(self) -> Phonemizer:
        """The phonemizer of the voice ``heart``."""
        return self.phonemizer_in(AMERICAN)

    def phonemizer_of(self, voice: str) -> Phonemizer:
        """Return what converts text to phonemes in the accent of a voice, or of the first one of a mix."""
        return self.phonemizer_in(self._languages[self._first(voice)])

    def speaks_mandarin(self, voice: str) -> bool:
        """Whether a voice reads Han characters; all read English."""
        return is_mandarin(self._languages[voice])

    def mandarin_voice(self, voice: str) -> str | None:
        """Return the voice that says Han characters for a voice: itself, else one of its gender, else the first one.

        A mix counts as its first voice, but does not say them itself.
        """
        speakers = [name for name in self.voices if self.speaks_mandarin(name)]
        if voice in speakers:
            return voice
        alike = [name for name in speakers if self._genders[name] == self._genders[self._first(voice)]]
        return next(iter(alike or speakers), None)

    def level_change_db(self, voice: str, like: str) -> float:
        """Return the gain with which a voice is as loud as another one; 0 if the level of one is not known."""
        level = self._levels_lufs[voice]
        others = [(self._levels_lufs[part], share) for part, share in self._parts(like)]
        known = [share * (other - level) for other, share in others if level is not None and other is not None]
        return sum(known) if len(known) == len(others) else 0.0

    def phonemizer_in(self, language: str) -> Phonemizer:
        """Return the phonemizer of an accent or language; the American one, unless it is British or Mandarin.

        Its first use takes half a second to load the dictionaries.

        Raises:
            MissingPackage: A package that reads Mandarin is not installed.
        """
        is_british = language.lower().replace("_", "-") == BRITISH.lower()
        accent = MANDARIN if is_mandarin(language) else BRITISH if is_british else AMERICAN
        if accent not in self._phonemizers:
            vocabulary = json.loads((self._assets / "vocab.json").read_text(encoding="utf-8"))
            if accent == AMERICAN:
                made = Phonemizer(EnglishG2P.load(), vocabulary)
            elif accent == BRITISH:
                made = Phonemizer(self.phonemizer.english.load_british(), vocabulary)
            else:
                made = MandarinPhonemizer(self.phonemizer.english, vocabulary)
            self._phonemizers[accent] = made
        return self._phonemizers[accent]

    def predict(self, ids: Sequence[int], speed: float | Floats, voice: str = VOICE) -> Spectra:
        """Run the network; takes about 0.2 ms of one core per id.

        Args:
            ids: Phoneme ids including both pads.
            speed: 1.0 is the normal speed; one for all or ``[L]``.
            voice: One of ``voices``, or a mix of ``mixable`` by name.
        """
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.atleast_1d(np.asarray(speed, np.float32))}
        if voice != VOICE:
            inputs[VOICE_INPUT] = self._vector_of(voice)
        head, f0_hz, durations = self._networks[self._first(voice)].run(OUTPUTS, inputs)
        return Spectra(
            parts=head.reshape(head.shape[1], FREE_PHASE + 1, -1),
            f0_hz=f0_hz[0],
            duration_frames=np.rint(durations).astype(np.int64) * _FRAMES_PER_DURATION,
        )

    def _parts(self, voice: str) -> Mix:
        """Return the voices of a mix and their shares, or the voice alone."""
        return (voice not in self._languages and mix_of(voice)) or ((voice, 1.0),)

    def _first(self, voice: str) -> str:
        """Return the first voice of a mix, or the voice."""
        return self._parts(voice)[0][0]

    def _vector_of(self, voice: str) -> Floats:
        """Return the vector of a voice, or the mean of those of a mix."""
        if (vector := self._vectors.get(voice)) is not None:
            return vector
        mixed = sum(np.float32(share) * self._vectors[part] for part, share in mix_of(voice) or ())
        return np.asarray(mixed, np.float32)


def is_mandarin(language: str) -> bool:
    """Whether a BCP-47 tag is one of Mandarin."""
    return primary_tag(language) == MANDARIN


def _heart_pack() -> VoicePack:
    """Return what ships with the worker about ``heart``; nothing is known without it."""
    # Imported late: the constants of this module need no pydantic.
    from tts_worker.settings.packaged import packaged
    from tts_worker.voices.packs import VoicePack, read_voicepack

    folder = packaged(f"{FOLDER}/{CPU_FAMILY}/{VOICE}")
    return VoicePack(name=VOICE, family=CPU_FAMILY) if folder is None else read_voicepack(folder).pack


def _heart(path: Path, threads: int) -> Any:
    model = _read(path, VOICE, REPAIR)
    if hashlib.sha256(model).hexdigest() != MODEL_SHA256:
        raise _other_hash(VOICE, REPAIR)
    return _open(model, threads, path, VOICE, REPAIR)


def _open_shared(voices: Sequence[VoiceModel], threads: int) -> tuple[Any, dict[str, Floats]]:
    """Return the network that voices share, loaded, and the vector of each."""
    path = voices[0].network
    network = _read(path, voices[0].name, _REPAIR_VOICE)
    digest = hashlib.sha256(network)
    vectors = {}
    for voice in voices:
        vector = _read(voice.vector, voice.name, _REPAIR_VOICE)
        both = digest.copy()
        both.update(vector)
        if both.hexdigest() != voice.sha256:
            raise _other_hash(voice.name, _REPAIR_VOICE)
        try:
            vectors[voice.name] = np.load(BytesIO(vector), allow_pickle=False).astype(np.float32)
        except ValueError as error:
            raise EngineFault(f"{voice.vector.name} of the voice {voice.name} is damaged: {error}") from None
    return _open(network, threads, path, voices[0].name, _REPAIR_VOICE), vectors


def _read(path: Path, voice: str, repair: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineFault(f"{path.name} of the voice {voice} cannot be read ({error.strerror}); {repair}") from None


def _other_hash(voice: str, repair: str) -> EngineFault:
    return EngineFault(f"the model of the voice {voice} does not match its expected hash; {repair}")


def _open(model: bytes, threads: int, path: Path, voice: str, repair: str) -> Any:
    try:
        return open_session(model, OUTPUTS, threads, vectors=("speed",))
    except Exception as error:  # ONNX Runtime has a class for each of its codes
        raise EngineFault(
            f"the model {path.name} of the voice {voice} is not one of this engine: {str(error)[:300]}; {repair}"
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
