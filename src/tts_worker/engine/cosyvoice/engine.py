"""CosyVoice behind the ``Engine`` protocol.

A step collects what the runners have finished, emits audio, plans, and submits: at most one batch of the language model
and one of the audio networks. On a GPU, or with a thread for the flow, both run at the same time. Scheduling never
affects what is spoken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tts_worker.engine.cosyvoice.audio.prosody import SPEED_RANGE
from tts_worker.engine.cosyvoice.audio_runner import AudioChunk, AudioResult, AudioRunner, MelChunk, PromptChunk
from tts_worker.engine.cosyvoice.bundle.config import V1
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.execution.device import FaultKind, device_checked, device_facts, device_responds
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig, TextMode
from tts_worker.engine.cosyvoice.faults import Fault, Stage, attempt
from tts_worker.engine.cosyvoice.phases import SequencePhase
from tts_worker.engine.cosyvoice.sequence import CosyVoiceSequence
from tts_worker.engine.cosyvoice.timings import StageTimings
from tts_worker.engine.cosyvoice.token_generator import EngineSpec
from tts_worker.engine.cosyvoice.token_runner import DrawnIds, SlotFull, TokenResult, TokenRunner
from tts_worker.engine.cosyvoice.tokens.tokenizer import CONTROL_TAGS, V1_CONTROL_TAGS, phonemes
from tts_worker.engine.cosyvoice.voices.cache import VoiceState
from tts_worker.engine.cosyvoice.voices.speaker import Speaker
from tts_worker.engine.scheduler import Batch, Budgets, Candidate, ChunkTimes, Need, Plan, defers_first_chunk
from tts_worker.engine.shell import EngineShell
from tts_worker.engine.worker_thread import StreamFuture
from tts_worker.errors import DeviceLost, EngineFault, InvalidRequest, OutOfMemory, TTSWorkerError
from tts_worker.types import (
    Alignment,
    Command,
    EndText,
    EngineInfo,
    EngineReport,
    Event,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
    unpaced_share,
)

log = logging.getLogger(__name__)

_WARM_UP = "warm-up"  # session of the warm-up utterance
_WARM_UP_REST_TOKENS = 11
_WARM_UP_SPEEDS = (1.0, 1.25)


class CosyVoiceEngine(EngineShell[CosyVoiceSequence]):
    """The streaming CosyVoice engine.

    An utterance ends with ``Failed`` for an unknown voice, an unsupported language, speed, seed or instruction, or text
    without speech, and with ``Done(truncated=...)`` if the language model failed after audio may have been sent. Word
    times are estimates (alignment.py).

    Args:
        components: Networks, memory, streams and voices.
        spec: What all utterances share.
        healthy: Whether the device still works; called after a fault.

    Attributes:
        components: Networks, memory, streams and voices.
        timings: Device time of the stages.
    """

    def __init__(self, components: Components, spec: EngineSpec, *, healthy: Callable[[], bool] | None = None) -> None:
        config = spec.config
        settings = spec.settings
        device = components.networks.device
        super().__init__(
            EngineInfo(
                name="cosyvoice",
                voices=components.voice_cache.names,
                languages=config.languages,
                alignment=Alignment.ESTIMATED,
                max_utterances=settings.max_utterances,
                text_by_word=settings.text_mode is TextMode.INTERLEAVED,
                front_end=settings.text_mode is TextMode.CLAUSE,
                speed_range=SPEED_RANGE,
                device=str(device),
                control_tags=V1_CONTROL_TAGS if config.family == V1 else CONTROL_TAGS,
                phonemes=phonemes(config.tokenizer_version),
                expressions=("rate", "volume", "pitch", *(["style"] if settings.text_mode is TextMode.CLAUSE else [])),
                capabilities=("instruct", "speech_tokens"),
                uninstructed=components.voice_cache.uninstructed,
                extra=(
                    ("family", config.family),
                    ("text_mode", settings.text_mode.value),
                    *device_facts(device),
                ),
            )
        )
        self.components = components
        self.timings = StageTimings()
        self._spec = _with_warm_up(spec)
        self.tokens = TokenRunner(components, settings.burst_tokens, self.timings)
        self.audio = AudioRunner(components, self.timings)
        self._awaited: list[TokenResult | AudioResult] = []  # results that the step waited for
        self._lookups: dict[CosyVoiceSequence, StreamFuture[Speaker]] = {}  # of sequences that wait for a stored voice
        self._call_pages = max(0, components.pool.free_pages - unpaced_share(components.pool.free_pages))
        streams = components.streams
        is_asynchronous = streams.tokens.is_asynchronous and streams.flow.is_asynchronous
        self._first_chunk_on_device = (
            settings.first_chunk_on_device and is_asynchronous and streams.flow is streams.vocoder
        )
        self._healthy = healthy or partial(device_responds, device)
        self._step_notes: list[str] = []  # what the current step did

    @property
    def settings(self) -> StreamingConfig:
        return self._spec.settings

    # -- utterances ---------------------------------------------------------------------------------------------------

    def open_sequence(self, command: Open) -> CosyVoiceSequence:
        self._check_seed(command.params.seed)
        voice_cache = self.components.voice_cache
        voice = voice_cache.acquire(command.params.voice)
        slot = self.components.decoder.acquire()
        sequence = CosyVoiceSequence(command, self._spec, slot, first_chunk_on_device=self._first_chunk_on_device)
        if isinstance(voice, StreamFuture):
            self._lookups[sequence] = voice
            return sequence
        try:
            sequence.set_voice(voice)
        except TTSWorkerError:
            voice_cache.release(voice)
            self.components.decoder.release(sequence.slot)
            raise
        return sequence

    def _check_seed(self, seed: int) -> None:
        if not 0 <= seed < 1 << 63:
            raise InvalidRequest("seed must be 0 to 2^63 - 1")

    def handle(self, command: Command) -> None:
        """Apply a command. The end of the text, or a flush, can end an audio segment without a token.

        Raises:
            DeviceLost: The device no longer responds.
        """
        with device_checked(self._healthy):
            super().handle(command)
        if isinstance(command, Text | EndText) and command.key in self.sequences:
            self._drop_empty_segments(self.sequences[command.key])

    def close_sequence(self, sequence: CosyVoiceSequence) -> None:
        sequence.enter(SequencePhase.ENDED)
        self._lookups.pop(sequence, None)
        for segment in sequence.generator.audio_segments:
            self.audio.close(segment.state)
        self.components.decoder.release(sequence.slot)
        if sequence.generator.voice is not None:
            self.components.voice_cache.release(sequence.generator.voice)
        self._retry_admission()

    def on_work(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from another thread, when a stored voice has been read."""
        self.components.voice_cache.on_loaded = wake

    @property
    def wait_limit_s(self) -> None:
        return None

    def wait_for_work(self) -> bool:
        for lookup in self._lookups.values():
            lookup.finished_event.wait()
        return bool(self._lookups)

    # -- collect ------------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        if self.tokens.is_busy or self.audio.is_busy:
            return True
        preparing = self.audio.preparing
        if preparing is not None and self.is_active(preparing):
            return True
        return any(lookup.is_done and self.is_active(sequence) for sequence, lookup in self._lookups.items())

    def collect(self) -> bool:
        """Take over the voices that are read, and what the runners have finished."""
        self._take_voices()
        results = [*self._awaited, *self.tokens.collect(), *self.audio.collect()]
        self._awaited = []
        self._take_results(results)
        return bool(results)

    def _take_voices(self) -> None:
        for sequence, lookup in list(self._lookups.items()):
            if lookup.is_done and self.is_active(sequence):
                del self._lookups[sequence]
                fault = attempt([sequence], Stage.VOICE, partial(self._take_voice, sequence, lookup))
                if fault is not None:
                    self.components.voice_cache.expire(sequence.params.voice)
                    self._handle_fault(fault)

    def _take_voice(self, sequence: CosyVoiceSequence, lookup: StreamFuture[Speaker]) -> None:
        voice_cache = self.components.voice_cache
        voice = voice_cache.acquire_loaded(sequence.params.voice, lookup.result())
        try:
            sequence.set_voice(voice)
        except TTSWorkerError:
            voice_cache.release(voice)
            raise

    def _take_results(self, results: Iterable[TokenResult | AudioResult]) -> None:
        for result in results:
            match result:
                case Fault():
                    self._handle_fault(result)
                case PromptChunk():
                    self._take_prompt(result.voice)
                case SlotFull() if not result.sequence.has_ended:
                    result.sequence.generator.end_at_capacity()
                    self._drop_empty_segments(result.sequence)
                case DrawnIds() if not result.sequence.has_ended:
                    result.sequence.take_ids(result.ids, result.ms)
                    self._drop_empty_segments(result.sequence)
                case MelChunk(job) if not job.sequence.has_ended:
                    job.sequence.in_flight_samples = result.samples
                    if not job.is_unread:
                        job.segment.mark_rendered(job.request.chunk)  # the next one may start
                case AudioChunk(job) if not job.sequence.has_ended:
                    self._take_audio(result)

    def _take_prompt(self, voice: VoiceState) -> None:
        """Let the sequences speak whose voice is prepared now."""
        if voice.is_prepared:
            for sequence in self.sequences.values():
                if sequence.phase is SequencePhase.PREPARING and sequence.generator.voice is voice:
                    sequence.proceed()
            self._retry_admission()  # the prompt takes no more pages

    def _take_audio(self, result: AudioChunk) -> None:
        job = result.job
        if job.is_unread:
            if not job.sequence.has_spoken(job.segment, job.request.chunk):
                job.sequence.in_flight_samples = 0
                self.audio.restart(job)
                self._retry_admission()
                return
            job.segment.mark_rendered(job.request.chunk)
        job.sequence.take_audio(
            job.segment, job.request.chunk, result.pcm, result.mel, result.flow_ms, result.vocoder_ms
        )
        if job.request.chunk.final:
            self.audio.close(job.segment.state)
            self._drop_empty_segments(job.sequence)
            self._retry_admission()

    def _drop_empty_segments(self, sequence: CosyVoiceSequence) -> None:
        """Drop audio segments that ended without a token. They take no pages, so others may ask for pages again."""
        while (segment := sequence.generator.drop_empty_segment()) is not None:
            self.audio.close(segment.state)  # unless its first chunk was rendered before its ids were read
            self._retry_admission()

    def _retry_admission(self) -> None:
        """Let sequences that wait for pages ask again, because pages were returned or will not be taken."""
        for sequence in self.sequences.values():
            if sequence.phase is SequencePhase.WAITING_PAGES:
                sequence.proceed()

    # -- schedule -----------------------------------------------------------------------------------------------------

    def budgets(self, candidates: Sequence[Candidate]) -> Budgets:
        settings = self.settings
        streams = self.components.streams
        starts = any(candidate.starts for candidate in candidates)
        claims = [sequence.page_claim for sequence in self.sequences.values()] if starts else []
        return Budgets(
            max_token_batch=0 if self.tokens.is_busy or self.audio.has_vocoder_work else settings.decode_batch,
            max_audio_batch=settings.render_batch if self.audio.has_capacity else 0,
            concurrent=streams.tokens is not streams.flow,
            burst_steps=settings.burst_tokens,
            shared_inputs=self.components.decoder.shared_inputs,
            free_pages=self.components.pool.free_pages,
            evictable_pages=self.components.voice_cache.evictable_pages,
            call_pages=self._call_pages,
            claims=[claim for claim in claims if claim is not None],
        )

    def defers(self, sequence: CosyVoiceSequence, now_us: int) -> bool:
        """Whether the first chunk waits for the second one."""
        output = sequence.output
        if not self.settings.smooth_start or output.emitted_samples or sequence.rendered_chunks != 1:
            return False
        if not sequence.will_continue:
            return False
        decode_s = self._spec.config.flow.chunk_tokens * self.timings.token_s
        times = ChunkTimes(int(decode_s * 1e6), int(self.timings.chunk_s * 1e6))
        first = Candidate(sequence.key, output.waiting_samples, now_us, started=False, paced=output.paced)
        batch = self.settings.render_batch
        return defers_first_chunk(first, self.candidates, len(self.sequences), times, batch, now_us)

    # -- submit -------------------------------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> None:
        """Start the batches of ``plan``, or wait for a result if there are none."""
        self._apply_admission(plan)
        for key in plan.urgent:
            self.sequences[key].waiting_since_us = None  # so that new utterances share a batch
        if plan.audio is not None:
            self._submit_audio(plan.audio)
        if self.audio.has_vocoder_work:
            self.audio.vocode()
        elif plan.tokens is not None:
            self._submit_tokens(plan.tokens)
        elif plan.audio is None:
            self._wait()

    def _apply_admission(self, plan: Plan) -> None:
        for key in plan.refused:
            self.sequences[key].enter(SequencePhase.WAITING_PAGES)
        for key in plan.out_of_memory:
            error = OutOfMemory("no memory for more audio: end an utterance, or set more pages")
            self.fail(self.sequences[key], error.info)
        self._evict_voices(plan.free_pages)

    def _evict_voices(self, free_pages: int) -> None:
        """Evict unused voices until there are ``free_pages``."""
        pool = self.components.pool
        while pool.free_pages < free_pages and self.components.voice_cache.evict_idle(pool):
            pass

    def _submit_audio(self, batch: Batch) -> None:
        self._step_notes.append(batch.operation.value)
        members = [self.sequences[key] for key in batch.members]
        if batch.operation is Need.PREPARE_VOICE:
            self.audio.prepare(members[0])
        else:
            self.audio.render(members)

    def _submit_tokens(self, batch: Batch) -> None:
        self._step_notes.append(batch.operation.value)
        members = [self.sequences[key] for key in batch.members if key in self.sequences]  # none that just failed
        if batch.on_device_draws:
            first_tokens = self.tokens.draw_first_chunk(members, batch.on_device_draws)
            if first_tokens is not None:
                self._step_notes.append(Need.RENDER.value)
                self.audio.render_first_chunks(first_tokens)
        elif batch.operation is Need.PREFILL:
            self.tokens.prefill(members)
        else:
            self.tokens.burst(members, batch.steps)

    def _wait(self) -> None:
        """Wait for the runner that is expected to finish first, and only for it, so that neither idles.

        ``collect`` follows in the same step and takes over what it returned.
        """
        tokens = self.tokens
        audio = self.audio
        is_audio_busy = (audio.is_busy or audio.preparing is not None) and not audio.awaits_ids
        if not tokens.is_busy and not is_audio_busy:
            return
        self._step_notes.append("wait")
        if is_audio_busy and (not tokens.is_busy or audio.expected_at_s < tokens.expected_at_s):
            self._awaited = [*audio.collect(block=True)]
        else:
            self._awaited = [*tokens.collect(block=True)]

    # -- faults -------------------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> Sequence[Event]:
        """Do one bounded unit of work and return its events.

        Raises:
            DeviceLost: The device no longer responds.
        """
        self._step_notes = []
        self.components.take_eager_names()
        with device_checked(self._healthy):  # also outside of a pass
            return super().step(now_s)

    def _handle_fault(self, fault: Fault) -> None:
        """Fail a single sequence; retry the members of a batch one by one to isolate the fault.

        Raises:
            DeviceLost: The device no longer responds.
        """
        if fault.kind is FaultKind.UNKNOWN:
            log.warning("a %s pass failed (%s)", fault.stage.value, fault.cause)
            for line in fault.trace.splitlines():  # a record is one line
                log.warning("  %s", line)
            self._check_device(fault.cause)
        if fault.kind is FaultKind.OUT_OF_MEMORY:
            self._evict_voices(self.settings.pages)
        for sequence in fault.members:
            if sequence.has_ended:
                continue
            if len(fault.members) == 1:
                self.fail(sequence, fault.error)
                continue
            sequence.failed_batches += 1
            again = attempt([sequence], fault.stage, partial(self._recover, sequence, fault.stage))
            if again is not None:
                self._handle_fault(again)

    def _recover(self, sequence: CosyVoiceSequence, stage: Stage) -> None:
        """Restore the state of ``sequence`` before a failed pass is repeated."""
        if stage in (Stage.PREFILL, Stage.DECODE):
            self.tokens.recover(sequence)
        elif stage is Stage.FLOW:
            self.audio.recover(sequence)

    def _check_device(self, cause: str) -> None:
        """Raise DeviceLost if the device does not respond after ``cause``, so that its memory cannot be trusted."""
        if not self._healthy():
            raise DeviceLost(f"the device failed ({cause}) and no longer responds")

    def report(self) -> EngineReport:
        """Return how the computations ran, and what the last step did."""
        notes = [*self._step_notes, *(f"{name} without a graph" for name in self.components.take_eager_names())]
        timings = self.timings
        stages_s = tuple(
            (stage, ms / 1000)
            for stage, ms in (
                ("prefill", timings.prefill_ms),
                ("decode", timings.decode_ms),
                ("flow", timings.flow_ms),
                ("vocoder", timings.vocoder_ms),
            )
        )
        return EngineReport(self.components.computations, ", ".join(notes) or "emit", stages_s)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Synthesize one sentence, then capture graphs.

        Raises:
            DeviceLost: The device no longer responds.
            EngineFault: Synthesis failed or is silent.
        """
        with device_checked(self._healthy):
            self._warm_up()

    def _warm_up(self) -> None:
        voices = self.components.voice_cache.warm_up_names
        with self.components.timed("first_sentence"):
            pcm = self._speak_sentence(voices[0], 1.0)
        if not np.any(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > 100):
            raise EngineFault("the warm-up audio is silent: the weights are damaged or belong to another model")
        if self.components.capture(self.settings):
            # Each capture returns the unused memory to the device, so speak again to allocate what an utterance needs.
            with self.components.timed("more_sentences"):
                for voice in voices:
                    for speed in _WARM_UP_SPEEDS:
                        self._speak_sentence(voice, speed)
        self.info = replace(self.info, degraded=self.components.degraded)
        self.components.reset_counts()
        self.timings.reset()  # loading and capturing do not count

    def _speak_sentence(self, voice: str, speed: float) -> bytes:
        """Synthesize the warm-up sentence."""
        segment = Segment.whole("This is a sentence to warm up with.")
        return self.speak(UtteranceKey(_WARM_UP, -1), SynthesisParams(voice, speed=speed), [segment])

    def with_settings(self, settings: StreamingConfig) -> CosyVoiceEngine:
        """Return an engine with other settings on the components of this one, which must be idle and stay open.

        What the components were built and captured for must be the same.
        """
        engine = CosyVoiceEngine(self.components, replace(self._spec, settings=settings), healthy=self._healthy)
        engine.info = replace(engine.info, degraded=self.info.degraded)
        return engine

    def close(self) -> None:
        """Release all utterances and stop the streams."""
        super().close()
        self.components.close()


def _with_warm_up(spec: EngineSpec) -> EngineSpec:
    """Return ``spec`` with a script for the warm-up utterance, which ends with any weights."""
    speech = spec.config.lm.speech_tokens
    eos = spec.config.lm.eos_id
    flow = spec.config.flow
    original = spec.script
    # A first, a middle and a last chunk with their look-ahead.
    tokens = 2 * flow.chunk_tokens + flow.lookahead_tokens + _WARM_UP_REST_TOKENS
    sentence = (*(i * 97 % speech for i in range(tokens)), eos)

    def script(key: UtteranceKey, run: int) -> Sequence[int]:
        if key.session == _WARM_UP:
            return sentence
        return original(key, run) if original is not None else ()

    return replace(spec, script=script)
