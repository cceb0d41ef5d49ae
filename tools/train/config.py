"""Settings of a training, from YAML to frozen dataclasses."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tts_worker.errors import ConfigError

T = TypeVar("T")

NO_END = 1 << 60
"""Step that no training reaches."""


@dataclass(frozen=True)
class TextConfig:
    """Where the sentences come from.

    Attributes:
        folder: Folder with unpacked Debian packages (``text.SOURCES``), relative to the run; missing ones are skipped.
        lines: Sentences in total.
        generated: Share of sentences of the generator.
        random_words: Share of lists of random words of the teacher's lexicon.
    """

    folder: str = "text"
    lines: int = 40_000
    generated: float = 0.15
    random_words: float = 0.15


@dataclass(frozen=True)
class DataConfig:
    """Speech data.

    Attributes:
        audio_hours: Rendered audio, for flow and vocoder.
        pitch_buckets: Levels of pitch that the codes of voiced tokens distinguish.
        codes: Number of codes, at most.
        held_out_lines: Lines that are used for held-out scores only.
        lexicon: Whether the bundle respells all words of the teacher's lexicon, or those of the sentences only.
    """

    audio_hours: float = 2.5
    pitch_buckets: int = 4
    codes: int = 4096
    held_out_lines: int = 100
    lexicon: bool = True


@dataclass(frozen=True)
class SizeConfig:
    """Sizes of the networks.

    Attributes:
        text_vocab: Tokens of the text tokenizer that is trained.
        lm: Width, layers, heads, key-value heads, feed-forward width.
        encoder: Width, heads, feed-forward width, layers.
        unet: Channels, heads, head size, blocks, mid stages.
        vocoder: Base channels.
        vocoder_kernels: Kernels of the residual blocks.
        vocoder_dilations: Dilations of each of them; none: 1, 3, 5.
        source_filter: Whether the vocoder filters its excitation, instead of the official layout.
        pitch: Channels of the pitch predictor.
    """

    text_vocab: int = 1024
    lm: tuple[int, ...] = (256, 4, 4, 2, 768)
    encoder: tuple[int, ...] = (160, 4, 320, 2)
    unet: tuple[int, ...] = (256, 4, 32, 1, 1)
    vocoder: int = 128
    vocoder_kernels: tuple[int, ...] = (3, 7)
    vocoder_dilations: tuple[tuple[int, ...], ...] = ()
    source_filter: bool = False
    pitch: int = 128


@dataclass(frozen=True)
class StageConfig:
    """Optimization of a stage.

    The learning rate rises to ``lr``, falls with the square root of the step, and in the last steps linearly to zero.

    Attributes:
        lr: Highest learning rate.
        warmup_steps: Steps until then.
        hold_steps: Steps before it falls.
        end_step: Step at which it is zero.
        decay_steps: Steps before that in which it falls linearly.
        weight_decay: Of AdamW.
        betas: Of AdamW.
        clip: Largest norm of the gradient.
        average: Decay of the averaged weights, which are scored and packed.
        batch: Positions (language model), frames (flow) or segments (vocoder) of a step.
        options: Further numbers of the stage.
    """

    lr: float = 1e-3
    warmup_steps: int = 200
    hold_steps: int = 4000
    end_step: int = NO_END
    decay_steps: int = 1000
    weight_decay: float = 0.01
    betas: tuple[float, ...] = (0.9, 0.98)
    clip: float = 1.0
    average: float = 0.998
    batch: int = 900
    options: dict[str, float] = field(default_factory=dict)

    def option(self, name: str, default: float) -> float:
        return float(self.options.get(name, default))


@dataclass(frozen=True)
class Round:
    """One entry of the plan: a stage until a step, or for some minutes, whichever comes first.

    The stage ``render`` computes the flow's mel for ``until_step`` lines, from which the vocoder learns as well.
    """

    stage: str
    minutes: float = 1e9
    until_step: int = 1 << 60


@dataclass(frozen=True)
class Config:
    """A training.

    Attributes:
        name: Name of the model.
        seed: Seed of everything random.
        top_p: Nucleus of the bundle's sampling; less for a weak language model.
        loudness_lufs: Integrated loudness of the voice, once it is known; 0: not known.
        initial: A bundle whose tensors of equal name and shape are the initial weights, and whose tokenizer is used.
        stages: Optimization by stage: ``lm``, ``flow``, ``vocoder``.
        plan: What is trained in turn, from the beginning again when it is through.
    """

    name: str
    seed: int = 1
    top_p: float = 0.8
    loudness_lufs: float = 0.0
    initial: str = ""
    text: TextConfig = field(default_factory=TextConfig)
    data: DataConfig = field(default_factory=DataConfig)
    sizes: SizeConfig = field(default_factory=SizeConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)
    plan: tuple[Round, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read a YAML file.

        Raises:
            ConfigError: An unknown key or a value of the wrong type; names the key.
        """
        return load_yaml(cls, path)

    def stage(self, name: str) -> StageConfig:
        return self.stages.get(name, StageConfig())


def load_yaml(kind: type[T], path: Path) -> T:
    """Build ``kind``, a dataclass, from a YAML file.

    Raises:
        ConfigError: An unknown key or a value of the wrong type; names the key.
    """
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error})") from None
    return build(kind, values, str(path))


def build(kind: type[T], value: Any, where: str) -> T:
    """Build ``kind`` (a dataclass, number, string, tuple or dict) from what YAML reads."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin is tuple:
        (item, _) = typing.get_args(kind)
        if not isinstance(value, list):
            raise ConfigError(f"{where}: must be a list")
        return typing.cast(T, tuple(build(item, entry, f"{where}[{i}]") for i, entry in enumerate(value)))
    if origin is dict:
        (_, item) = typing.get_args(kind)
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: must be a mapping")
        return typing.cast(T, {str(key): build(item, entry, f"{where}.{key}") for key, entry in value.items()})
    allowed: Any = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{where}: must be of type {kind.__name__}, not {value!r}")
    return typing.cast(T, typing.cast(Any, kind)(value))


def _build_dataclass(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a mapping")
    hints = typing.get_type_hints(kind)
    if unknown := sorted(map(str, value.keys() - hints.keys())):
        raise ConfigError(f"{where}: unknown keys: {', '.join(unknown)}")
    try:
        return kind(**{key: build(hints[key], entry, f"{where}.{key}") for key, entry in value.items()})
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None
