"""Several fast voices, one after another, each in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.train.config import StageConfig, TextConfig, load_yaml
from tools.train.fast.evaluate import TEACHER
from tools.train.fast.package import SCORES_FILE, Speaker, read_figures, shortcomings
from tools.train.fast.runner import FastConfig
from tools.train.fast.styles import ARCHIVE
from tts_worker.engine.cpu.hibari.model import VOICE
from tts_worker.errors import ConfigError
from tts_worker.voices.installed import CPU_MODEL


@dataclass(frozen=True)
class FamilyConfig:
    """Voices and how each is trained.

    Attributes:
        voices: Kokoro's name of each voice, in order: the voice whose weights it begins with, ``heart`` or one before.
        spoken_minutes: As in ``FastConfig``, like what follows.
        prosody_minutes: Likewise.
        text: The same sentences for all; its folder is relative to that of the family.
        stages: Likewise.
        seed: Likewise.
    """

    voices: dict[str, str]
    spoken_minutes: float = 30.0
    prosody_minutes: float = 150.0
    text: TextConfig = field(default_factory=TextConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)
    seed: int = 1

    @classmethod
    def load(cls, path: Path) -> FamilyConfig:
        """Read a YAML file. Raises ConfigError, also for a voice that begins with one that comes later."""
        config = load_yaml(cls, path)
        known = {VOICE}
        for name, start in config.voices.items():
            Speaker.of(name)
            if start not in known:
                raise ConfigError(f"{path}: {name} begins with {start!r}, which is not trained before it")
            known.add(name)
        return config

    def of_voice(self, name: str) -> FastConfig:
        """Return the training of a voice in the subfolder ``name``."""
        start = self.voices[name]
        return FastConfig(
            name=name,
            style=name,
            seed=self.seed,
            language=Speaker.of(name).language,
            start="" if start == VOICE else f"../{start}/{CPU_MODEL}",
            archive=f"../{ARCHIVE}",
            spoken_minutes=self.spoken_minutes,
            prosody_minutes=self.prosody_minutes,
            text=replace(self.text, folder=f"../{self.text.folder}"),
            stages=self.stages,
        )


def missing_voices(config: FamilyConfig, run: Path) -> list[str]:
    """Return the voices without scores, in order."""
    return [name for name in config.voices if not (run / name / SCORES_FILE).is_file()]


def train_family(config: FamilyConfig, run: Path, train: Callable[[FastConfig, Path], None]) -> None:
    """Call ``train`` for each voice that has no scores, with its configuration and its folder."""
    for name in missing_voices(config, run):
        folder = run / name
        folder.mkdir(parents=True, exist_ok=True)
        train(config.of_voice(name), folder)


def verdicts(config: FamilyConfig, run: Path) -> Iterator[str]:
    """Yield a line for each voice: whether it is good enough, and why not."""
    missing = missing_voices(config, run)
    for name in config.voices:
        if name in missing:
            yield f"{name}: not trained"
            continue
        figures = read_figures(json.loads((run / name / SCORES_FILE).read_text("utf-8")))
        yield f"{name}: {'; '.join(shortcomings(figures[name], figures[TEACHER])) or 'good'}"
