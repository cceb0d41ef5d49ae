"""The stage of a vocoder that filters its excitation: mel to the gains of harmonics and noise.

The teacher says of which parts its audio consists, so the gains are learned without synthesis: those of the
harmonics are its own; those of the noise are the likeliest for a Gaussian noise that has the spectrum of the rest. What
the mel does not tell, its phases above all, stays random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tools.train.config import StageConfig
from tools.train.speech_data import AudioData, PartData
from tools.train.teacher import PART_BIN_HZ, PART_HOP_SAMPLES
from tools.train.trainer import Stage
from tools.train.vocoder import draw_segments, draw_starts, segment_mel
from tts_worker.engine.cosyvoice.networks.dims import HiftDims
from tts_worker.engine.cosyvoice.networks.source_filter import SourceFilter, noise_level

_EDGE_FRAMES = 4  # at both ends of a segment, where the network sees padding
_PITCH_WEIGHT = 0.05  # per Hz
_QUIET_WEIGHT = 0.01  # of harmonics that the teacher does not tell
_QUIET = -6.0  # log gain
_MIN_GAIN = -8.0  # log
_MIN_POWER = 1e-7
_HELD_OUT_SEGMENTS = 32
_SEGMENT_SALT = 1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FilterData:
    """What a vocoder that filters its excitation learns from, on a device. Sentences follow each other.

    Attributes:
        mel: ``[frames, mel]`` half precision, of the audio.
        flow_mel: The same of the flow, zero where there is none; ``None``: nowhere.
        pitch_hz: ``[frames]``.
        noise: ``[columns, bins]`` half precision: power of the noise, relative to that of the excitation's.
        harmonics: ``[columns, some bins]`` half precision: log gains of the lowest bins.
        starts: ``[N]`` frames at which a training segment may begin.
        flow_starts: The same where there is a mel of the flow.
        held_out_starts: The same of the held-out sentences.
    """

    mel: Tensor
    flow_mel: Tensor | None
    pitch_hz: Tensor
    noise: Tensor
    harmonics: Tensor
    starts: Tensor
    flow_starts: Tensor
    held_out_starts: Tensor

    @classmethod
    def make(
        cls,
        net: SourceFilter,
        audio: AudioData,
        parts: PartData,
        mel: Array,
        *,
        held_out: int,
        segment_frames: int,
        device: torch.device,
        flow_mel: Array | None = None,
    ) -> FilterData:
        """Compute the gains for the columns of ``net``; the first ``held_out`` sentences are not trained on."""
        dims = net.dims
        net.fourier.prepare(torch.device("cpu"))
        frames = audio.samples // dims.frame_samples
        weight = float(net.m_source.l_linear.weight.detach().abs().mean()) * dims.nsf_alpha
        noise, harmonics, starts = [], [], []
        sample = column = 0
        for count, end in zip(frames.tolist(), np.cumsum(frames).tolist(), strict=True):
            samples = count * dims.frame_samples
            columns = samples // PART_HOP_SAMPLES + 1
            noise.append(_power(net, parts.noise[sample : sample + samples]))
            harmonics.append(_log_gains(dims, parts.harmonics[column : column + columns], samples) - math.log(weight))
            starts.append(np.arange(end - count, max(end - count, end - segment_frames) + 1))
            sample, column = sample + samples, column + columns
        last = int(frames.sum()) - segment_frames
        kept = np.minimum(np.concatenate(starts[held_out:]), last)
        has_flow = np.zeros(len(mel), bool) if flow_mel is None else (flow_mel[:, 0] != 0)

        def on_device(array: Array) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            on_device(mel),
            None if flow_mel is None else on_device(flow_mel),
            on_device(audio.pitch_hz),
            torch.cat(noise).half().to(device),
            torch.cat(harmonics).half().to(device),
            on_device(kept),
            on_device(kept[has_flow[kept]]),
            on_device(np.concatenate(starts[:held_out])),
        )


class FilterStage(Stage):
    """Trains the vocoder on random segments.

    Options:
        frames: Frames of a segment.
        flow_share: Share of the segments whose mel is that of the flow, where there is one.
        bfloat16: Whether convolutions compute with bfloat16 (1 or 0).
    """

    def __init__(self, net: SourceFilter, settings: StageConfig, seed: int, data: FilterData) -> None:
        # The excitation and the pitch are those of the data; its weights are what the gains refer to.
        net.m_source.requires_grad_(False)
        super().__init__("vocoder", net, settings, seed)
        self.filter = net
        self.data = data
        self.frames = int(settings.option("frames", 50))
        self._in_bfloat16 = bool(settings.option("bfloat16", 0))

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        starts, flow_count = draw_segments(
            self.data.starts,
            self.data.flow_starts,
            self.settings.batch,
            self.settings.option("flow_share", 0.5),
            self.generator(_SEGMENT_SALT),
        )
        parts = self._distances(starts, flow_count)
        loss = parts["noise"] + parts["harmonics"] + _QUIET_WEIGHT * parts["quiet"] + _PITCH_WEIGHT * parts["pitch_hz"]
        return loss, {"loss": loss.detach(), **{name: value.detach() for name, value in parts.items()}}

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        generator = torch.Generator(self.device).manual_seed(0)
        starts = draw_starts(self.data.held_out_starts, _HELD_OUT_SEGMENTS, generator)
        return {name: float(value) for name, value in self._distances(starts, 0).items()}

    def _distances(self, starts: Tensor, flow_count: int) -> dict[str, Tensor]:
        """Distances of the gains of segments at ``starts``, the last ``flow_count`` from the flow's mel.

        Of the noise: the negative log likelihood of its power, less that of the best gains. Of the harmonics: the
        squared difference of log gains where there is a voice.
        """
        data, dims = self.data, self.filter.dims
        rows = starts[:, None] + torch.arange(self.frames, device=self.device)  # [B, T]
        rows = rows.clamp(max=len(data.pitch_hz) - 1)
        mel = segment_mel(data.mel, data.flow_mel, rows, flow_count)
        per_frame = dims.frame_samples // dims.hop
        inner = slice(_EDGE_FRAMES * per_frame, -_EDGE_FRAMES * per_frame)
        columns = (rows[:, :, None] * per_frame + torch.arange(per_frame, device=self.device)).flatten(1)[:, inner]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._in_bfloat16):
            gains = self.filter.log_gains(mel)
        harmonic, noise = gains.float()[:, :, :-1].transpose(1, 2)[:, inner].chunk(2, dim=2)
        power = data.noise[columns].float() + _MIN_POWER
        expected = (2 * noise).exp() + _MIN_POWER
        pitch = data.pitch_hz[rows]
        voiced = (pitch > 0).float().repeat_interleave(per_frame, 1)[:, inner, None]
        target = data.harmonics[columns].float().clamp(min=_MIN_GAIN)
        told = target.shape[2]
        error = (harmonic[..., :told] - target).square() * voiced
        edge = slice(_EDGE_FRAMES, -_EDGE_FRAMES)
        return {
            "noise": (power / expected - (power / expected).log() - 1).clamp(max=50).mean(),
            "harmonics": error.sum() / (voiced.sum() * told).clamp(min=1),
            "quiet": (harmonic[..., told:] - _QUIET).square().mean(),
            "pitch_hz": (self.filter.f0_predictor(mel) - pitch).abs()[:, edge].mean(),
        }


@torch.no_grad()
def _power(net: SourceFilter, noise: Array) -> Tensor:
    """Power ``[columns, bins]`` of ``noise``, relative to the expected one of the excitation's noise."""
    dims = net.dims
    real, imaginary = net.fourier.analyze(torch.from_numpy(noise.astype(np.float32) / 32768)[None, None]).chunk(2, 1)
    window_power = dims.n_fft * 3 / 8  # of a Hann window
    power: Tensor = (real.square() + imaginary.square())[0].T[:-1] / (window_power * noise_level(dims) ** 2)
    return power.clamp(max=6e4)


def _log_gains(dims: HiftDims, levels: Array, samples: int) -> Tensor:
    """Log amplitudes of the teacher's harmonics at the columns and bins of the vocoder, ``[columns, some bins]``."""
    values = torch.from_numpy(levels.astype(np.float32)).T[None]  # [1, bins, T]
    values = F.interpolate(values, size=samples // dims.hop + 1, mode="linear", align_corners=True)[0, :, :-1]
    bin_hz = dims.sample_rate_hz / dims.n_fft
    at = torch.arange(int((len(values) - 1) * PART_BIN_HZ / bin_hz) + 1) * (bin_hz / PART_BIN_HZ)
    left = at.floor().long().clamp(max=len(values) - 2)
    share = (at - left)[:, None]
    return (values[left] * (1 - share) + values[left + 1] * share).T
