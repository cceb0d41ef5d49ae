"""Runs the vocoder on windows of a few fixed sizes, so that every pass can be a captured graph.

The chunks of an utterance have many lengths: the first and the last one, and all of them at another pace. Each is
padded to the next window size and the rest of the audio is cut off, so that streams of any length share a batch. The
network sees the padding as the zero padding of a shorter window (``Hift.window``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tts_worker.audio.pcm import FULL_SCALE
from tts_worker.engine.cosyvoice.audio.prosody import SPEED_RANGE, STEADY, Prosody
from tts_worker.engine.cosyvoice.execution.graph_runner import (
    Compiler,
    GraphRunner,
    Tensors,
    captured_rows,
    padded_rows,
)
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStream
from tts_worker.engine.cosyvoice.networks.dims import AnyFlowDims
from tts_worker.engine.cosyvoice.networks.hift import BLEND_FRAMES, HashedNoise, Hift, WindowRow

VOCODER_TOLERANCE = 0.02
"""Largest difference of a compiled window: the excitation multiplies a difference of the pitch a hundredfold."""

_STEP_FRAMES = 40  # at most, between the sizes above the regular one


@dataclass(frozen=True)
class WindowState:
    """State of a stream between two windows.

    Attributes:
        mel: Cached mel frames, ``[1, mel, K]``.
        f0: Final pitch of the first cached frames, ``[1, K']``.
        phase: Cycles / frame before the first cached frame, ``[1, H]``, float64.
        tail: Early audio of the next frames, for the cross-fade, ``[1, n]``; ``None`` without one.
        start: Absolute index of the first cached frame.
        emitted: Cached frames that were emitted.
    """

    mel: Tensor
    f0: Tensor
    phase: Tensor
    tail: Tensor | None
    start: int
    emitted: int


@dataclass(frozen=True)
class WindowInput:
    """New mel frames of one stream.

    Attributes:
        state: State of the stream; ``None`` before its first window.
        seed: Seed of its noise.
        mel: New frames, ``[1, mel, n]``.
        final: Whether no more follow.
        prosody: How all frames so far are spoken.
    """

    state: WindowState | None
    seed: int
    mel: Tensor
    final: bool
    prosody: Prosody = STEADY


def window_sizes(hift: Hift, flow: AnyFlowDims, *, first_tokens: int, stride: int) -> tuple[int, ...]:
    """Return the window sizes, in frames, that all chunks of an utterance fit into.

    The first chunk of a voice with a prompt, a first chunk without one and a later chunk fit exactly. Larger sizes are
    for last chunks and for a slower pace.

    Args:
        hift: The vocoder.
        flow: Dimensions of the flow.
        first_tokens: Speech tokens before the first chunk boundary.
        stride: Most chunks of the mask in one chunk.
    """
    cached = hift.history + hift.held
    chunk = flow.chunk_tokens * flow.frames_per_token
    regular = cached + chunk
    exact = {min(first_tokens, flow.chunk_tokens) * flow.frames_per_token, chunk, regular, cached + stride * chunk}
    longest_tokens = stride * flow.chunk_tokens + flow.lookahead_tokens
    # The resampler may keep a few frames for the next chunk.
    longest = cached + int(longest_tokens * flow.frames_per_token / SPEED_RANGE[0]) + 4
    steps = -(-(longest - regular) // _STEP_FRAMES)
    larger = (regular + -(-(longest - regular) * step // steps) for step in range(1, steps + 1))
    return tuple(sorted({*exact, *larger}))


class VocoderWindows:
    """Runs windows of many streams as one batch.

    Args:
        hift: The vocoder.
        stream: Its execution stream.
        runner: Runs the passes.
        sizes: Window sizes, ascending.
        device: Device of the vocoder.

    Attributes:
        frames: Frames computed so far.
    """

    def __init__(
        self, hift: Hift, stream: ExecutionStream, runner: GraphRunner, sizes: Sequence[int], device: torch.device
    ) -> None:
        self._hift = hift
        self._stream = stream
        self._runner = runner
        self._sizes = tuple(sizes)
        self._tail_samples = 0 if hift.dims.causal else BLEND_FRAMES * hift.dims.frame_samples
        empty = hift.start(1, device)
        self._start = WindowState(empty.cached_mel, empty.cached_f0, empty.phase, None, 0, 0)
        self.frames = 0

    def run(self, inputs: Sequence[WindowInput]) -> tuple[Tensor, list[int], list[WindowState]]:
        """Run one pass over the streams.

        Returns:
            int16 samples ``[B, n]``; for each stream, how many of its row are audio, and its next state.
        """
        hift = self._hift
        states = [item.state or self._start for item in inputs]
        plan = [
            hift.plan_window(
                state.mel.shape[2],
                state.f0.shape[1],
                state.emitted,
                item.mel.shape[2],
                state.tail is not None,
                item.final,
            )
            for item, state in zip(inputs, states, strict=True)
        ]
        counts = [(row.end - row.emitted) * hift.dims.frame_samples for row in plan]
        if not any(counts):  # nothing is final yet
            samples = inputs[0].mel.new_zeros(len(inputs), 0, dtype=torch.int16)
            return samples, counts, [_append(state, item.mel) for state, item in zip(states, inputs, strict=True)]
        size = self._size(max(row.frames for row in plan))
        mel = states[0].mel.new_zeros(padded_rows(len(inputs)), states[0].mel.shape[1], size)
        for i, (state, item) in enumerate(zip(states, inputs, strict=True)):
            cached = state.mel.shape[2]
            mel[i, :, :cached] = state.mel[0]
            mel[i, :, cached : cached + item.mel.shape[2]] = item.mel[0]
        samples, f0, phase, tail = self._run_rows(mel, states, inputs, plan)
        next_states = []
        for i, (row, state, item) in enumerate(zip(plan, states, inputs, strict=True)):
            if not counts[i]:
                next_states.append(_append(state, item.mel))
                continue
            one = slice(i, i + 1)
            known = row.frames - hift.f0_ahead if hift.dims.causal else row.end  # further pitch may still change
            next_states.append(
                WindowState(
                    mel[one, :, row.drop : row.frames],
                    f0[one, row.drop : known],
                    phase[one],
                    tail[one] if self._tail_samples else None,
                    state.start + row.drop,
                    row.end - row.drop,
                )
            )
        return samples[: len(inputs)], counts, next_states

    def _run_rows(
        self, mel: Tensor, states: Sequence[WindowState], streams: Sequence[WindowInput], plan: Sequence[WindowRow]
    ) -> Tensors:
        """Run the windows ``mel [B, mel, W]``; rows after the last stream are padding. Returns copies."""
        rows, _, size = mel.shape
        inputs = self._inputs(mel, states, streams, plan)
        ends = self._hift.dims.causal or any(row.frames < size for row in plan)
        self.frames += rows * size
        samples, *after = self._runner.run(("vocoder", rows, size, ends), self._compute(ends), inputs)
        return samples, *(tensor.clone() for tensor in after)  # a graph reuses its output buffers

    def _inputs(
        self, mel: Tensor, states: Sequence[WindowState], streams: Sequence[WindowInput], plan: Sequence[WindowRow]
    ) -> Tensors:
        """Return the inputs of ``_compute`` for the windows ``mel [B, mel, W]``."""
        rows, _, size = mel.shape
        padding = rows - len(states)
        f0 = mel.new_ones(rows, size)
        for row, state, item in zip(f0, states, streams, strict=False):
            if item.prosody.changes("pitch_semitones"):
                row[:] = torch.from_numpy(item.prosody.pitch_factors(state.start, state.start + size))
            row[: state.f0.shape[1]] = state.f0[0]
        no_tail = mel.new_zeros(1, self._tail_samples)
        tails = [no_tail if state.tail is None else state.tail for state in states]
        # One upload: seed and start, then the row of the plan.
        sent = [[item.seed, state.start, *_fields(row)] for item, state, row in zip(streams, states, plan, strict=True)]
        sent += [[0, 0, *_fields(self._padding_row(size))]] * padding
        return (
            mel,
            f0,
            torch.cat([*(state.phase for state in states), *[self._start.phase] * padding]),
            torch.cat([*tails, *[no_tail] * padding]),
            self._stream.to_device(sent),
        )

    def capture(self, batch: int, compiler: Compiler | None = None) -> None:
        """Capture every size and batch, the largest first: the others reuse its memory.

        Args:
            batch: Most streams in a pass.
            compiler: Compiles the windows of a single stream.
        """
        causal = self._hift.dims.causal
        with self._stream:
            for rows in captured_rows(batch):
                for size in reversed(self._sizes):
                    for ends in (True,) if causal else (True, False):
                        mel = self._start.mel.new_zeros(rows, self._start.mel.shape[1], size)
                        inputs = self._inputs(mel, [], [], [])
                        key = ("vocoder", rows, size, ends)
                        compute = self._compute(ends)
                        if compiler is not None and rows == 1:
                            generator = torch.Generator(mel.device).manual_seed(size)
                            noise = torch.randn(mel.shape, generator=generator, device=mel.device)
                            compute = compiler.compile(key, compute, (noise, *inputs[1:]), (), VOCODER_TOLERANCE)
                        self._runner.capture(key, compute, inputs)

    def _size(self, frames: int) -> int:
        """Return the smallest window size for ``frames``. Beyond all sizes, a window has its exact length."""
        return next((size for size in self._sizes if size >= frames), frames)

    def _padding_row(self, size: int) -> WindowRow:
        return self._hift.plan_window(0, 0, 0, size, False, True)

    def _compute(self, ends: bool) -> Callable[..., Tensors]:
        hift = self._hift

        def vocode(mel: Tensor, f0: Tensor, phase: Tensor, tail: Tensor, sent: Tensor) -> Tensors:
            noise = HashedNoise(sent[:, 0], not hift.dims.causal)
            audio, *state = hift.window(mel, f0, phase, tail, sent[:, 2:], sent[:, 1], noise, ends)
            return to_int16(audio), *state

        return vocode


def _fields(row: WindowRow) -> tuple[int, ...]:
    return row.frames, row.known, row.emitted, row.end, row.drop, row.fade


def _append(state: WindowState, mel: Tensor) -> WindowState:
    """Return ``state`` with more cached frames."""
    return WindowState(
        torch.cat([state.mel, mel], dim=2), state.f0, state.phase, state.tail, state.start, state.emitted
    )


def to_int16(audio: Tensor) -> Tensor:
    """Convert float samples to int16 on the device: clipped, rounded to nearest, NaN becomes 0."""
    scaled = (audio.nan_to_num(nan=0.0).clamp(-1.0, 1.0) * FULL_SCALE).round()
    return scaled.clamp(max=FULL_SCALE - 1).to(torch.int16)
