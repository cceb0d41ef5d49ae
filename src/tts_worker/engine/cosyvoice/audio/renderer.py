"""Renders speech tokens to PCM for many utterances at once: flow, pace, vocoder, 16-bit samples.

Batches what fits together. All state of an audio segment is in its ``RenderState``. Every chunk costs the same wherever
it is in the utterance; frame counters let tests check this.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.audio.chunks import Chunk
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool, FlowPrompt, FlowState, UnpagedPool, chunk_inputs
from tts_worker.engine.cosyvoice.audio.prosody import STEADY, Prosody, Stretch
from tts_worker.engine.cosyvoice.audio.vocoder_windows import (
    VocoderWindows,
    WindowInput,
    WindowState,
    to_int16,
    window_sizes,
)
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import Compiler, GraphRunner, Tensors
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams, PendingCopy, TimingEvent
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise, HiftState
from tts_worker.engine.worker_thread import StreamFuture
from tts_worker.types import SAMPLE_RATE_HZ


@dataclass(frozen=True)
class PartState:
    """What the next part of a stream of CosyVoice-300M needs of the part before.

    Attributes:
        known: Token condition of the prompt and of the frames that the next part repeats, ``[1, F + O, mel]``.
        held: Mel of these frames, ``[1, O, mel]``.
        start_frame: The first of them.
    """

    known: Tensor
    held: Tensor
    start_frame: int


class MelResampler:
    """Changes the pace: resamples mel frames linearly in time, as they arrive.

    Positions do not depend on how the input was split. The reference resamples the whole mel in the same way.
    """

    def __init__(self) -> None:
        self._cached_mel: Tensor | None = None  # input frames that later outputs need
        self._cached_start = 0  # absolute index of the first cached frame
        self._emitted_frames = 0

    def push(self, mel: Tensor, final: bool, prosody: Prosody) -> Tensor:
        """Add input frames and return the output frames that are complete.

        Args:
            mel: Input frames, ``[1, mel, n]``.
            final: Whether no more input follows.
            prosody: The pace of all frames so far.

        Returns:
            Output frames, ``[1, mel, m]``.
        """
        if not prosody.changes_pace:
            if mel.shape[2]:
                self._emitted_frames += mel.shape[2]
                self._cached_mel, self._cached_start = mel[:, :, -1:], self._emitted_frames - 1
            return mel
        cached = mel if self._cached_mel is None else torch.cat([self._cached_mel, mel], dim=2)
        start = self._cached_start
        total = start + cached.shape[2]
        end = int(prosody.output_frames(total))
        if not final:  # interpolation needs the next input frame
            while end and _position(prosody.stretch_at(end - 1), end - 1) > total - 1:
                end -= 1
        end = max(end, self._emitted_frames)
        positions = [
            _position(stretch, torch.arange(first, last, device=mel.device).double())
            for stretch, first, last in prosody.pieces(self._emitted_frames, end)
        ]
        position = torch.cat(positions or [mel.new_zeros(0)]).clamp(min=0.0, max=max(0.0, float(total - 1)))
        left = position.floor().long()
        weight = (position - left).to(mel.dtype)
        right = (left + 1).clamp(max=total - 1)
        out = cached[:, :, left - start] * (1 - weight) + cached[:, :, right - start] * weight
        self._emitted_frames = end
        needed = max(start, min(int(max(0.0, _position(prosody.stretch_at(end), end))), total - 1))
        self._cached_mel = cached[:, :, needed - start :]
        self._cached_start = needed
        return out


Position = TypeVar("Position", float, Tensor)


def _position(stretch: Stretch, output_frame: Position) -> Position:
    """Return the input frames, with fractions, of output frames of a stretch."""
    return (output_frame + 0.5 - stretch.start) * stretch.speed - 0.5 + stretch.frame


@dataclass(eq=False)
class RenderState:
    """State of one audio segment in the networks.

    Attributes:
        voice: The voice.
        seed: Seed of the vocoder's noise.
        resampler: Changes the pace.
        flow: Cache of the flow; ``None`` before the first pass and after a fault.
        hift: Cache of the vocoder.
    """

    voice: FlowPrompt
    seed: int
    resampler: MelResampler = field(default_factory=MelResampler)
    flow: FlowState | PartState | None = None
    hift: HiftState | WindowState | None = None


def chunk_pages(state: RenderState, chunk: Chunk, chunk_tokens: int) -> int:
    """Return the number of pages that ``chunk`` needs, one per chunk of the mask.

    An unaligned start or end of a segment needs one more than its chunks.
    """
    if isinstance(state.flow, FlowState):
        done = state.flow.tokens
    else:
        done = state.voice.flow.tokens if state.voice.flow is not None else 0
    return -(-(len(state.voice.prompt) + chunk.end - done) // chunk_tokens)


@dataclass(frozen=True)
class RenderRequest:
    """A due chunk, and the tokens ``[0, chunk.known)`` of its segment.

    Attributes:
        state: State of the segment.
        chunk: The chunk.
        tokens: The tokens; empty if the host has not read them.
        ids: The tokens on the device ``[n]``, if the host has not read them.
        prosody: How all frames of the segment are spoken, up to the end of the chunk.
    """

    state: RenderState
    chunk: Chunk
    tokens: tuple[int, ...]
    ids: Tensor | None = None
    prosody: Prosody = STEADY


@dataclass(frozen=True)
class _TimedOutput:
    """What a pass returns: its begin and end on the device, and the frames that it computed, padding included."""

    start: TimingEvent
    end: TimingEvent
    computed_frames: int

    @property
    def ms(self) -> float:
        """Device time of the pass. Blocks until it is done."""
        return self.end.ms_since(self.start)


@dataclass(frozen=True)
class FlowOutput(_TimedOutput):
    """Mel frames of each request, ``[1, mel, n]``."""

    frames: list[Tensor]


@dataclass(frozen=True)
class RenderedChunk:
    """Audio of one request on its way to the host: the start of one row of int16 samples ``[B, n]``."""

    samples: PendingCopy
    row: int
    count: int

    def pcm(self) -> bytes:
        """Return the samples as s16le. Blocks until they are on the host."""
        return self.samples.wait()[self.row, : self.count].numpy().tobytes()


@dataclass(frozen=True)
class VocoderOutput(_TimedOutput):
    """Audio and next vocoder state of each request.

    The caller assigns the next states once the audio is on the host, so that a failed copy can be retried.
    """

    chunks: list[RenderedChunk]
    next_states: Sequence[HiftState | WindowState]

    @property
    def ready(self) -> bool:
        return all(chunk.samples.ready for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class VocoderShape:
    """Shape of a vocoder batch. Streams can share a batch only if all of these are equal.

    Attributes:
        frames: New mel frames.
        cached_mel: Cached mel frames.
        cached_f0: Cached pitch values.
        emitted_frames: Cached frames that were emitted.
        tail: Samples held for the cross-fade.
        final: Whether this is the end of the stream.
    """

    frames: int
    cached_mel: int
    cached_f0: int
    emitted_frames: int
    tail: int
    final: bool


class Renderer:
    """Runs the flow and the vocoder on their streams.

    Args:
        networks: The networks.
        pool: Memory of the flow.
        streams: Execution streams of the device.
        runner: Runs the vocoder.
        stride: Most chunks of a segment in one flow pass.
        first_tokens: Speech tokens before the first chunk boundary.

    Attributes:
        pool: Memory of the flow.
        flow_frames: Frames computed by the flow so far.
        vocoder_frames: Frames computed by the vocoder so far.
    """

    def __init__(
        self,
        networks: Networks,
        pool: FlowPool | UnpagedPool,
        streams: ExecutionStreams,
        runner: GraphRunner,
        stride: int = 1,
        first_tokens: int = 8,
    ) -> None:
        self._networks = networks
        self.pool = pool
        self._streams = streams
        self._runner = runner
        self._stride = stride
        self.flow_frames = 0
        self.vocoder_frames = 0
        self._windows: VocoderWindows | None = None
        if runner.fixed_shapes:
            sizes = window_sizes(networks.hift, networks.config.flow, first_tokens=first_tokens, stride=stride)
            self._windows = VocoderWindows(networks.hift, streams.vocoder, runner, sizes, pool.device)

    def samples(self, mel: Tensor) -> int:
        """Return the number of samples of frames ``[1, mel, n]``, at the rate of the worker."""
        config = self._networks.config
        return mel.shape[2] * config.hift.frame_samples * SAMPLE_RATE_HZ // config.sample_rate_hz

    def close(self, state: RenderState) -> None:
        """Release the caches of ``state``. Idempotent.

        Safe during a flow pass over other states: the pass takes from the free lists to which this appends.
        """
        self.recover(state)
        state.hift = None

    def recover(self, state: RenderState) -> None:
        """Drop the flow cache of ``state`` after a failed pass. The next pass computes it again from the tokens."""
        if isinstance(state.flow, FlowState):
            self.pool.close(state.flow)
            state.flow = None

    def restart(self, state: RenderState) -> None:
        """Drop all that was computed for ``state``: its first chunk is rendered from other tokens."""
        self.close(state)
        state.resampler = MelResampler()

    # -- tokens to mel ------------------------------------------------------------------------------------------------

    def flow(self, requests: Sequence[RenderRequest]) -> StreamFuture[FlowOutput]:
        """Submit a flow pass. The states must not be used until it is done.

        The result raises ``OutOfMemory`` if the pool has no free pages. After any other error the states need
        ``recover``.
        """
        return self._streams.flow.submit(partial(self.run_flow, requests))

    @torch.inference_mode()
    def run_flow(self, requests: Sequence[RenderRequest]) -> FlowOutput:
        with self._streams.flow as stream:
            start = stream.record_event()
            before = self.flow_frames
            frames = self._mel_frames(requests)
            return FlowOutput(start, stream.record_event(), self.flow_frames - before, frames)

    def _mel_frames(self, requests: Sequence[RenderRequest]) -> list[Tensor]:
        """Return the new frames of each request, ``[1, mel, n]``. Requests with equally many chunks share a pass."""
        parts: list[list[Tensor]] = [[] for _ in requests]
        for request in requests:
            if request.state.flow is None:
                request.state.flow = self.pool.open(request.state.voice.flow)
        remaining = [chunk_pages(request.state, request.chunk, self.pool.chunk_tokens) for request in requests]
        while any(remaining):
            indexes = [i for i, chunks in enumerate(remaining) if chunks == max(remaining)]
            stride = min(max(remaining), self._stride)
            for i, mel in zip(indexes, self._advance([requests[i] for i in indexes], stride), strict=True):
                parts[i].append(mel)
                remaining[i] -= stride
        return self._resample(requests, [torch.cat(part, dim=1).transpose(1, 2) for part in parts])

    def _resample(self, requests: Sequence[RenderRequest], frames: list[Tensor]) -> list[Tensor]:
        """Change the pace of the new frames of each request, ``[1, mel, n]``."""
        # Copies, so that a fault in the middle of the batch leaves all resamplers unchanged.
        resamplers = [copy(request.state.resampler) for request in requests]
        frames = [
            resampler.push(mel, request.chunk.final, request.prosody)
            for request, mel, resampler in zip(requests, frames, resamplers, strict=True)
        ]
        for request, resampler in zip(requests, resamplers, strict=True):
            request.state.resampler = resampler
        return frames

    def _advance(self, requests: Sequence[RenderRequest], chunks: int) -> list[Tensor]:
        """Compute the next ``chunks`` chunks of each state. Returns the frames ``[1, n, mel]`` within each request."""
        dims = self._networks.config.chunked_flow
        ratio = dims.frames_per_token
        flow_states = []
        inputs = []
        starts = []
        for request in requests:
            voice = request.state.voice
            flow_state = request.state.flow
            assert isinstance(flow_state, FlowState)
            tokens = [*voice.prompt, *(request.tokens or [0] * request.chunk.known)]
            inputs.append(chunk_inputs(dims, tokens, voice.prompt_mel, flow_state.tokens, chunks))
            flow_states.append(flow_state)
            starts.append(flow_state.tokens)
        tokens_sent = self._streams.flow.to_device([ids for ids, _, _ in inputs])
        for row, request, start in zip(tokens_sent, requests, starts, strict=True):
            self._insert_ids(row, request, start)
        mel = cast("FlowPool", self.pool).advance(
            flow_states,
            tokens_sent,
            [known for _, known, _ in inputs],
            torch.cat([request.state.voice.spk for request in requests]),
            torch.cat([cond for _, _, cond in inputs]),
        )
        self.flow_frames += mel.shape[0] * mel.shape[1]
        frames = []
        for row, (request, start) in enumerate(zip(requests, starts, strict=True)):
            prompt_tokens = len(request.state.voice.prompt)
            first = max(0, prompt_tokens + request.chunk.begin - start)
            last = min(chunks * self.pool.chunk_tokens, prompt_tokens + request.chunk.end - start)
            frames.append(mel[row : row + 1, first * ratio : max(first, last) * ratio].clone())
        return frames

    def _insert_ids(self, row: Tensor, request: RenderRequest, start: int) -> None:
        """Copy ids that are on the device only to where they belong in a window from token ``start``, ``row [n]``."""
        if request.ids is None:
            return
        begin = len(request.state.voice.prompt) - start  # of the segment, in the window
        first = max(0, -begin)
        ids = request.ids[first : row.shape[0] - begin]
        # An id that is not speech would be read beyond the embedding. The audio is not used then.
        row[begin + first : begin + first + ids.shape[0]] = ids.clamp(0, self._networks.config.flow.vocab - 1)

    # -- mel to audio -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def vocode(self, requests: Sequence[RenderRequest], mels: Sequence[Tensor]) -> VocoderOutput:
        """Submit a vocoder pass over the frames ``[1, mel, n]`` of each request. Changes no state."""
        with self._streams.vocoder as stream:
            start = stream.record_event()
            before = self.vocoder_frames
            chunks: list[RenderedChunk]
            next_states: Sequence[HiftState | WindowState]
            if self._windows is None:
                chunks, next_states = self._run_vocoder(requests, mels)
            else:
                chunks, next_states = self._run_windows(self._windows, requests, mels)
            return VocoderOutput(start, stream.record_event(), self.vocoder_frames - before, chunks, next_states)

    def _run_windows(
        self, windows: VocoderWindows, requests: Sequence[RenderRequest], mels: Sequence[Tensor]
    ) -> tuple[list[RenderedChunk], list[WindowState]]:
        """Run all requests as one batch of windows of a fixed size."""
        inputs = []
        for request, mel in zip(requests, mels, strict=True):
            state = request.state.hift
            assert not isinstance(state, HiftState)
            inputs.append(WindowInput(state, request.state.seed, mel, request.chunk.final, request.prosody))
        samples, counts, next_states = windows.run(inputs)
        self.vocoder_frames = windows.frames
        pending = self._streams.vocoder.to_host(samples)
        return [RenderedChunk(pending, row, count) for row, count in enumerate(counts)], next_states

    def _run_vocoder(
        self, requests: Sequence[RenderRequest], mels: Sequence[Tensor]
    ) -> tuple[list[RenderedChunk], list[HiftState]]:
        """Run requests of equal shape as one batch."""
        groups: dict[VocoderShape, list[int]] = {}
        hift = self._networks.hift
        states = []
        for request, mel in zip(requests, mels, strict=True):
            state = request.state.hift
            assert not isinstance(state, WindowState)
            states.append(state or hift.start(1, mel.device))
        for i, (request, mel, state) in enumerate(zip(requests, mels, states, strict=True)):
            shape = VocoderShape(
                frames=mel.shape[2],
                cached_mel=state.cached_mel.shape[2],
                cached_f0=state.cached_f0.shape[1],
                emitted_frames=state.emitted_frames,
                tail=0 if state.tail is None else state.tail.shape[1],
                final=request.chunk.final,
            )
            groups.setdefault(shape, []).append(i)
        chunks: dict[int, RenderedChunk] = {}
        for shape, members in groups.items():
            samples, next_states = self._run_vocoder_batch(
                shape,
                [states[i] for i in members],
                [requests[i] for i in members],
                torch.cat([mels[i] for i in members]),
            )
            pending = self._streams.vocoder.to_host(samples)
            for row, i in enumerate(members):
                chunks[i] = RenderedChunk(pending, row, samples.shape[1])
                states[i] = next_states[row]
        return [chunks[i] for i in range(len(requests))], states

    def _run_vocoder_batch(
        self, shape: VocoderShape, states: Sequence[HiftState], requests: Sequence[RenderRequest], mel: Tensor
    ) -> tuple[Tensor, list[HiftState]]:
        """Run streams of equal shape as one batch. Returns int16 samples ``[B, n]`` and the next states."""
        self.vocoder_frames += mel.shape[0] * (mel.shape[2] + states[0].cached_mel.shape[2])
        hift = self._networks.hift
        after = HiftState(
            torch.cat([state.cached_mel for state in states]),
            torch.cat([state.cached_f0 for state in states]),
            torch.cat([state.phase for state in states]),
            torch.cat([state.start for state in states]),
            shape.emitted_frames,
            torch.cat([state.tail for state in states if state.tail is not None]) if shape.tail else None,
        )
        seeds = [request.state.seed for request in requests]
        noise = HashedNoise(self._streams.vocoder.to_device(seeds), not hift.dims.causal)
        pitch_factors = _pitch_factors(requests, states, shape.cached_mel + shape.frames)

        def vocode(mel: Tensor) -> Tensors:  # the shapes are those of the streams, so it is never captured
            nonlocal after
            audio, after = hift.stream(mel, after, noise, shape.final, pitch_factors)
            return (to_int16(audio),)

        (samples,) = self._runner.run(("vocoder", len(states), shape), vocode, (mel,))
        return samples, [
            HiftState(
                after.cached_mel[row],
                after.cached_f0[row],
                after.phase[row],
                after.start[row],
                after.emitted_frames,
                None if after.tail is None else after.tail[row],
            )
            for row in (slice(i, i + 1) for i in range(len(states)))
        ]

    @torch.inference_mode()
    def capture(self, batch: int, compiler: Compiler | None = None) -> None:
        """Capture the vocoder for every window size and batch size."""
        if self._windows is not None:
            self._windows.capture(batch, compiler)


def _pitch_factors(requests: Sequence[RenderRequest], states: Sequence[HiftState], frames: int) -> Tensor | None:
    """Return the factors of the pitch of ``frames`` cached and new frames of each stream ``[B, n]``; None if 1."""
    if not any(request.prosody.changes("pitch_semitones") for request in requests):
        return None
    starts = [int(state.start) for state in states]
    rows = [
        request.prosody.pitch_factors(start, start + frames) for request, start in zip(requests, starts, strict=True)
    ]
    return torch.from_numpy(np.stack(rows)).to(states[0].start.device)
