"""CosyVoice-300M's estimator: a UNet over whole sequences, of residual convolutions and transformer blocks.

Each stage down but the last halves the rate, each stage up but the last doubles it. The norms of the convolutions span
the whole sequence, so that all rows of a batch must have the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import Sites, sinusoid
from tts_worker.engine.cosyvoice.networks.dims import V1UnetDims
from tts_worker.engine.cosyvoice.networks.kv_cache import NoPast
from tts_worker.engine.cosyvoice.networks.linear import Linear
from tts_worker.engine.cosyvoice.networks.unet import TimeMlp, TransformerBlock

GROUPS = 8


def convolve(conv: nn.Module, x: Tensor) -> Tensor:
    """Run ``conv`` in the dtype of its weights, and return float32."""
    weight: Tensor = conv.weight  # type: ignore[assignment]
    return conv(x.to(weight.dtype)).float()


class Block(nn.Module):
    """Convolution, group norm, Mish: ``[N, C, T] -> [N, C', T]``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        conv = nn.Conv1d(in_channels, out_channels, 3, padding=1)
        self.block = nn.Sequential(conv, nn.GroupNorm(GROUPS, out_channels), nn.Mish())

    def forward(self, x: Tensor) -> Tensor:
        conv, norm, mish = self.block
        return mish(norm(convolve(conv, x)))


class Residual(nn.Module):
    """Two blocks with the time embedding added between them, and a 1x1 shortcut."""

    def __init__(self, in_channels: int, out_channels: int, time_channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), Linear(time_channels, out_channels))
        self.block1 = Block(in_channels, out_channels)
        self.block2 = Block(out_channels, out_channels)
        self.res_conv = nn.Conv1d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """``x [N, C, T] -> [N, C', T]``; ``time [C']`` is already projected by ``mlp``."""
        return self.block2(self.block1(x) + time[:, None]) + convolve(self.res_conv, x)


class _Sampler(nn.Module):
    """Namespace that matches the official key names, which the last stage lacks."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv


class V1Unet(nn.Module):
    """Computes the velocity of the flow at a solver time, from whole sequences."""

    def __init__(self, dims: V1UnetDims) -> None:
        super().__init__()
        self.dims = dims
        self.sites = Sites()
        width = dims.channels
        time = 4 * width

        def stage(in_channels: int, *sampler: nn.Module) -> nn.ModuleList:
            blocks = nn.ModuleList(TransformerBlock(self.sites, dims) for _ in range(dims.blocks))
            return nn.ModuleList([Residual(in_channels, width, time), blocks, *sampler])

        def down(i: int) -> nn.Module:
            if i == dims.stages - 1:
                return nn.Conv1d(width, width, 3, padding=1)
            return _Sampler(nn.Conv1d(width, width, 3, stride=2, padding=1))

        def up(i: int) -> nn.Module:
            if i == dims.stages - 1:
                return nn.Conv1d(width, width, 3, padding=1)
            return _Sampler(nn.ConvTranspose1d(width, width, 4, stride=2, padding=1))

        self.time_mlp = TimeMlp(dims.in_channels, time)
        self.down_blocks = nn.ModuleList(stage(width if i else dims.in_channels, down(i)) for i in range(dims.stages))
        self.mid_blocks = nn.ModuleList(stage(width) for _ in range(dims.mid_blocks))
        self.up_blocks = nn.ModuleList(stage(2 * width, up(i)) for i in range(dims.stages))
        self.final_block = Block(width, width)
        self.final_proj = nn.Conv1d(width, dims.out_channels, 1)

    def tables(self, t: Tensor) -> Tensor:
        """Projected time embeddings of ``t [S]`` for each stage: ``[S, stages, C]``."""
        time = self.time_mlp(sinusoid(t, self.dims.in_channels).to(self.final_proj.weight.dtype))
        stages: list[Any] = [*self.down_blocks, *self.mid_blocks, *self.up_blocks]
        return torch.stack([stage[0].mlp(time) for stage in stages], dim=1)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute the velocity.

        Args:
            x: ``[N, T, I]`` state, token condition, speaker and prompt.
            table: ``[stages, C]``, a row of ``tables``.

        Returns:
            ``[N, T, mel]``.
        """
        times = iter(table.unbind())
        x = x.transpose(1, 2)
        skips = []
        for residual, blocks, sampler in self._stages(self.down_blocks):
            x = self._run(residual, blocks, x, next(times))
            skips.append(x)
            x = self._resample(sampler, x)
        for residual, blocks in self._stages(self.mid_blocks):
            x = self._run(residual, blocks, x, next(times))
        for residual, blocks, sampler in self._stages(self.up_blocks):
            skip = skips.pop()
            x = torch.cat([x[:, :, : skip.shape[2]], skip], dim=1)  # an odd length was rounded up
            x = self._resample(sampler, self._run(residual, blocks, x, next(times)))
        return convolve(self.final_proj, self.final_block(x)).transpose(1, 2)

    @staticmethod
    def _stages(stages: nn.ModuleList) -> Sequence[Any]:
        return list(stages)

    @staticmethod
    def _resample(sampler: nn.Module, x: Tensor) -> Tensor:
        return convolve(sampler.conv if isinstance(sampler, _Sampler) else sampler, x)

    @staticmethod
    def _run(residual: Residual, blocks: Sequence[TransformerBlock], x: Tensor, time: Tensor) -> Tensor:
        x = residual(x, time).transpose(1, 2)
        past = NoPast([])  # the blocks attend to the whole sequence
        for block in blocks:
            x = block(x, None, past)
        return x.transpose(1, 2)
