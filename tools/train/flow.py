"""The flow's stage: codes to mel, by the encoder's distance from the mel and by flow matching.

A small flow begins with the encoder alone. Then encoder and estimator take turns: the estimator learns on the encoder's
result as it is, towards a mel that moves from that result to the real one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tools.train.batches import Batches
from tools.train.config import StageConfig
from tools.train.trainer import Stage
from tts_worker.engine.cosyvoice.networks.blocks import chunk_mask
from tts_worker.engine.cosyvoice.networks.flow import Flow

_SIGMA = 1e-6  # least noise, as in the reference
_HELD_OUT_BATCH = 4  # times the batch of a step

Mel = npt.NDArray[np.floating]


class FlowStage(Stage):
    """Trains the flow.

    Options:
        joint: 1: every step trains all of it by flow matching, as the reference does.
        encoder_steps: Otherwise, steps of the encoder alone.
        estimator_every: Otherwise, every so many steps the estimator learns instead of the encoder.
        sharp, sharp_from: Otherwise, the target is ``mu + s (mel - mu)``; ``s`` grows from ``sharp`` at the end of
            those steps to 1 at step ``sharp_from``.
        drop: Share of sequences without conditions, for guidance.
    """

    def __init__(
        self,
        net: Flow,
        settings: StageConfig,
        seed: int,
        tokens: Sequence[npt.NDArray[np.int64]],
        mels: Sequence[Mel],
        speaker: Tensor,
        *,
        held_out: int,
    ) -> None:
        super().__init__("flow", net, settings, seed)
        self.flow = net
        self._tokens = tokens
        self._mels = mels
        self._speaker = speaker.to(self.device)
        self._first = held_out
        ratio = net.dims.frames_per_token
        frames = [ratio * len(codes) for codes in tokens]
        self._batches = Batches(frames[held_out:], settings.batch)
        self._held_out = Batches(frames[:held_out], _HELD_OUT_BATCH * settings.batch)
        self._is_joint = settings.option("joint", 0.0) > 0
        self._estimator_every = int(settings.option("estimator_every", 2))
        self._encoder_steps = 0 if self._is_joint else int(settings.option("encoder_steps", 0))

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        numbers = [self._first + i for i in self._batches.at(self.step, self.seed)]
        is_estimator = self._is_joint or (
            self.step >= self._encoder_steps and self.step % self._estimator_every == self._estimator_every - 1
        )
        generator = self.generator()
        chunked = bool(torch.rand(1, generator=generator, device=self.device) < 0.5)
        with torch.set_grad_enabled(self._is_joint or not is_estimator):
            mu, mel, exists, lengths = self._encode(numbers, chunked)
            distance = _mean((mu - mel).abs(), exists)
        matching = distance.new_zeros(())
        if is_estimator:
            matching = self._match(mu, mel, exists, lengths, chunked, self._sharpness(), generator)
        metrics = {"distance": distance.detach(), "matching": matching.detach()}
        return (matching if is_estimator else distance), metrics

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        generator = torch.Generator(self.device).manual_seed(0)
        totals = torch.zeros(2)
        for numbers in self._held_out.all:
            mu, mel, exists, lengths = self._encode(numbers, True)
            matching = self._match(mu, mel, exists, lengths, True, 1.0, generator)
            totals += len(numbers) * torch.stack([_mean((mu - mel).abs(), exists), matching]).cpu()
        distance, matching = (totals / self._first).tolist()
        return {"distance": distance, "matching": matching}

    def _sharpness(self) -> float:
        if self._is_joint:
            return 1.0
        first, until = self.settings.option("sharp", 1.0), self.settings.option("sharp_from", 0.0)
        share = (self.step - self._encoder_steps) / max(1.0, until - self._encoder_steps)
        return first + (1 - first) * min(1.0, max(0.0, share))

    def _encode(self, numbers: Sequence[int], chunked: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Token condition and mel ``[B, T, mel]``, which frames exist ``[B, T, 1]``, tokens ``[B]``."""
        dims, net = self.flow.dims, self.flow
        count = [len(self._tokens[i]) for i in numbers]
        longest = max(count)
        tokens = np.zeros((len(numbers), longest + dims.lookahead_tokens), np.int64)
        mel = np.zeros((len(numbers), longest * dims.frames_per_token, dims.mel), np.float32)
        for row, i in enumerate(numbers):
            tokens[row, : count[row]] = self._tokens[i]
            mel[row, : count[row] * dims.frames_per_token] = self._mels[i][: count[row] * dims.frames_per_token]
        lengths = torch.tensor(count, device=self.device)
        start = torch.zeros_like(lengths)
        if dims.encoder is not None:
            net.encoder.reach_tokens = 0  # its tables derive from weights that have changed
            net.encoder.prepare(longest)
        ids = torch.from_numpy(tokens).to(self.device)
        mu = net.mu(ids, lengths, start, lengths, longest, chunked, net.no_past().front)
        frames = torch.arange(mel.shape[1], device=self.device)
        exists = (frames < dims.frames_per_token * lengths[:, None])[:, :, None]
        return mu, torch.from_numpy(mel).to(self.device), exists, lengths

    def _match(
        self,
        mu: Tensor,
        mel: Tensor,
        exists: Tensor,
        lengths: Tensor,
        chunked: bool,
        sharpness: float,
        generator: torch.Generator,
    ) -> Tensor:
        """Flow matching loss of the estimator towards ``mu + sharpness (mel - mu)``."""
        net = self.flow
        batch = len(mu)

        def uniform() -> Tensor:
            return torch.rand(batch, generator=generator, device=self.device)

        keep = (uniform() >= self.settings.option("drop", 0.0)).float()[:, None]
        time = 1 - torch.cos(uniform() * torch.pi / 2)
        base = mu.detach()
        target = base + sharpness * (mel - base)
        noise = torch.randn(mel.shape, generator=generator, device=self.device)
        at = time[:, None, None]
        state = (1 - (1 - _SIGMA) * at) * noise + at * target
        start = torch.zeros_like(lengths)
        total = net.dims.frames_per_token * lengths
        frames = mel.shape[1]
        mask = chunk_mask(start, total, frames, frames, net.chunk_frames * chunked)
        speaker = net.speaker(self._speaker).expand(batch, -1)
        velocity = net.estimator(
            state,
            mu * keep[:, :, None],
            speaker * keep,
            torch.zeros_like(state),
            net.estimator.tables(time),
            start,
            mask,
            net.no_past().estimator(slice(0, 1), start, total),
        )
        return _mean((velocity - (target - (1 - _SIGMA) * noise)).square(), exists)


def _mean(values: Tensor, exists: Tensor) -> Tensor:
    """Mean of ``values [B, T, C]`` where ``exists [B, T, 1]``."""
    return (values * exists).sum() / (exists.sum() * values.shape[2])


def flow_mel(net: Flow, tokens: npt.NDArray[np.int64], speaker: Tensor) -> Mel:
    """Mel of a whole sequence with the chunk mask, by the engine's solver; ``net`` is after ``prepare``."""
    ids = torch.from_numpy(tokens)[None].to(speaker.device)
    lengths = torch.tensor([len(tokens)], device=speaker.device)
    prompt = torch.zeros(1, 0, net.dims.mel, device=speaker.device)
    condition = F.normalize(speaker, dim=1)
    mel = net.mel(ids, lengths, prompt, torch.zeros_like(lengths), net.speaker(condition), chunked=True, final=True)
    result: Mel = mel[0].cpu().numpy()
    return result
