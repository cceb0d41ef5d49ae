"""A training of a fast voice in a folder: data, the two stages, and the voice's weight file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tools.train.config import NO_END, StageConfig, TextConfig, load_yaml
from tools.train.fast.data import VoiceData, corpus, part_files
from tools.train.fast.network import FastNetwork, load_network, pitch_offset_hz, save_network, shift_pitch
from tools.train.fast.stages import PhraseStage, ProsodyStage, SpectraStage
from tools.train.fast.styles import ARCHIVE, read_style
from tools.train.fast.teacher import load_phrases
from tools.train.trainer import checkpoint_path, train
from tts_worker.engine.cpu.hibari.model import AMERICAN, HibariModel, default_model_path
from tts_worker.errors import ConfigError

STAGES = ("prosody", "spectra")
_HELD_OUT_PHRASES = 12
_SAVE_EVERY_S = 60.0
_PITCH_PHRASES = 20


@dataclass(frozen=True)
class FastConfig:
    """A training of a fast voice.

    Attributes:
        name: Name of the voice.
        style: Kokoro's name of the teacher's style.
        seed: Seed of everything random.
        language: Accent of the phonemes: ``en-US`` or ``en-GB``.
        start: A trained model to begin with, relative to the run's folder; empty for that of ``heart``.
        archive: The npm package with the styles, relative to the run's folder.
        spoken_minutes: Audio of the teacher, for the spectra.
        prosody_minutes: Speech of which the teacher computes prosody only.
        text: Where the sentences come from.
        stages: Optimization by stage: ``prosody``, ``spectra``. ``batch`` counts frames of 12.5 ms.
    """

    name: str
    style: str
    seed: int = 1
    language: str = AMERICAN
    start: str = ""
    archive: str = ARCHIVE
    spoken_minutes: float = 30.0
    prosody_minutes: float = 150.0
    text: TextConfig = field(default_factory=TextConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> FastConfig:
        """Read a YAML file.

        Raises:
            ConfigError: An unknown key, or a value of the wrong type; names the key.
        """
        return load_yaml(cls, path)


class FastTraining:
    """A training in a folder.

    Args:
        config: The training.
        run: The folder.
        device: Where to train.
        threads: Threads of the teacher.
        report: Takes a line of progress.
    """

    def __init__(
        self,
        config: FastConfig,
        run: Path,
        device: torch.device,
        threads: int = 1,
        report: Callable[[str], None] = print,
    ) -> None:
        self.config = config
        self.run = run
        self._device = device
        self._threads = threads
        self._report = report

    @cached_property
    def data(self) -> VoiceData:
        config = self.config
        style = read_style(self.run / config.archive, config.style)
        phonemizer = HibariModel().phonemizer_in(config.language)
        return VoiceData(self.run, style, phonemizer, seed=config.seed, threads=self._threads, report=self._report)

    @cached_property
    def sentences(self) -> list[str]:
        return corpus(self.run, self.config.text, self.config.seed)

    @property
    def start(self) -> Path:
        """The model whose weights the network starts with."""
        return self.run / self.config.start if self.config.start else default_model_path()

    def prepare(self) -> None:
        """Make the data that is missing."""
        self.data.held_out()
        self.data.prosody(self.sentences, 60 * self.config.prosody_minutes)
        self.data.spoken(self.sentences, 60 * self.config.spoken_minutes)

    def stage(self, name: str) -> PhraseStage:
        """Return a stage with the initial weights, and with the data, which is made if it is missing."""
        config = self.config
        network = load_network(self.start).to(self._device)
        settings = config.stages.get(name, StageConfig())
        held_out = self.data.held_out()[:_HELD_OUT_PHRASES]
        if name == "prosody":
            phrases = self.data.prosody(self.sentences, 60 * config.prosody_minutes)
            return ProsodyStage(network.pn, settings, config.seed, phrases, held_out)
        phrases = self.data.spoken(self.sentences, 60 * config.spoken_minutes)
        return SpectraStage(network.m, settings, config.seed, phrases, held_out)

    def train(self, name: str, minutes: float = math.inf) -> None:
        """Train a stage for some minutes or to its end, whichever comes first.

        Raises:
            ConfigError: The stage has no end, and there is no limit of time.
        """
        stage = self.stage(name)
        if stage.settings.end_step >= NO_END and not math.isfinite(minutes):
            raise ConfigError(f"stages.{name}.end_step is missing: the stage would never end")
        train(
            stage,
            self.run,
            minutes=minutes,
            until_step=stage.settings.end_step,
            save_every_s=_SAVE_EVERY_S,
            report=self._report,
        )

    def steps(self, name: str) -> int:
        """Steps that a stage was trained."""
        return int(self._checkpoint(name)["step"])

    def load_weights(self, network: FastNetwork) -> None:
        """Load the averaged weights of both stages.

        Raises:
            ConfigError: A stage is not trained.
        """
        for name, part in zip(STAGES, (network.pn, network.m), strict=True):
            averages = self._checkpoint(name)["average"]
            with torch.no_grad():
                for parameter, average in zip(part.parameters(), averages, strict=True):
                    parameter.copy_(average)

    def export(self, path: Path) -> None:
        """Write the averaged weights of both stages as an int8 model, whose pitch is that of the floats on average."""
        network = load_network(default_model_path())
        self.load_weights(network)
        save_network(network.state_dict(), default_model_path(), path)
        phrases = load_phrases(part_files(self.run, "prosody")[:1])
        offset = pitch_offset_hz(load_network(path), network, phrases[:_PITCH_PHRASES])
        self._report(f"int8 raises the pitch by {offset:.2f} Hz, which is corrected")
        weights = network.state_dict()
        shift_pitch(weights, -offset)
        save_network(weights, default_model_path(), path)

    def _checkpoint(self, name: str) -> dict[str, Any]:
        path = checkpoint_path(self.run, name)
        if not path.is_file():
            raise ConfigError(f"{self.run}: the stage {name} is not trained")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
