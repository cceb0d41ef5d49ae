"""The vocoder's stage: mel to waveform, by the energy distance of spectra, then with a discriminator as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.train.adversary import Adversary
from tools.train.config import StageConfig
from tools.train.spectral import SpectralDistance
from tools.train.trainer import Stage
from tts_worker.engine.cosyvoice.networks.hift import Hift

_WEIGHTS = {"magnitude": 1.0, "log": 1.0, "mel": 1.5, "complex": 1.0}
_PITCH_WEIGHT = 0.01  # per Hz
_PITCH_EDGE_FRAMES = 4  # at both ends of a segment, where the pitch predictor sees padding
_HELD_OUT_SEGMENTS = 16
_SEGMENT_SALT = 1
_NOISE_SALT = 2


@dataclass(frozen=True)
class VocoderData:
    """Audio with its mel and pitch, on a device. Sentences follow each other.

    Attributes:
        audio: ``[samples]`` int16.
        mel: ``[frames, mel]`` half precision, of the audio.
        flow_mel: ``[frames, mel]`` of the flow, zero where there is none; ``None``: nowhere.
        pitch_hz: ``[frames]``.
        cycles: ``[frames]`` float64, periods / frame length before each frame, from the beginning of its sentence.
        starts: ``[N]`` frames at which a training segment may begin.
        flow_starts: The same where there is a mel of the flow.
        held_out_starts: The same of the held-out sentences.
    """

    audio: Tensor
    mel: Tensor
    flow_mel: Tensor | None
    pitch_hz: Tensor
    cycles: Tensor
    starts: Tensor
    flow_starts: Tensor
    held_out_starts: Tensor

    @classmethod
    def make(
        cls,
        samples: np.ndarray[Any, Any],
        audio: np.ndarray[Any, Any],
        mel: np.ndarray[Any, Any],
        pitch_hz: np.ndarray[Any, Any],
        *,
        held_out: int,
        segment_frames: int,
        rate_hz: int,
        device: torch.device,
        flow_mel: np.ndarray[Any, Any] | None = None,
    ) -> VocoderData:
        """Join sentences of ``samples`` samples; the first ``held_out`` ones are not trained on."""
        frame_samples = len(audio) // len(pitch_hz)
        frames = samples // frame_samples
        ends = np.cumsum(frames)
        starts: list[np.ndarray[Any, Any]] = []
        cycles = np.empty(len(pitch_hz))
        for end, count in zip(ends, frames, strict=True):
            periods = pitch_hz[end - count : end].astype(np.float64) / rate_hz
            cycles[end - count : end] = np.cumsum(periods) - periods
            starts.append(np.arange(end - count, max(end - count, end - segment_frames) + 1))
        kept = np.concatenate(starts[held_out:])
        has_flow = np.zeros(len(mel), bool) if flow_mel is None else (flow_mel[:, 0] != 0)

        def on_device(array: np.ndarray[Any, Any]) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            on_device(audio),
            on_device(mel),
            None if flow_mel is None else on_device(flow_mel),
            on_device(pitch_hz),
            on_device(cycles),
            on_device(kept),
            on_device(kept[has_flow[kept]]),
            on_device(np.concatenate(starts[:held_out])),
        )


class VocoderStage(Stage):
    """Trains the vocoder on random segments, with the pitch of the data and the phase that follows from it.

    Each segment is drawn twice, with different noise of the source, for the energy distance.

    Options:
        frames: Frames of a segment.
        discriminator_from: Step from which the discriminator takes part.
        adversarial, features: Weights of its losses.
        channels: Channels of the discriminator.
        flow_share: Share of the segments whose mel is that of the flow, where there is one.
    """

    def __init__(self, net: Hift, settings: StageConfig, seed: int, data: VocoderData) -> None:
        net.fourier.prepare(net.conv_post.bias.device)
        super().__init__("vocoder", net, settings, seed)
        self.hift = net
        self.data = data
        self.frames = int(settings.option("frames", 25))
        self.distance = SpectralDistance(net.dims.sample_rate_hz)
        self._discriminator_from = int(settings.option("discriminator_from", 1 << 60))
        self._adversary = Adversary(self)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        count = self.settings.batch
        starts, flow_count = draw_segments(
            self.data.starts,
            self.data.flow_starts,
            count,
            self.settings.option("flow_share", 0.5),
            self.generator(_SEGMENT_SALT),
        )
        draws, reference, pitch_error = self._resynthesize(starts, flow_count, self.generator(_NOISE_SALT))
        parts = self.distance.energy(draws, reference)
        loss = torch.stack([_WEIGHTS[name] * value for name, value in parts.items()]).sum()
        loss = loss + _PITCH_WEIGHT * pitch_error
        metrics = {"loss": loss, **parts, "pitch_hz": pitch_error}
        if self.step >= self._discriminator_from:
            loss = loss + self._adversary.play(draws[:count], reference, metrics)
        return loss, {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        generator = torch.Generator(self.device).manual_seed(0)
        starts = draw_starts(self.data.held_out_starts, _HELD_OUT_SEGMENTS, generator)
        draws, reference, pitch_error = self._resynthesize(starts, 0, generator)
        parts = self.distance.energy(draws, reference)
        return {**{name: float(value) for name, value in parts.items()}, "pitch_hz": float(pitch_error)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "discriminator": self._adversary.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._adversary.load_state(state["discriminator"])

    def _resynthesize(
        self, starts: Tensor, flow_count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Segments at ``starts``, the last ``flow_count`` from the flow's mel.

        Returns:
            Two draws ``[2 B, samples]``, the reference ``[B, samples]``, the pitch error in Hz.
        """
        data = self.data
        dims = self.hift.dims
        rows = starts[:, None] + torch.arange(self.frames, device=self.device)  # [B, T]
        rows = rows.clamp(max=len(data.pitch_hz) - 1)
        mel = segment_mel(data.mel, data.flow_mel, rows, flow_count)
        frame = dims.frame_samples
        reference = data.audio.view(-1, frame)[rows].flatten(1).float() / 32768
        pitch = data.pitch_hz[rows]
        edge = _PITCH_EDGE_FRAMES
        error = (self.hift.f0_predictor(mel) - pitch).abs()[:, edge:-edge].mean()
        harmonics = dims.nb_harmonics + 1
        phase = data.cycles[starts][:, None] * torch.arange(1, harmonics + 1, device=self.device)
        shape = 2 * len(starts), self.frames * frame, harmonics
        noise = torch.randn(shape, generator=generator, device=self.device)
        source = self.hift.m_source(pitch.repeat(2, 1), phase.repeat(2, 1), noise)
        return self.hift.decode(mel.repeat(2, 1, 1), source), reference, error


def draw_starts(starts: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` of ``starts`` with replacement."""
    if not count:
        return starts[:0]
    return starts[torch.randint(0, len(starts), (count,), generator=generator, device=starts.device)]


def draw_segments(
    starts: Tensor, flow_starts: Tensor, count: int, flow_share: float, generator: torch.Generator
) -> tuple[Tensor, int]:
    """Draw first frames of ``count`` segments.

    Returns:
        The frames, and how many of the last segments have the flow's mel: ``flow_share`` of them, if there is any.
    """
    flow_count = int(count * flow_share) if len(flow_starts) else 0
    drawn = [draw_starts(starts, count - flow_count, generator), draw_starts(flow_starts, flow_count, generator)]
    return torch.cat(drawn), flow_count


def segment_mel(mel: Tensor, flow_mel: Tensor | None, rows: Tensor, flow_count: int) -> Tensor:
    """Mel ``[B, mel, T]`` at the frames ``rows [B, T]``, that of the flow for the last ``flow_count`` segments."""
    values = mel[rows]
    if flow_count and flow_mel is not None:
        values = torch.cat([values[:-flow_count], flow_mel[rows[-flow_count:]]])
    return values.float().transpose(1, 2)
