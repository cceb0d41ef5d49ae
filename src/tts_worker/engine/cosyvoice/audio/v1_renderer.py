"""Renders speech tokens of CosyVoice-300M to PCM: parts that overlap, each computed at once.

A part has ``chunk_tokens`` new tokens and ``lookahead_tokens`` of the next part, attends to the prompt and to itself,
and repeats the last frames of the part before, into which it is cross-faded. This is how the reference streams. Noise
and conditions of the repeated frames are those of the part before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.audio.flow_pool import UnpagedPool
from tts_worker.engine.cosyvoice.audio.renderer import PartState, Renderer, RenderRequest, RenderState
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import GraphRunner
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams
from tts_worker.engine.cosyvoice.v1.flow import V1Flow, fade_mel


@dataclass(frozen=True)
class _PartShape:
    """Shape of a part. Requests can share a pass only if all of these are equal."""

    tokens: int
    prompt_tokens: int
    prompt_frames: int
    is_first: bool


class V1Renderer(Renderer):
    """Runs flow and vocoder of CosyVoice-300M on their streams.

    Args:
        networks: The networks.
        pool: Stands in for the memory of the flow.
        streams: Execution streams of the device.
        runner: Runs the vocoder.
    """

    pool: UnpagedPool

    def __init__(self, networks: Networks, pool: UnpagedPool, streams: ExecutionStreams, runner: GraphRunner) -> None:
        super().__init__(networks, pool, streams, runner)
        assert isinstance(networks.flow, V1Flow)
        self._flow = networks.flow

    def recover(self, state: RenderState) -> None:
        """Do nothing: a failed pass changes no state."""

    def close(self, state: RenderState) -> None:
        state.flow = None
        state.hift = None

    def _mel_frames(self, requests: Sequence[RenderRequest]) -> list[Tensor]:
        """Return the new frames of each request, ``[1, mel, n]``. Requests of equal shape share a pass."""
        groups: dict[_PartShape, list[int]] = {}
        for i, request in enumerate(requests):
            voice = request.state.voice
            shape = _PartShape(
                tokens=request.chunk.known - request.chunk.begin,
                prompt_tokens=len(voice.prompt),
                prompt_frames=voice.prompt_mel.shape[0],
                is_first=request.state.flow is None,
            )
            groups.setdefault(shape, []).append(i)
        frames: dict[int, Tensor] = {}
        states: dict[int, PartState] = {}
        for shape, members in groups.items():
            mel, known = self._part(shape, [requests[i] for i in members])
            for row, i in enumerate(members):
                one = slice(row, row + 1)
                frames[i], states[i] = self._settle(requests[i], mel[one], known[one])
        resampled = self._resample(requests, [frames[i].transpose(1, 2) for i in range(len(requests))])
        for i, state in states.items():
            requests[i].state.flow = state
        return resampled

    def _part(self, shape: _PartShape, requests: Sequence[RenderRequest]) -> tuple[Tensor, Tensor]:
        """Compute the parts of requests of equal shape: mel ``[B, N, mel]`` and the condition of the next parts."""
        flow = self._flow
        upload = self._streams.flow.to_device
        voices = [request.state.voice for request in requests]
        states = [_part_state(request.state) for request in requests]
        count = flow.dims.frames(shape.tokens)
        self.flow_frames += len(requests) * count
        tokens = [request.tokens[request.chunk.begin : request.chunk.known] for request in requests]
        prompts = torch.zeros(len(requests), 0, dtype=torch.long, device=flow.device)
        if shape.prompt_tokens:
            prompts = upload([list(voice.prompt) for voice in voices])
        starts = [0 if state is None else state.start_frame for state in states]
        return flow.part(
            upload([list(ids) for ids in tokens]),
            prompts,
            torch.stack([voice.prompt_mel for voice in voices]),
            torch.cat([voice.spk for voice in voices]),
            torch.cat([flow.noise_at(shape.prompt_frames, start, count) for start in starts]),
            None if shape.is_first else torch.cat([state.known for state in states if state is not None]),
        )

    def _settle(self, request: RenderRequest, mel: Tensor, known: Tensor) -> tuple[Tensor, PartState]:
        """Return the frames ``[1, n, mel]`` that are final now, and the state after them."""
        before = _part_state(request.state)
        if before is not None:
            mel = fade_mel(mel, before.held)
        start = 0 if before is None else before.start_frame
        if request.chunk.final:
            return mel, PartState(known, mel[:, :0], start + mel.shape[1])
        done = mel.shape[1] - self._flow.overlap_frames
        return mel[:, :done], PartState(known, mel[:, done:], start + done)


def _part_state(state: RenderState) -> PartState | None:
    assert state.flow is None or isinstance(state.flow, PartState)
    return state.flow
