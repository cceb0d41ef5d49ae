"""Runs batches of the audio networks: prompts of voices, chunks of mel, and the vocoder.

If the flow has its own stream, it computes the next chunk while the vocoder computes the current one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from torch import Tensor

from tts_worker.engine.chunk_log import chunk_log
from tts_worker.engine.cosyvoice.audio.renderer import FlowOutput, RenderRequest, RenderState, VocoderOutput
from tts_worker.engine.cosyvoice.audio.segment import AudioSegment, MelFigures
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.faults import Fault, Stage, attempt
from tts_worker.engine.cosyvoice.phases import TokenPass
from tts_worker.engine.cosyvoice.sequence import CosyVoiceSequence
from tts_worker.engine.cosyvoice.timings import StageTimings
from tts_worker.engine.cosyvoice.token_runner import FirstTokens
from tts_worker.engine.cosyvoice.voices.cache import VoiceState
from tts_worker.engine.worker_thread import StreamFuture


@dataclass(frozen=True)
class ChunkJob:
    """One due chunk of one sequence."""

    sequence: CosyVoiceSequence
    segment: AudioSegment
    request: RenderRequest

    @property
    def is_unread(self) -> bool:
        """Whether it is a first chunk that is rendered from ids on the device, so that its audio may be of no use."""
        return self.request.ids is not None


@dataclass(frozen=True)
class PromptChunk:
    """A chunk of the prompt of ``voice`` is computed."""

    voice: VoiceState


@dataclass(frozen=True)
class MelChunk:
    """The mel of a chunk is computed, and the vocoder will follow.

    Attributes:
        job: The chunk.
        samples: Length of the audio that it becomes.
    """

    job: ChunkJob
    samples: int


@dataclass(frozen=True)
class AudioChunk:
    """The audio of a chunk, its mel, and its share of the time."""

    job: ChunkJob
    pcm: bytes
    mel: MelFigures
    flow_ms: float
    vocoder_ms: float


AudioResult = PromptChunk | MelChunk | AudioChunk | Fault


@dataclass(frozen=True)
class _PromptPass:
    sequence: CosyVoiceSequence
    voice: VoiceState
    future: StreamFuture[None]


@dataclass(frozen=True)
class FlowPass:
    jobs: tuple[ChunkJob, ...]
    future: StreamFuture[FlowOutput]


@dataclass(frozen=True)
class _MelBatch:
    """Mel that waits for the vocoder."""

    jobs: tuple[ChunkJob, ...]
    output: FlowOutput


@dataclass(frozen=True)
class _VocoderPass:
    mel: _MelBatch
    output: VocoderOutput


class AudioRunner:
    """Submits one batch for the flow and one for the vocoder at a time, and collects their audio.

    Args:
        components: Components of the engine.
        timings: Where device times are added.
    """

    def __init__(self, components: Components, timings: StageTimings) -> None:
        self._renderer = components.renderer
        self._networks = components.networks
        self._pool = components.pool
        self._voice_cache = components.voice_cache
        self._stream = components.streams.flow
        self._shares_stream = components.streams.flow is components.streams.vocoder
        self._timings = timings
        self.flow_pass: FlowPass | _PromptPass | None = None
        self.mel_queue: deque[_MelBatch] = deque()
        self.vocoder_pass: _VocoderPass | None = None
        self._results: list[AudioResult] = []
        self._abandoned: list[RenderState] = []  # of sequences that ended during the flow pass in flight
        self._started_at_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether chunks are in flight, or results have not been collected. Prompts of voices do not count."""
        is_rendering = isinstance(self.flow_pass, FlowPass) or bool(self.mel_queue) or self.vocoder_pass is not None
        return is_rendering or bool(self._results)

    @property
    def preparing(self) -> CosyVoiceSequence | None:
        """The sequence whose voice is being prepared. The prompt is of use even if the sequence ends."""
        return self.flow_pass.sequence if isinstance(self.flow_pass, _PromptPass) else None

    @property
    def has_capacity(self) -> bool:
        """Whether ``prepare`` or ``render`` may be called."""
        return self.flow_pass is None and not (self._shares_stream and self.is_busy)

    @property
    def has_vocoder_work(self) -> bool:
        """Whether ``vocode`` must be called."""
        return bool(self.mel_queue) and self.vocoder_pass is None

    @property
    def awaits_ids(self) -> bool:
        """Whether audio in flight can only be returned when the host has read its ids."""
        jobs = () if self.vocoder_pass is None else self.vocoder_pass.mel.jobs
        return any(job.sequence.token_pass is TokenPass.FIRST_CHUNK for job in jobs)

    @property
    def expected_at_s(self) -> float:
        """When the pass in flight is expected to finish, by the running mean."""
        return self._started_at_s + self._timings.chunk_s

    # -- submit -------------------------------------------------------------------------------------------------------

    def prepare(self, sequence: CosyVoiceSequence) -> None:
        """Compute the next chunk of the prompt of the sequence's voice."""
        voice = sequence.generator.voice
        assert voice is not None
        self._started_at_s = perf_counter()
        if voice.flow is None:
            self._voice_cache.evict_surplus(self._pool)
        voice.users += 1  # the pass must not lose its pages when the sequence ends
        compute = partial(self._voice_cache.prepare, voice, self._networks.flow, self._pool, self._stream)
        self.flow_pass = _PromptPass(sequence, voice, self._stream.submit(compute))
        if self._shares_stream:
            self._finish_flow()

    def render(self, sequences: Iterable[CosyVoiceSequence]) -> None:
        """Render the due chunks of ``sequences``, for which there are pages."""
        self._started_at_s = perf_counter()
        jobs = []
        for sequence in sequences:
            segment = sequence.generator.due_segment
            if segment is None or segment.due_chunk is None:
                continue
            chunk = segment.due_chunk
            segment.plan(chunk, sequence.generator.expression)
            tokens = tuple(segment.tokens[: chunk.known])
            request = RenderRequest(segment.state, chunk, tokens, prosody=segment.prosody)
            jobs.append(ChunkJob(sequence, segment, request))
        self._start_flow(jobs)

    def render_first_chunks(self, tokens: FirstTokens) -> None:
        """Render first chunks as soon as their ids are drawn, for which there are pages. The host does not wait.

        Their sequences stay in the flow until the audio is returned.
        """
        self._started_at_s = perf_counter()
        self._stream.wait_for(tokens.end)
        jobs = []
        for sequence, ids in zip(tokens.members, tokens.ids.unbind(1), strict=True):
            segment = sequence.generator.audio_segments[0]
            request = RenderRequest(segment.state, segment.first_chunk, (), ids, segment.prosody)
            jobs.append(ChunkJob(sequence, segment, request))
        self._start_flow(jobs)

    def _start_flow(self, jobs: list[ChunkJob]) -> None:
        for job in jobs:
            job.sequence.chunk_in_flow = job.request.chunk
        self.flow_pass = FlowPass(tuple(jobs), self._renderer.flow([job.request for job in jobs]))
        if self._shares_stream:  # the vocoder follows in the order of the stream
            self._finish_flow()
            self.vocode()

    def vocode(self) -> None:
        """Start the vocoder over the next mel, if it is idle."""
        if not self.has_vocoder_work:
            return
        mel = self.mel_queue.popleft()
        live = [n for n, job in enumerate(mel.jobs) if not job.sequence.has_ended]
        if not live:
            return
        mel = _MelBatch(
            tuple(mel.jobs[n] for n in live), replace(mel.output, frames=[mel.output.frames[n] for n in live])
        )
        requests = [job.request for job in mel.jobs]
        output = attempt(_members(mel.jobs), Stage.VOCODER, partial(self._renderer.vocode, requests, mel.output.frames))
        if isinstance(output, Fault):
            self._retry_vocoder(mel, output)
        else:
            self.vocoder_pass = _VocoderPass(mel, output)

    # -- collect ------------------------------------------------------------------------------------------------------

    def collect(self, *, block: bool = False) -> list[AudioResult]:
        """Return the results of the passes that have finished.

        Args:
            block: Whether to wait for a pass in flight.
        """
        if self.vocoder_pass is not None:
            vocoder = self.vocoder_pass
            members = _members(vocoder.mel.jobs)
            if not self.awaits_ids and attempt(members, Stage.VOCODER, lambda: block or vocoder.output.ready):
                self.vocoder_pass = None
                self._finish_vocoder(vocoder)
        # The previous chunk is delivered before a fault of the next flow pass is reported.
        elif self.flow_pass is not None and not self.mel_queue and (block or self.flow_pass.future.is_done):
            self._finish_flow()
        results = self._results
        self._results = []
        return results

    def _finish_flow(self) -> None:
        finished = self.flow_pass
        self.flow_pass = None
        if isinstance(finished, _PromptPass):
            done = attempt([finished.sequence], Stage.PROMPT, finished.future.result)
            self._voice_cache.release(finished.voice)
            self._results.append(done if isinstance(done, Fault) else PromptChunk(finished.voice))
        elif finished is not None:
            output = attempt(_members(finished.jobs), Stage.FLOW, finished.future.result)
            for job in finished.jobs:
                if isinstance(output, Fault) or not job.is_unread:
                    job.sequence.chunk_in_flow = None
            if isinstance(output, Fault):
                self._results.append(output)
            else:
                for job, mel in zip(finished.jobs, output.frames, strict=True):
                    self._results.append(MelChunk(job, self._renderer.samples(mel)))
                self.mel_queue.append(_MelBatch(finished.jobs, output))
        while self._abandoned:  # only now: until here the flow may take pages for them
            self._renderer.close(self._abandoned.pop())

    def _finish_vocoder(self, finished: _VocoderPass) -> None:
        jobs = finished.mel.jobs
        read = attempt(_members(jobs), Stage.VOCODER, partial(_read, finished))
        if isinstance(read, Fault):
            self._retry_vocoder(finished.mel, read)
            return
        pcm_chunks, flow_ms, vocoder_ms = read
        self._timings.add_chunks(
            flow_ms, finished.mel.output.computed_frames, vocoder_ms, finished.output.computed_frames
        )
        mels = [_figures_of(mel) for mel in finished.mel.output.frames]
        for job, pcm, mel, next_state in zip(jobs, pcm_chunks, mels, finished.output.next_states, strict=True):
            if job.is_unread:
                job.sequence.chunk_in_flow = None
            if not job.sequence.has_ended:
                job.request.state.hift = next_state
                self._results.append(AudioChunk(job, pcm, mel, flow_ms / len(jobs), vocoder_ms / len(jobs)))

    def _retry_vocoder(self, mel: _MelBatch, fault: Fault) -> None:
        """Report a fault, and queue the members of a failed batch one by one. A vocoder pass changes no state."""
        self._results.append(fault)
        if len(mel.jobs) > 1:
            parts = zip(mel.jobs, mel.output.frames, strict=True)
            single = [_MelBatch((job,), replace(mel.output, frames=[frames])) for job, frames in parts]
            self.mel_queue.extendleft(reversed(single))

    # -- states -------------------------------------------------------------------------------------------------------

    def restart(self, job: ChunkJob) -> None:
        """Drop what was computed for a first chunk whose ids turned out otherwise."""
        self._renderer.restart(job.request.state)

    def recover(self, sequence: CosyVoiceSequence) -> None:
        """Drop the flow cache of ``sequence`` after a fault of the flow; the next pass computes it again."""
        if sequence.generator.audio_segments:
            self._renderer.recover(sequence.generator.audio_segments[0].state)

    def close(self, state: RenderState) -> None:
        """Release the state of an audio segment; during its flow pass, only after the pass."""
        jobs = self.flow_pass.jobs if isinstance(self.flow_pass, FlowPass) else ()
        if any(job.request.state is state for job in jobs):
            self._abandoned.append(state)
        else:
            self._renderer.close(state)


def _members(jobs: Iterable[ChunkJob]) -> list[CosyVoiceSequence]:
    return [job.sequence for job in jobs]


def _figures_of(mel: Tensor) -> MelFigures:
    """Return the figures of mel ``[1, mel, n]``; the range, which waits for the device, only if chunks are logged."""
    if not chunk_log.isEnabledFor(logging.DEBUG) or not mel.numel():
        return MelFigures(mel.shape[2])
    low, high = mel.aminmax()
    return MelFigures(mel.shape[2], (float(low), float(high)))


def _read(finished: _VocoderPass) -> tuple[list[bytes], float, float]:
    """Return the samples of each chunk, and the device time of flow and vocoder in milliseconds."""
    return [chunk.pcm() for chunk in finished.output.chunks], finished.mel.output.ms, finished.output.ms
