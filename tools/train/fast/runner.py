"""A training of fast voices in a folder: data, the two stages, and the weights of the voices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.train.config import NO_END, StageConfig, TextConfig, load_yaml
from tools.train.fast.data import PhraseData, VoiceData, corpus, part_files, voice_sentences
from tools.train.fast.evaluate import file_hash
from tools.train.fast.network import (
    FastNetwork,
    SharedNetwork,
    load_network,
    mean_spectra,
    pitch_offset_hz,
    save_network,
    set_vector,
    sharpen,
    shift_pitch,
    slow_down,
    tempo,
    vector_of,
)
from tools.train.fast.recordings import RecordedData, Say
from tools.train.fast.speakers import Speaker
from tools.train.fast.stages import PhraseStage, ProsodyStage, SpectraStage
from tools.train.fast.styles import ARCHIVE, read_style
from tools.train.fast.teacher import load_phrases
from tools.train.trainer import checkpoint_path, train
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel, VoiceModel, default_model_path, is_mandarin
from tts_worker.errors import ConfigError
from tts_worker.voices.installed import CPU_NETWORK, CPU_VECTOR

STAGES = ("prosody", "spectra")
_HELD_OUT_PHRASES = 24  # of all voices
_SAVE_EVERY_S = 60.0
_PITCH_PHRASES = 20
_TEMPO_STEPS = 4
_SHARPENING_PHRASES = 10


@dataclass(frozen=True)
class FastConfig:
    """A training of fast voices, which share a network.

    Attributes:
        voices: Kokoro's names of the styles that teach them: ``bf_emma``. Those of ``recordings`` are named likewise.
        recordings: Manifest of the recordings that teach a voice instead, relative to the run's folder
            (``tools.train.manifest``).
        seed: Seed of everything random.
        start: Folder with a trained network and voices to begin with, relative to the run's folder; a voice that it
            lacks begins with the mean of those that it has. Empty for the network of ``heart``.
        archive: The npm package with the styles, relative to the run's folder.
        spoken_minutes: Audio of the teacher for each voice, for the spectra.
        prosody_minutes: Speech for each voice of which the teacher computes prosody only.
        sharpness: Factor by which the export moves spectra away from their mean (``network.sharpen``).
        text: Where the English sentences come from. ``mandarin.txt`` in the run's folder has the Mandarin ones.
        stages: Optimization by stage: ``prosody``, ``spectra``. ``batch`` counts frames of 12.5 ms.
    """

    voices: tuple[str, ...]
    recordings: dict[str, str] = field(default_factory=dict)
    seed: int = 1
    start: str = ""
    archive: str = ARCHIVE
    spoken_minutes: float = 7.0
    prosody_minutes: float = 20.0
    sharpness: float = 1.0
    text: TextConfig = field(default_factory=TextConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> FastConfig:
        """Read a YAML file.

        Raises:
            ConfigError: An unknown key, a value of the wrong type (names the key), a voice with another name, or
                recordings of none of the voices.
        """
        config = load_yaml(cls, path)
        if unknown := sorted(config.recordings.keys() - set(config.voices)):
            raise ConfigError(f"{path}.recordings: {', '.join(unknown)} is not one of the voices")
        for name in config.voices:
            Speaker.of(name)
        return config


class FastTraining:
    """A training in a folder, with a subfolder for each voice.

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
    def _model(self) -> HibariModel:
        return HibariModel()

    @property
    def network_file(self) -> Path:
        """The exported network."""
        return self.run / CPU_NETWORK

    def vector_file(self, voice: str) -> Path:
        """The exported vector of a voice."""
        return self.run / voice / CPU_VECTOR

    def data(self, voice: str) -> PhraseData:
        """The data of a voice."""
        config, language = self.config, Speaker.of(voice).language
        folder = self.run / voice
        folder.mkdir(parents=True, exist_ok=True)

        def report(line: str) -> None:
            self._report(f"{voice} {line}")

        phonemizer = self._model.phonemizer_in(language)
        if voice in config.recordings:
            manifest, speakers = self.run / config.recordings[voice], partial(self._speakers, voice)
            return RecordedData(folder, manifest, phonemizer, speakers, report=report)
        style = read_style(self.run / config.archive, voice)
        number = config.voices.index(voice)
        return VoiceData(
            folder,
            style,
            phonemizer,
            voice_sentences(corpus(self.run, config.text, config.seed, language), number, len(config.voices)),
            language=language,
            seed=config.seed + number,
            threads=self._threads,
            report=report,
        )

    def prepare(self) -> None:
        """Make the data that is missing."""
        for voice in self.config.voices:
            data = self.data(voice)
            data.held_out()
            data.prosody(60 * self.config.prosody_minutes)
            data.spoken(60 * self.config.spoken_minutes)

    def stage(self, name: str) -> PhraseStage:
        """Return a stage with the initial weights, and with the data, which is made if it is missing."""
        config = self.config
        settings = config.stages.get(name, StageConfig())
        data = [self.data(voice) for voice in config.voices]
        count = max(2, _HELD_OUT_PHRASES // len(data))
        held_out = [own.held_out()[:count] for own in data]
        shared = self._initial(name)
        if name == "prosody":
            prosody = [own.prosody(60 * config.prosody_minutes) for own in data]
            return ProsodyStage(shared.to(self._device), settings, config.seed, prosody, held_out)
        spoken = [own.spoken(60 * config.spoken_minutes) for own in data]
        return SpectraStage(shared.to(self._device), settings, config.seed, spoken, held_out)

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

    def trained(self) -> tuple[FastNetwork, dict[str, torch.Tensor]]:
        """Return the network with the averaged weights of both stages, and the vector of each voice.

        Raises:
            ConfigError: A stage is not trained.
        """
        network = load_network(default_model_path())
        vectors: dict[str, list[torch.Tensor]] = {voice: [] for voice in self.config.voices}
        for name, part in zip(STAGES, (network.pn, network.m), strict=True):
            shared = SharedNetwork(part, [vector_of(part)] * len(vectors))
            checkpoint = self._checkpoint(name)
            shared.load_state_dict(checkpoint["net"])
            learned = [parameter for parameter in shared.parameters() if parameter.requires_grad]
            averages = checkpoint["average"]
            with torch.no_grad():
                for parameter, average in zip(learned[len(learned) - len(averages) :], averages, strict=True):
                    parameter.copy_(average)
            for vector, own in zip(vectors.values(), shared.vectors, strict=True):
                vector.append(own.detach())
        return network, {voice: torch.cat(parts) for voice, parts in vectors.items()}

    def export(self) -> None:
        """Write the averaged weights: the int8 network, and the vectors, with the pitch of the floats on average.

        The spectra are sharpened, as the configuration says. A voice from recordings gets their tempo: absolute errors
        of durations, the boundaries of which were found by an aligner, make it learn medians, which are shorter.
        """
        network, vectors = self.trained()
        factor = self.config.sharpness
        for voice in vectors if factor != 1 else ():
            set_vector(network, vectors[voice])
            phrases = load_phrases(part_files(self.run / voice, "spoken")[:1])[:_SHARPENING_PHRASES]
            sharpen(network, mean_spectra(network, phrases), factor)
            vectors[voice] = vector_of(network)
        save_network(network, self.network_file)
        rounded = load_network(self.network_file, vector_of(network).numpy())
        for voice, vector in vectors.items():
            set_vector(network, vector)
            set_vector(rounded, vector)
            files = part_files(self.run / voice, "prosody") or part_files(self.run / voice, "spoken")
            phrases = load_phrases(files[:1])
            offset = pitch_offset_hz(rounded, network, phrases[:_PITCH_PHRASES])
            self._report(f"{voice}: int8 raises the pitch by {offset:.2f} Hz, which is corrected")
            shift_pitch(rounded, -offset)
            for _ in range(_TEMPO_STEPS if voice in self.config.recordings else 0):
                slow_down(rounded, tempo(rounded, phrases))
            self.vector_file(voice).parent.mkdir(parents=True, exist_ok=True)
            np.save(self.vector_file(voice), vector_of(rounded).numpy().astype(np.float16))

    def _initial(self, stage: str) -> SharedNetwork:
        """Return the network of a stage before its training."""
        if self.config.start:
            start = self._start
            known = {name: np.load(file) for name, file in self._known().items()}
            mean = np.mean([vector.astype(np.float32) for vector in known.values()], axis=0)
            networks = [load_network(start / CPU_NETWORK, known.get(voice, mean)) for voice in self.config.voices]
        else:
            networks = [load_network(default_model_path())] * len(self.config.voices)
        parts = [network.pn if stage == "prosody" else network.m for network in networks]
        return SharedNetwork(parts[0], [vector_of(part) for part in parts])

    @property
    def _start(self) -> Path:
        return (self.run / self.config.start).resolve()

    def _known(self) -> dict[str, Path]:
        """Return the vector files of the voices to begin with. Raises ConfigError if there are none."""
        if known := {file.parent.name: file for file in sorted(self._start.glob(f"*/{CPU_VECTOR}"))}:
            return known
        raise ConfigError(f"{self._start} has no voices to begin with")

    def _speakers(self, voice: str) -> dict[str, Say]:
        """Return what recordings of a voice can be compared with, of the voices to begin with.

        That is the voice itself, else those that have its accent, else its language, else all.
        """
        if not self.config.start:
            return {VOICE: self._model.predict}
        network, known = self._start / CPU_NETWORK, self._known()
        language = Speaker.of(voice).language
        languages = {name: Speaker.of(name).language for name in known}
        native = [name for name, own in languages.items() if own == language]
        fluent = [name for name, own in languages.items() if is_mandarin(own) == is_mandarin(language)]
        names = [voice] if voice in known else native or fluent or list(known)
        hashes = {name: file_hash(network, known[name]) for name in names}
        model = HibariModel(voices=[VoiceModel(name, network, known[name], hashes[name]) for name in names])
        return {name: partial(model.predict, voice=name) for name in names}

    def _checkpoint(self, name: str) -> dict[str, Any]:
        path = checkpoint_path(self.run, name)
        if not path.is_file():
            raise ConfigError(f"{self.run}: the stage {name} is not trained")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
