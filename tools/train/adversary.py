"""Adversarial training of a stage that makes audio: a discriminator that learns beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tools.train.spectral import Discriminator, adversarial_loss, discriminator_loss, feature_loss
from tools.train.trainer import Stage


class Adversary:
    """A discriminator and its optimizer.

    Args:
        stage: The stage that makes the audio. Its options ``channels`` (of the discriminator), ``adversarial`` and
            ``features`` (weights of the losses) apply.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        torch.manual_seed(stage.seed)
        self.discriminator = Discriminator(int(stage.settings.option("channels", 24))).to(stage.device)
        self._weights = list(self.discriminator.parameters())
        self._optimizer = stage.make_optimizer(self._weights)

    def play(self, audio: Tensor, reference: Tensor, metrics: dict[str, Tensor]) -> Tensor:
        """Train the discriminator on ``[B, samples]`` of both, and return what it adds to the stage's loss."""
        real = self._judge(reference)
        loss = discriminator_loss(real, self._judge(audio.detach()))
        self._stage.apply(self._optimizer, loss, self._weights)
        self.discriminator.requires_grad_(False)
        with torch.no_grad():
            real = self._judge(reference)
        fake = self._judge(audio)
        self.discriminator.requires_grad_(True)
        adversarial, features = adversarial_loss(fake), feature_loss(real, fake)
        metrics.update(discriminator=loss, adversarial=adversarial, features=features)
        option = self._stage.settings.option
        return option("adversarial", 0.3) * adversarial + option("features", 1.0) * features

    def _judge(self, audio: Tensor) -> list[list[Tensor]]:
        with self._stage.reduced_precision():
            layers: list[list[Tensor]] = self.discriminator(audio)
        return layers

    def state(self) -> dict[str, Any]:
        return {"net": self.discriminator.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.discriminator.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
