"""Runs a stage by the clock, with checkpoints, averaged weights and a learning curve.

What a step draws depends on the seed and the step only, and a checkpoint is complete: on a CPU, a training that was
stopped and resumed gives the same bits as one that was not.
"""

from __future__ import annotations

import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.train.config import StageConfig

LOG_STEPS = 50
SAVE_EVERY_S = 240.0
STOP = threading.Event()
"""Set to end a training after the current step, with a checkpoint."""


class Stage(ABC):
    """A network that is trained.

    Args:
        name: Names its files.
        net: Before ``prepare``, on its device.
        settings: Optimization.
        seed: Seed of what the steps draw.
    """

    def __init__(self, name: str, net: nn.Module, settings: StageConfig, seed: int) -> None:
        self.name = name
        self.net = net
        self.settings = settings
        self.seed = seed
        self.step = 0
        self.parameters: list[Tensor] = [parameter for parameter in net.parameters() if parameter.requires_grad]
        self.device = self.parameters[0].device
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = self.make_optimizer(self.parameters)

    @abstractmethod
    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of step ``self.step`` and what to log."""

    @abstractmethod
    def held_out(self) -> dict[str, float]:
        """Scores on held-out data; called with the averaged weights."""

    def make_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        settings = self.settings
        first, second = settings.betas
        return torch.optim.AdamW(parameters, settings.lr, (first, second), weight_decay=settings.weight_decay)

    def reduced_precision(self) -> torch.autocast:
        """A context in which matrices are multiplied as bfloat16, if the option ``bfloat16`` asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.settings.option("bfloat16", 0)))

    def generator(self, salt: int = 0) -> torch.Generator:
        """A generator on the device for this step."""
        return torch.Generator(self.device).manual_seed((self.seed * 7919 + salt) * 1_000_000_007 + self.step)

    def update(self) -> dict[str, Tensor]:
        """Make a step."""
        loss, metrics = self.loss()
        self.apply(self.optimizer, loss, self.parameters)
        self.step += 1
        decay = min(self.settings.average, self.step / (self.step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - decay)
        return metrics

    def apply(self, optimizer: torch.optim.Optimizer, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Go one step of ``optimizer`` down the gradient of ``loss``."""
        for group in optimizer.param_groups:
            group["lr"] = group.get("rate", 1.0) * self.learning_rate()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, self.settings.clip)
        optimizer.step()

    def learning_rate(self) -> float:
        settings = self.settings
        rise = min(1.0, (self.step + 1) / max(1, settings.warmup_steps))
        fall = min(1.0, max(0.0, (settings.end_step - self.step) / max(1, settings.decay_steps)))
        return settings.lr * rise * fall * math.sqrt(settings.hold_steps / max(settings.hold_steps, self.step))

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The network with its averaged weights."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.average)
            try:
                yield self.net
            finally:
                torch._foreach_copy_(self.parameters, own)

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights with the names of the official files, on the CPU."""
        with self.averaged() as net:
            return {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "net": self.net.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.net.load_state_dict(state["net"])
        with torch.no_grad():
            torch._foreach_copy_(self.average, [value.to(self.device) for value in state["average"]])
        self.optimizer.load_state_dict(state["optimizer"])


def checkpoint_path(run: Path, stage: str) -> Path:
    return run / f"{stage}.pt"


def curve_path(run: Path, stage: str) -> Path:
    return run / f"{stage}.jsonl"


def resume(stage: Stage, run: Path) -> bool:
    """Load the checkpoint of ``stage``, if there is one."""
    path = checkpoint_path(run, stage.name)
    if not path.is_file():
        return False
    stage.load_state(torch.load(path, map_location=stage.device, weights_only=True))
    return True


def save(stage: Stage, run: Path) -> None:
    """Write a checkpoint. The old one stays until the new one is complete."""
    path = checkpoint_path(run, stage.name)
    partial = path.with_suffix(".part")
    torch.save(stage.state(), partial)
    partial.replace(path)


def train(
    stage: Stage,
    run: Path,
    *,
    minutes: float = math.inf,
    until_step: int = 1 << 60,
    save_every_s: float = SAVE_EVERY_S,
    report: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train until a step, or for some minutes, whichever comes first; resume before and save after."""
    resume(stage, run)
    begin = saved = clock()
    logged: list[dict[str, Tensor]] = []
    while stage.step < until_step and clock() - begin < 60 * minutes and not STOP.is_set():
        logged.append(stage.update())
        if len(logged) == LOG_STEPS:
            _log(stage, run, _means(logged), report)
            logged.clear()
        if clock() - saved > save_every_s:
            save(stage, run)
            saved = clock()
    save(stage, run)
    if STOP.is_set():
        return
    with stage.averaged():
        scores = stage.held_out()
    _log(stage, run, {f"held_out_{name}": value for name, value in scores.items()}, report)


def _means(logged: list[dict[str, Tensor]]) -> dict[str, float]:
    return {name: float(torch.stack([entry[name] for entry in logged]).mean()) for name in logged[0]}


def _log(stage: Stage, run: Path, values: dict[str, float], report: Callable[[str], None]) -> None:
    entry = {"step": stage.step, "cpu_s": round(time.process_time()), **{k: round(v, 5) for k, v in values.items()}}
    with curve_path(run, stage.name).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
    report(f"{stage.name} " + " ".join(f"{name} {value:.4g}" for name, value in entry.items()))
