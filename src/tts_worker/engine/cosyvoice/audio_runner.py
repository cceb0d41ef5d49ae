"""Renders due chunks: flow, then vocoder. See stage.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from tts_worker.audio.pcm import fade_out, to_float, to_pcm
from tts_worker.engine.cosyvoice.audio_segment import AudioSegment
from tts_worker.engine.cosyvoice.backends.streams import StreamFuture
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.renderer import FlowOutput, RenderRequest, RenderState, VocoderOutput
from tts_worker.engine.cosyvoice.sequence import Utterance
from tts_worker.engine.cosyvoice.stage import StageFault, StageTimings, running_mean

_END_FADE_SAMPLES = 480  # 20 ms, at a truncation


@dataclass(frozen=True)
class _Job:
    """One due chunk of one utterance."""

    utterance: Utterance
    audio_segment: AudioSegment
    request: RenderRequest


_Batch = tuple[_Job, ...]


class AudioStage:
    """Submits one flow batch and one vocoder batch at a time and delivers their audio.

    If the flow has its own stream, it computes the next chunk while the vocoder computes the current one.

    Args:
        components: Components of the engine.
        timings: Where device times are added.
        on_pages_freed: Called when an audio segment returned its pages.
    """

    def __init__(
        self,
        components: Components,
        timings: StageTimings,
        on_pages_freed: Callable[[], None],
    ) -> None:
        self._renderer = components.renderer
        self._timings = timings
        self._on_pages_freed = on_pages_freed
        self._shares_stream = components.streams.flow is components.streams.vocoder
        self._flow: tuple[_Batch, StreamFuture[FlowOutput]] | None = None
        self._vocoder_queue: deque[tuple[_Batch, FlowOutput]] = deque()
        self._vocoder: tuple[_Batch, FlowOutput, VocoderOutput] | None = None
        self._abandoned: list[RenderState] = []  # of utterances cancelled during the flow pass in flight
        self._started_at_s = 0.0

    @property
    def is_busy(self) -> bool:
        return self._flow is not None or self._vocoder is not None or bool(self._vocoder_queue)

    @property
    def has_capacity(self) -> bool:
        """Whether ``submit`` may be called."""
        return not self.is_busy if self._shares_stream else self._flow is None

    @property
    def has_vocoder_work(self) -> bool:
        """Whether ``vocode`` must be called."""
        return bool(self._vocoder_queue) and self._vocoder is None

    @property
    def expected_at_s(self) -> float:
        """When the batch in flight is expected to finish, by the running mean."""
        return self._started_at_s + self._timings.chunk_s

    def submit(self, utterances: Sequence[Utterance]) -> None:
        """Submit the due chunks of ``utterances``, for which there are pages.

        Raises:
            StageFault: The pass failed.
        """
        self._started_at_s = perf_counter()
        jobs: list[_Job] = []
        for utterance in utterances:
            audio_segment = utterance.generator.due_segment
            if audio_segment is None or audio_segment.due_chunk is None:
                continue
            chunk = audio_segment.due_chunk
            request = RenderRequest(audio_segment.state, chunk, tuple(audio_segment.tokens[: chunk.known]))
            jobs.append(_Job(utterance, audio_segment, request))
            utterance.is_rendering = True
        self._flow = (tuple(jobs), self._renderer.flow([job.request for job in jobs]))
        if self._shares_stream:  # the vocoder follows in the order of the stream
            self._collect_flow()
            self.vocode()

    def _collect_flow(self) -> None:
        assert self._flow is not None
        jobs, future = self._flow
        self._flow = None
        for job in jobs:
            job.utterance.is_rendering = False
        try:
            flow_output = future.result()
        except Exception as error:
            raise StageFault([job.utterance for job in jobs], error, self._recover) from error
        finally:
            while self._abandoned:  # only now: until here the flow thread may take pages for them
                self._renderer.close(self._abandoned.pop())
        for job, mel in zip(jobs, flow_output.frames, strict=True):  # their next chunks may start
            job.audio_segment.mark_rendered(job.request.chunk)
            job.utterance.in_flight_samples = self._renderer.samples(mel)
        self._vocoder_queue.append((jobs, flow_output))

    def vocode(self) -> None:
        """Submit the next flow output to the vocoder.

        Raises:
            StageFault: The pass failed.
        """
        jobs, flow_output = self._vocoder_queue.popleft()
        live = [(job, mel) for job, mel in zip(jobs, flow_output.frames, strict=True) if not job.utterance.cancelled]
        if not live:
            return
        jobs = tuple(job for job, _ in live)
        flow_output = replace(flow_output, frames=[mel for _, mel in live])
        try:
            vocoder_output = self._renderer.vocode([job.request for job in jobs], flow_output.frames)
        except Exception as error:
            raise self._vocoder_fault(jobs, flow_output, error) from error
        self._vocoder = (jobs, flow_output, vocoder_output)

    def _vocoder_fault(self, jobs: _Batch, flow_output: FlowOutput, error: Exception) -> StageFault:
        """Queue the members of a failed batch one by one. A vocoder pass changes no state."""
        if len(jobs) > 1:
            single = [
                ((job,), replace(flow_output, frames=[mel])) for job, mel in zip(jobs, flow_output.frames, strict=True)
            ]
            self._vocoder_queue.extendleft(reversed(single))
        return StageFault([job.utterance for job in jobs], error)

    def collect(self, *, block: bool) -> None:
        """Deliver the audio of a finished vocoder pass, or queue the output of a finished flow pass.

        Args:
            block: Whether to wait for the pass in flight.

        Raises:
            StageFault: The pass failed.
        """
        if self._vocoder is None:
            # The previous chunk is delivered before a fault of the next flow pass is reported.
            if self._flow is not None and not self._vocoder_queue and (block or self._flow[1].is_done):
                self._collect_flow()
            return
        jobs, flow_output, vocoder_output = self._vocoder
        if not (block or vocoder_output.ready):
            return
        self._vocoder = None
        try:
            pcm_chunks = [chunk.pcm() for chunk in vocoder_output.chunks]
            flow_ms = flow_output.ms
            vocoder_ms = vocoder_output.ms
        except Exception as error:
            raise self._vocoder_fault(jobs, flow_output, error) from error
        self._timings.flow_ms += flow_ms
        self._timings.vocoder_ms += vocoder_ms
        self._timings.chunk_s = running_mean(self._timings.chunk_s, (flow_ms + vocoder_ms) / 1000)
        for job, pcm, next_state in zip(jobs, pcm_chunks, vocoder_output.next_states, strict=True):
            if not job.utterance.cancelled:
                job.request.state.hift = next_state
                self._deliver(job, pcm, flow_ms / len(jobs), vocoder_ms / len(jobs))

    def _deliver(self, job: _Job, pcm: bytes, flow_ms: float, vocoder_ms: float) -> None:
        """Append a rendered chunk to the output buffer."""
        utterance = job.utterance
        audio_segment = job.audio_segment
        chunk = job.request.chunk
        if audio_segment.base_sample is None:
            audio_segment.base_sample = utterance.output.rendered_samples
        words = audio_segment.words(chunk)
        if chunk.final and utterance.generator.truncated is not None and len(utterance.generator.audio_segments) == 1:
            pcm = to_pcm(fade_out(to_float(pcm), _END_FADE_SAMPLES))
        utterance.output.render(
            pcm,
            words,
            text_range=audio_segment.text_range,
            wall_ms=utterance.lm_ms + flow_ms + vocoder_ms,
            stages_ms=(("lm", utterance.lm_ms), ("flow", flow_ms), ("vocoder", vocoder_ms)),
        )
        utterance.lm_ms = 0.0
        utterance.rendered_chunks += 1
        utterance.retry_single = False
        utterance.in_flight_samples = 0
        if chunk.final:
            self._renderer.close(audio_segment.state)
            utterance.generator.audio_segments.popleft()
            self._on_pages_freed()

    def close(self, state: RenderState) -> None:
        """Release the state of a cancelled utterance; during its flow pass, only after the pass."""
        if self._flow is not None and any(job.request.state is state for job in self._flow[0]):
            self._abandoned.append(state)
        else:
            self._renderer.close(state)

    def _recover(self, utterance: Utterance) -> None:
        """Drop flow memory after a fault; the next pass computes it again."""
        if utterance.generator.audio_segments:
            self._renderer.recover(utterance.generator.audio_segments[0].state)
