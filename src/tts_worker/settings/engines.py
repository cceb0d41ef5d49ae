"""Engine settings by kind. A new engine adds a class and an entry in ``EngineSettings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tts_worker.errors import ConfigError, UnknownVoice
from tts_worker.section import Section
from tts_worker.voices.installed import cpu_voices, installed_voice, installed_voices


class HibariEngineSettings(Section):
    """Settings of the CPU engine.

    Attributes:
        voices: Installed voices to load besides ``heart``; None loads all. Each takes memory for its model.
    """

    kind: Literal["hibari"] = "hibari"
    max_utterances: int = Field(64, ge=1)
    threads: int = Field(1, ge=1, le=64)
    voices: tuple[str, ...] | None = None

    @field_validator("voices")
    @classmethod
    def _check_voices(cls, voices: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in voices or ():
            if name not in cpu_voices(voices):
                raise ValueError(f"no voice {name!r} is installed; installed: {', '.join(cpu_voices()) or 'none'}")
        return voices

    def installed_packs(self) -> dict[str, Path]:
        """Return the voice packs of the further voices, by name. Raises BundleError."""
        return cpu_voices(self.voices)


class ToneEngineSettings(Section):
    kind: Literal["tone"] = "tone"
    max_utterances: int = Field(256, ge=1)
    ms_per_char: int = Field(60, ge=1, le=1_000)
    cost_per_audio_s: float = Field(0.0, ge=0, le=10)


def _only_installed_voice() -> Path:
    try:
        return installed_voice(None)[1]
    except UnknownVoice as error:
        raise ConfigError(f"an engine of kind cosyvoice needs bundle, a model directory ({error.message})") from None


class CosyVoiceEngineSettings(Section):
    """Settings of a CosyVoice engine.

    Attributes not listed here are those of ``EngineOptions`` and ``StreamingConfig`` in
    ``tts_worker.engine.cosyvoice.execution.settings``; None selects a value for the device.

    Attributes:
        bundle: The model directory, or the name of an installed voice; default: that of the only installed voice.
        voices: Directory of stored voices; None selects the one in the bundle.
        device: ``auto`` selects CUDA if available.
        half: bfloat16 for the language model and the flow; None enables it on CUDA.
        threads: CPU threads; None uses all cores but one.
        backend: Runs the flow and the vocoder; ``onnxruntime`` and ``tensorrt`` use the graphs of
            ``tts-worker export onnx``.
        acceleration: ``auto`` takes the fast paths that give PyTorch's numbers in a check on this machine; ``off``
            computes with PyTorch's operators, one after the other.
        memory_gb: Memory for the caches of all utterances.
    """

    kind: Literal["cosyvoice"] = "cosyvoice"
    bundle: Path = Field(default_factory=_only_installed_voice)
    voices: Path | None = None
    rl: bool = False
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    half: bool | None = None
    threads: int | None = Field(None, ge=1, le=256)
    backend: Literal["torch", "onnxruntime", "tensorrt"] = "torch"
    acceleration: Literal["auto", "off"] = "auto"
    max_utterances: int | None = Field(None, ge=1, le=4_096)
    text_mode: Literal["clause", "interleaved"] = "clause"
    max_segment_s: int = Field(30, ge=4, le=240)
    memory_gb: float | None = Field(None, gt=0, allow_inf_nan=False)

    @field_validator("acceleration", mode="before")
    @classmethod
    def _name_acceleration(cls, mode: object) -> object:
        return "off" if mode is False else mode  # as YAML reads off

    @field_validator("bundle", mode="before")
    @classmethod
    def _find_installed_voice(cls, bundle: object) -> object:
        is_name = isinstance(bundle, str) and Path(bundle).name == bundle and not Path(bundle).exists()
        return installed_voices().get(str(bundle), bundle) if is_name else bundle


EngineSettings = Annotated[
    HibariEngineSettings | ToneEngineSettings | CosyVoiceEngineSettings,
    Field(discriminator="kind"),
]

ENGINE_KINDS = ("hibari", "tone", "cosyvoice")
