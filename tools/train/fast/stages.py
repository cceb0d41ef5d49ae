"""The two stages of a fast voice: prosody, and spectra through the vocoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tools.train.adversary import Adversary
from tools.train.batches import Shuffled, by_length
from tools.train.config import StageConfig
from tools.train.fast.network import SharedNetwork
from tools.train.fast.teacher import SpokenPhrase
from tools.train.fast.vocoder import vocode, white_noise
from tools.train.spectral import AudibleDistance
from tools.train.trainer import Stage
from tts_worker.engine.cpu.hibari.vocoder import pulse_train
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.types import SAMPLE_RATE_HZ

_PROSODY_WEIGHTS = {"duration": 1.0, "f0_hz": 0.02, "energy": 0.2}
_SPECTRA_WEIGHTS = {"stft": 1.0, "mel": 1.0, "power": 0.0, "contrast": 0.0}
_NOISE_SALT, _CROP_SALT = 1, 2


@dataclass(frozen=True)
class PhraseBatch:
    """Padded phrases: B phrases of at most L ids and F frames.

    Attributes:
        ids: ``[B, L]``.
        mask: ``[B, 1, L]``, 0 where there is padding.
        durations: ``[B, L]``.
        f0_hz: ``[B, F]``.
        energy: ``[B, F]``.
        frame_mask: ``[B, 1, F]``.
    """

    ids: Tensor
    mask: Tensor
    durations: Tensor
    f0_hz: Tensor
    energy: Tensor
    frame_mask: Tensor

    @classmethod
    def of(cls, phrases: Sequence[SpokenPhrase], device: torch.device) -> PhraseBatch:
        return cls(
            padded([phrase.ids.astype(np.int64) for phrase in phrases], device),
            _mask([len(phrase.ids) for phrase in phrases], device),
            padded([phrase.durations.astype(np.int64) for phrase in phrases], device),
            padded([phrase.f0_hz for phrase in phrases], device),
            padded([phrase.energy for phrase in phrases], device),
            _mask([phrase.frames for phrase in phrases], device),
        )


def padded(rows: Sequence[np.ndarray[Any, Any]], device: torch.device) -> Tensor:
    """Rows of different lengths as a tensor, with zeros at their ends."""
    return pad_sequence([torch.from_numpy(np.array(row)) for row in rows], batch_first=True).to(device)


def _mask(lengths: Sequence[int], device: torch.device) -> Tensor:
    return padded([np.ones(length, np.float32) for length in lengths], device)[:, None]


class PhraseStage(Stage):
    """A stage whose step takes phrases of about equal length of one voice.

    Options:
        vector_rate: Factor of the learning rate for the vectors of the voices, of which a step moves one.
        matrices: 0 to leave the matrices that they share as they are.

    Args:
        name: Names its files.
        net: The network, one of the two, of all voices.
        settings: Optimization; ``batch`` counts frames.
        seed: Seed of what the steps draw.
        phrases: What each voice learns from.
        held_out: What each is scored on, a batch.
    """

    def __init__(
        self,
        name: str,
        net: SharedNetwork,
        settings: StageConfig,
        seed: int,
        phrases: Sequence[Sequence[SpokenPhrase]],
        held_out: Sequence[Sequence[SpokenPhrase]],
    ) -> None:
        if not settings.option("matrices", 1):
            net.net.requires_grad_(False)
        super().__init__(name, net, settings, seed)
        self._phrases = phrases
        self._held_out = held_out
        self._batches = Shuffled(
            [
                (voice, numbers)
                for voice, own in enumerate(phrases)
                for numbers in by_length([phrase.frames for phrase in own], settings.batch)
            ]
        )

    def make_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer(parameters)
        vectors = set(self.net.get_submodule("vectors").parameters())
        (group,) = optimizer.param_groups
        own = {**group, "params": [value for value in group["params"] if value in vectors]}
        group["params"] = [value for value in group["params"] if value not in vectors]
        optimizer.add_param_group({**own, "rate": self.settings.option("vector_rate", 1)})
        return optimizer

    def batch(self) -> tuple[int, list[SpokenPhrase]]:
        """The voice of step ``self.step`` and its phrases."""
        voice, numbers = self._batches.at(self.step, self.seed)
        return voice, [self._phrases[voice][number] for number in numbers]

    def held_out(self) -> dict[str, float]:
        scores = [self.scores(voice, phrases) for voice, phrases in enumerate(self._held_out)]
        return {name: float(torch.stack([score[name] for score in scores]).mean()) for name in scores[0]}

    @abstractmethod
    def scores(self, voice: int, phrases: Sequence[SpokenPhrase]) -> dict[str, Tensor]:
        """Scores of a voice on phrases."""


class ProsodyStage(PhraseStage):
    """Learns durations, pitch and energy, the curves with the teacher's durations."""

    def __init__(
        self,
        net: SharedNetwork,
        settings: StageConfig,
        seed: int,
        phrases: Sequence[Sequence[SpokenPhrase]],
        held_out: Sequence[Sequence[SpokenPhrase]],
    ) -> None:
        super().__init__("prosody", net, settings, seed, phrases, held_out)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        parts = self._errors(*self.batch())
        loss = torch.stack([weight * parts[name] for name, weight in _PROSODY_WEIGHTS.items()]).sum()
        return loss, {name: value.detach() for name, value in {"loss": loss, **parts}.items()}

    @torch.no_grad()
    def scores(self, voice: int, phrases: Sequence[SpokenPhrase]) -> dict[str, Tensor]:
        return self._errors(voice, phrases)

    def _errors(self, voice: int, phrases: Sequence[SpokenPhrase]) -> dict[str, Tensor]:
        """Mean absolute errors: of the logarithm of durations, of pitch in Hz, of energy."""
        batch = PhraseBatch.of(phrases, self.device)
        logs, f0_hz, energy = self.net(voice, batch.ids, batch.mask, batch.durations, batch.frame_mask)
        frames = batch.frame_mask[:, 0]
        return {
            "duration": _mean_error(logs, torch.log1p(batch.durations), batch.mask[:, 0]),
            "f0_hz": _mean_error(f0_hz, batch.f0_hz, frames),
            "energy": _mean_error(energy, batch.energy, frames),
        }


def _mean_error(values: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    return ((values - targets).abs() * mask).sum() / mask.sum()


class SpectraStage(PhraseStage):
    """Learns spectra through the vocoder, with the teacher's durations, pitch and energy.

    Options:
        stft, mel, power, contrast: Weights of the distances (``AudibleDistance``).
        bfloat16: 1 to multiply matrices with less precision, on processors that do it faster.
        discriminator_from: Step from which a discriminator takes part (``Adversary``, with its options).
        crop_frames: Length of the audio that the discriminator gets of each phrase.
    """

    def __init__(
        self,
        net: SharedNetwork,
        settings: StageConfig,
        seed: int,
        phrases: Sequence[Sequence[SpokenPhrase]],
        held_out: Sequence[Sequence[SpokenPhrase]],
    ) -> None:
        super().__init__("spectra", net, settings, seed, phrases, held_out)
        self._distance = AudibleDistance(SAMPLE_RATE_HZ)
        self._discriminator_from = int(settings.option("discriminator_from", 1 << 60))
        self._crop_frames = int(settings.option("crop_frames", 64))
        self._adversary = Adversary(self)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        voice, phrases = self.batch()
        audio, reference = self._resynthesize(voice, phrases, self.generator(_NOISE_SALT))
        parts = self._distance(audio, reference)
        weights = {name: self.settings.option(name, default) for name, default in _SPECTRA_WEIGHTS.items()}
        loss = torch.stack([weights[name] * value for name, value in parts.items()]).sum()
        metrics = {"loss": loss, **parts}
        if self.step >= self._discriminator_from:
            crops = self._crops([phrase.frames for phrase in phrases])
            fake = torch.stack([row[crop] for row, crop in zip(audio, crops, strict=True)])
            real = torch.stack([row[crop] for row, crop in zip(reference, crops, strict=True)])
            loss = loss + self._adversary.play(fake, real, metrics)
        return loss, {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def scores(self, voice: int, phrases: Sequence[SpokenPhrase]) -> dict[str, Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        return self._distance(*self._resynthesize(voice, phrases, generator))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "discriminator": self._adversary.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._adversary.load_state(state["discriminator"])

    def _resynthesize(
        self, voice: int, phrases: Sequence[SpokenPhrase], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the audio and the reference, ``[B, samples]`` each."""
        batch = PhraseBatch.of(phrases, self.device)
        inputs = (batch.ids, batch.mask, batch.durations, batch.f0_hz, batch.energy, batch.frame_mask)
        with self.reduced_precision():
            parts = self.net(voice, *inputs).float()
        pulses = padded([pulse_train(phrase.f0_hz) for phrase in phrases], self.device)
        audio = vocode(parts, pulses, white_noise(len(phrases), parts.shape[1], generator))
        reference = padded([phrase.samples.astype(np.float32) / 32768 for phrase in phrases], self.device)
        mask = batch.frame_mask[:, 0].repeat_interleave(FRAME_SAMPLES, 1)
        return audio * mask, reference

    def _crops(self, frames: Sequence[int]) -> list[slice]:
        """Random parts of phrases, all of the same length."""
        length = min(self._crop_frames, min(frames))
        places = torch.rand(len(frames), generator=self.generator(_CROP_SALT), device=self.device).tolist()
        starts = (int(place * (count - length + 1)) for place, count in zip(places, frames, strict=True))
        return [slice(start * FRAME_SAMPLES, (start + length) * FRAME_SAMPLES) for start in starts]
