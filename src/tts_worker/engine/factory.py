"""Builds the engines of the settings. Picklable, so that an engine can be built in a separate process."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tts_worker.engine.base import Engine
from tts_worker.engine.cosyvoice.voices.enrolled import EnrolledVoices
from tts_worker.errors import BundleError, MissingExtra, OutOfMemory
from tts_worker.settings import CosyVoiceEngineSettings, EngineSettings, HibariEngineSettings, ToneEngineSettings
from tts_worker.types import Alignment, EngineInfo
from tts_worker.version import __version__
from tts_worker.voices.files import VOICES_DIR, stored_voices
from tts_worker.voices.installed import CPU_NETWORK, CPU_VECTOR
from tts_worker.voices.packs import METADATA, read_voicepack

_SAMPLED_BYTES = 65_536


@dataclass(frozen=True)
class EngineFactory:
    """Builds an engine when called, on the engine's thread; heavy imports happen there.

    Attributes:
        settings: Settings of the engine.
        enrolled: Voices enrolled at run time, for engines that can enroll voices.
        memory_share: Part of a GPU's memory that the engine may use.
    """

    settings: EngineSettings
    enrolled: EnrolledVoices | None = None
    memory_share: float = 1.0

    def __call__(self) -> Engine:
        if isinstance(self.settings, HibariEngineSettings):
            return _hibari(self.settings)
        if isinstance(self.settings, CosyVoiceEngineSettings):
            return _cosyvoice(self.settings, self.enrolled, self.memory_share)
        return open_tone(self.settings)


def enroller_of(settings: EngineSettings) -> EnrolledVoices | None:
    """Return the voices that are enrolled on an engine at run time, or None where its voices are fixed."""
    if not isinstance(settings, CosyVoiceEngineSettings):
        return None
    return EnrolledVoices(settings.bundle, rl=settings.rl, device=settings.device)


def can_enroll(settings: EngineSettings) -> bool:
    """Whether an engine makes voices of recordings and converts speech: its bundle may lack the models for that."""
    if not isinstance(settings, CosyVoiceEngineSettings):
        return False
    return (settings.bundle / "campplus.onnx").is_file() and any(settings.bundle.glob("speech_tokenizer_*.onnx"))


def info_before_loading(name: str, settings: EngineSettings) -> EngineInfo:
    """Describe an engine before it is loaded, well enough to route a session to it."""
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...]
    if isinstance(settings, HibariEngineSettings):
        from tts_worker.engine.cpu.hibari.engine import LANGUAGE
        from tts_worker.engine.cpu.hibari.model import MANDARIN, VOICE, is_mandarin

        packs = settings.installed_packs()
        voices = (VOICE, *packs)
        speaks_mandarin = any(
            is_mandarin(tag) for folder in packs.values() for tag in read_voicepack(folder).pack.languages
        )
        languages = (LANGUAGE, MANDARIN) if speaks_mandarin else (LANGUAGE,)
    elif isinstance(settings, ToneEngineSettings):
        from tts_worker.engine.tone import VOICES

        voices = tuple(VOICES)
        languages = ("mul",)
    else:
        # The speakers and languages of the model are known only after loading; they are checked then.
        voices = tuple(stored_voices(settings.voices or settings.bundle / VOICES_DIR))
        languages = ("mul",)
    return EngineInfo(name, voices, languages, Alignment.NONE, settings.max_utterances or 1)


def model_version(settings: EngineSettings) -> str:
    """Return a short hash of a model directory, or the version of this package for engines without one; blocks.

    The hash covers names and sizes of all files except stored voices, and the first and last 64 KiB of each: a whole
    directory would take seconds to read. A file whose middle alone was changed is not noticed.
    """
    if not isinstance(settings, CosyVoiceEngineSettings):
        return __version__
    digest = hashlib.sha256()
    voices = stored_voices_dir(settings)
    for file in sorted(settings.bundle.rglob("*")):
        if not file.is_file() or (voices is not None and voices in file.parents):
            continue
        with open(file, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            digest.update(f"{file.relative_to(settings.bundle).as_posix()}\0{size}\0".encode())
            for start in (0, max(_SAMPLED_BYTES, size - _SAMPLED_BYTES)):
                stream.seek(start)
                digest.update(stream.read(_SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def stored_voices_dir(settings: EngineSettings) -> Path | None:
    """Return the directory of the stored voices of an engine; None for an engine that stores none."""
    if not isinstance(settings, CosyVoiceEngineSettings):
        return None
    return settings.voices or settings.bundle / VOICES_DIR


def _hibari(settings: HibariEngineSettings) -> Engine:
    from tts_worker.engine.cpu.hibari.engine import HibariEngine
    from tts_worker.engine.cpu.hibari.model import AMERICAN, HibariModel, VoiceModel

    voices = []
    for name, folder in settings.installed_packs().items():
        pack = read_voicepack(folder).pack
        if pack.model_sha256 is None:
            raise BundleError(f"{folder / METADATA}: model_sha256 is missing")
        files = folder.parent / CPU_NETWORK, folder / CPU_VECTOR
        language = pack.languages[0] if pack.languages else AMERICAN
        voices.append(VoiceModel(name, *files, pack.model_sha256, language, pack.gender, pack.loudness_lufs))
    model = HibariModel(threads=settings.threads, voices=voices)
    return HibariEngine(model, max_utterances=settings.max_utterances)


def _cosyvoice(settings: CosyVoiceEngineSettings, enrolled: EnrolledVoices | None, memory_share: float) -> Engine:
    try:
        from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("the CosyVoice engine", "cosyvoice") from None
    import torch

    options = LoadOptions(**settings.model_dump(exclude={"kind"}), memory_share=memory_share)
    try:
        return load_engine(options, enrolled=enrolled)
    except torch.OutOfMemoryError:
        raise OutOfMemory("the device has no memory for this model") from None


def open_tone(settings: ToneEngineSettings) -> Engine:
    from tts_worker.engine.tone import ToneEngine, ToneSettings

    return ToneEngine(
        ToneSettings(
            ms_per_char=settings.ms_per_char,
            cost_per_audio_s=settings.cost_per_audio_s,
            max_utterances=settings.max_utterances,
        )
    )
