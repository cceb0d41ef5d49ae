"""Speech tokens to PCM for many utterances at once: the next chunk of the flow, the vocoder on a window, 16 bits.

Owns the pass order and the batching of what fits together; all state of a stream of sound is in its ``SoundStream``.
Each chunk costs the same wherever it stands in the utterance: frames computed are counted, so that a test can tell.
It must not know when a chunk is due, who listens or how urgent anything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tts_worker.audio.pcm import FULL_SCALE
from tts_worker.engine.cosyvoice.chunks import Chunk
from tts_worker.engine.cosyvoice.flow.stream import FlowPool, FlowState
from tts_worker.engine.cosyvoice.hift import HashedNoise, HiftState
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.streaming.graphs import Runner
from tts_worker.engine.streaming.lanes import Begun, Lanes, Mark, Ticket
from tts_worker.engine.streaming.voices import VoiceState, window


class Stretch:
    """Another pace: mel frames resampled linearly in time as they come, at positions that do not depend on the cuts.

    ``speed`` 2 makes half as many frames. Source: the reference resamples the whole mel the same way.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._kept: Tensor | None = None  # frames that later ones are mixed with
        self._first = 0  # absolute number of the first kept frame
        self._made = 0

    @staticmethod
    def frames(frames: int, speed: float) -> int:
        """How many frames become of so many."""
        return int(frames / speed)

    def push(self, mel: Tensor, final: bool) -> Tensor:
        """``[1, mel, n]`` more frames; returns those that are settled, ``[1, mel, m]``."""
        kept = mel if self._kept is None else torch.cat([self._kept, mel], dim=2)
        total = self._first + kept.shape[2]
        end = self.frames(total, self._speed)
        if not final:  # the last one needs a frame to its right
            while end and (end - 0.5) * self._speed - 0.5 > total - 1:
                end -= 1
        place = (torch.arange(self._made, max(end, self._made), device=mel.device) + 0.5).double() * self._speed - 0.5
        place = place.clamp(min=0.0, max=max(0.0, float(total - 1)))
        left = place.floor().long()
        share = (place - left).to(mel.dtype)
        right = (left + 1).clamp(max=total - 1)
        out = kept[:, :, left - self._first] * (1 - share) + kept[:, :, right - self._first] * share
        self._made = max(end, self._made)
        needed = max(self._first, min(int(max(0.0, (self._made + 0.5) * self._speed - 0.5)), total - 1))
        self._kept = kept[:, :, needed - self._first :]
        self._first = needed
        return out


@dataclass(eq=False)
class SoundStream:
    """One unbroken stretch of sound: its voice, its speech tokens so far, and what the networks remember of it."""

    voice: VoiceState
    seed: int
    tokens: list[int]
    stretch: Stretch | None = None
    flow: FlowState | None = None
    hift: HiftState | None = None


@dataclass(frozen=True)
class Work:
    """``chunk`` of ``stream`` is due. ``tokens``: those that it knows."""

    stream: SoundStream
    chunk: Chunk
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Made:
    begun: Mark
    done: Mark

    @property
    def ms(self) -> float:
        """What the device took for it. Blocks until it is done."""
        return self.done.ms_since(self.begun)


@dataclass(frozen=True)
class Mels(_Made):
    """What the flow made of some works, ``[1, mel, n]`` each."""

    frames: list[Tensor]


@dataclass(frozen=True)
class Rendered:
    """Sound on its way to the host: 16-bit samples ``[B, n]``, ``row`` is this work's."""

    ticket: Ticket
    row: int

    def pcm(self) -> bytes:
        return self.ticket.wait()[self.row].numpy().tobytes()


@dataclass(frozen=True)
class Voiced(_Made):
    """What the vocoder made of some works, and where it stands afterwards: their streams go on from there once their
    sound has come to the host."""

    parts: list[Rendered]
    after: list[HiftState]

    @property
    def ready(self) -> bool:
        return all(part.ticket.ready for part in self.parts)


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a vocoder batch: streams run together only if all of these are equal.

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
    """Runs the flow and the vocoder, in the lanes of either. ``stride``: the flow computes up to so many chunks of a
    stream in one pass. ``flow_frames``, ``vocoder_frames``: how many were computed so far."""

    def __init__(self, networks: Networks, pool: FlowPool, lanes: Lanes, runner: Runner, stride: int = 1) -> None:
        self._networks = networks
        self.pool = pool
        self._lanes = lanes
        self._runner = runner
        self._stride = stride
        self.flow_frames = self.vocoder_frames = 0
        self._after: dict[Shape, tuple[int, bool]] = {}

    def pages(self, work: Work) -> int:
        """How many chunks of the mask a piece of work takes (one more than its own at a stream's odd begin or end)."""
        stream = work.stream
        size = self.pool.chunk_tokens
        if stream.flow is not None:
            done = stream.flow.tokens
        else:
            done = stream.voice.flow.tokens if stream.voice.flow is not None else 0
        return -(-(len(stream.voice.prompt) + work.chunk.end - done) // size)

    def samples(self, mel: Tensor) -> int:
        """How much sound becomes of frames ``[1, mel, n]``."""
        return mel.shape[2] * self._networks.config.hift.frame_samples

    def close(self, stream: SoundStream) -> None:
        """Free what ``stream`` holds, also while the flow is at others: that takes from lists to which this adds.
        Idempotent."""
        self.recover(stream)
        stream.hift = None

    def recover(self, stream: SoundStream) -> None:
        """A pass failed half-way, so the flow's memory of ``stream`` is not to be trusted. It is forgotten, and made
        anew from the tokens by the next pass: the sound goes on as if nothing had been."""
        if stream.flow is not None:
            self.pool.close(stream.flow)
            stream.flow = None

    # -- tokens to mel ------------------------------------------------------------------------------------------------

    def flow(self, works: Sequence[Work]) -> Begun[Mels]:
        """Begin the flow's part of what is due. Its streams are nobody else's until that is over.

        What comes of it raises OutOfMemory if the pool has no pages; whatever else the networks raise leaves the
        streams in need of ``recover``.
        """
        return self._lanes.flow.do(partial(self._mels, works))

    @torch.inference_mode()
    def _mels(self, works: Sequence[Work]) -> Mels:
        with self._lanes.flow as lane:
            begun = lane.mark()
            frames = self._frames(works)
            return Mels(begun, lane.mark(), frames)

    def _frames(self, works: Sequence[Work]) -> list[Tensor]:
        """The new frames of each work, ``[1, mel, n]``. Works that take equally many passes run as one batch."""
        parts: list[list[Tensor]] = [[] for _ in works]
        for work in works:
            if work.stream.flow is None:
                work.stream.flow = self.pool.open(work.stream.voice.flow)
        left = [self.pages(work) for work in works]
        while any(left):
            now = [i for i, chunks in enumerate(left) if chunks == max(left)]
            wide = min(max(left), self._stride)
            for i, mel in zip(now, self._pass([works[i] for i in now], wide), strict=True):
                parts[i].append(mel)
                left[i] -= wide
        frames = [torch.cat(part, dim=1).transpose(1, 2) for part in parts]
        paces = [copy(work.stream.stretch) for work in works]
        frames = [
            mel if pace is None else pace.push(mel, work.chunk.final)
            for work, mel, pace in zip(works, frames, paces, strict=True)
        ]
        for work, pace in zip(works, paces, strict=True):
            work.stream.stretch = pace
        return frames

    def _pass(self, works: Sequence[Work], chunks: int) -> list[Tensor]:
        """The next ``chunks`` of each stream: their frames ``[1, n, mel]`` that nobody has heard."""
        config = self._networks.config
        ratio = self._networks.config.flow.frames_per_token
        states = []
        windows = []
        begins = []
        for work in works:
            stream = work.stream
            state = work.stream.flow
            assert state is not None
            tokens = [*stream.voice.prompt, *work.tokens]
            windows.append(window(config, tokens, stream.voice.prompt_mel, state.tokens, len(tokens), chunks))
            states.append(state)
            begins.append(state.tokens)
        mel = self.pool.advance(
            states,
            self._lanes.flow.send([ids for ids, _, _ in windows]),
            [known for _, known, _ in windows],
            torch.cat([work.stream.voice.spk for work in works]),
            torch.cat([cond for _, _, cond in windows]),
        )
        self.flow_frames += mel.shape[0] * mel.shape[1]
        out = []
        for row, (work, begin) in enumerate(zip(works, begins, strict=True)):
            prompt = len(work.stream.voice.prompt)
            first = max(0, prompt + work.chunk.begin - begin)
            last = min(chunks * self.pool.chunk_tokens, prompt + work.chunk.end - begin)
            out.append(mel[row : row + 1, first * ratio : max(first, last) * ratio].clone())
        return out

    # -- mel to sound -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def vocode(self, works: Sequence[Work], mels: Sequence[Tensor]) -> Voiced:
        """Turn the frames ``[1, mel, n]`` of each work into sound. Those that have kept equally much run as one batch.
        No stream is changed."""
        with self._lanes.vocoder as lane:
            begun, (parts, after) = lane.mark(), self._sounds(works, mels)
            return Voiced(begun, lane.mark(), parts, after)

    def _sounds(self, works: Sequence[Work], mels: Sequence[Tensor]) -> tuple[list[Rendered], list[HiftState]]:
        groups: dict[Shape, list[int]] = {}
        hift = self._networks.hift
        states = [work.stream.hift or hift.start(1, mel.device) for work, mel in zip(works, mels, strict=True)]
        for i, (work, mel, state) in enumerate(zip(works, mels, states, strict=True)):
            tail = 0 if state.tail is None else state.tail.shape[1]
            key = Shape(
                mel.shape[2],
                state.cached_mel.shape[2],
                state.cached_f0.shape[1],
                state.emitted_frames,
                tail,
                work.chunk.final,
            )
            groups.setdefault(key, []).append(i)
        done: dict[int, Rendered] = {}
        for key, members in groups.items():
            seeds = [works[i].stream.seed for i in members]
            samples, after = self._group(
                key, [states[i] for i in members], seeds, torch.cat([mels[i] for i in members])
            )
            ticket = self._lanes.vocoder.fetch(samples)
            for row, i in enumerate(members):
                done[i], states[i] = Rendered(ticket, row), after[row]
        return [done[i] for i in range(len(works))], states

    def _group(
        self, key: Shape, states: Sequence[HiftState], seeds: Sequence[int], mel: Tensor
    ) -> tuple[Tensor, list[HiftState]]:
        """Streams of equal shape as one batch: 16-bit samples ``[B, n]``, and their states afterwards."""
        self.vocoder_frames += mel.shape[0] * (mel.shape[2] + states[0].cached_mel.shape[2])
        no_tail = states[0].cached_mel[:, 0, :0]
        inputs = (
            mel,
            torch.cat([state.cached_mel for state in states]),
            torch.cat([state.cached_f0 for state in states]),
            torch.cat([state.phase for state in states]),
            torch.cat([state.start for state in states]),
            torch.cat([no_tail if state.tail is None else state.tail for state in states]),
            self._lanes.vocoder.send(seeds),
        )
        samples, *parts = self._runner.run(("vocoder", len(states), key), self._vocoder(key), inputs)
        emitted_frames, has_tail = self._after[key]
        rows = zip(*(torch.split(part.clone(), 1) for part in parts), strict=True)  # a recording's buffers are reused
        return samples, [
            HiftState(cached_mel, f0, phase, start, emitted_frames, tail if has_tail else None)
            for cached_mel, f0, phase, start, tail in rows
        ]

    @torch.inference_mode()
    def record_shapes(self, batch: int) -> None:
        """Run the vocoder once more for every shape that is met within an utterance, in every batch."""
        with self._lanes.vocoder as lane:
            for key in [key for key in self._after if not key.final]:
                for rows in range(1, batch + 1):
                    state = self._networks.hift.start(rows, self.pool.device)
                    frames = max(key.frames, key.cached_mel, key.cached_f0)
                    mel = state.cached_mel.new_zeros(rows, state.cached_mel.shape[1], frames)
                    self._runner.run(
                        ("vocoder", rows, key),
                        self._vocoder(key),
                        (
                            mel[:, :, : key.frames],
                            mel[:, :, : key.cached_mel],
                            mel[:, 0, : key.cached_f0],
                            state.phase,
                            state.start,
                            mel.new_zeros(rows, key.tail),
                            lane.send([0] * rows),
                        ),
                    )

    def _vocoder(self, key: Shape) -> Callable[..., tuple[Tensor, ...]]:
        """The vocoder for streams of one shape, as a function of tensors only."""
        hift = self._networks.hift

        def vocode(
            mel: Tensor, cached_mel: Tensor, f0: Tensor, phase: Tensor, start: Tensor, tail: Tensor, seeds: Tensor
        ) -> tuple[Tensor, ...]:
            state = HiftState(cached_mel, f0, phase, start, key.emitted_frames, tail if key.tail else None)
            noise = HashedNoise(seeds, not hift.dims.causal)
            audio, after = hift.stream(mel, state, noise, key.final)
            # What follows from the shape alone is remembered by shape: a recording returns tensors and nothing else.
            self._after[key] = (after.emitted_frames, after.tail is not None)
            tail = cached_mel[:, 0, :0] if after.tail is None else after.tail
            return to_int16(audio), after.cached_mel, after.cached_f0, after.phase, after.start, tail

        return vocode


def to_int16(audio: Tensor) -> Tensor:
    """Convert float samples to int16 on the device: clipped, rounded to nearest, NaN becomes 0."""
    scaled = (audio.nan_to_num(nan=0.0).clamp(-1.0, 1.0) * FULL_SCALE).round()
    return scaled.clamp(max=FULL_SCALE - 1).to(torch.int16)
