"""CosyVoice behind the ``Engine`` protocol: scheduling and fault handling.

A step submits one bounded operation of the utterance with the least slack: prepare its voice, prefill, decode or
render. On a GPU, tokens and audio overlap, and a step collects finished work. Scheduling never affects what is spoken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tts_worker.engine.cosyvoice.audio_runner import AudioStage
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.config import V2, V3
from tts_worker.engine.cosyvoice.engine_config import StreamingConfig, TextMode
from tts_worker.engine.cosyvoice.faults import catch_fault, client_error, device_responds
from tts_worker.engine.cosyvoice.pages import page_claims, prompt_pages, segment_pages, wake_page_waiters
from tts_worker.engine.cosyvoice.sequence import Utterance, plain_segment
from tts_worker.engine.cosyvoice.stage import StageFault, StageTimings
from tts_worker.engine.cosyvoice.token_generator import Model
from tts_worker.engine.cosyvoice.token_runner import TokenStage
from tts_worker.engine.cosyvoice.voice_cache import VoiceState
from tts_worker.engine.scheduler import (
    Budgets,
    Candidate,
    ChunkTimes,
    Need,
    Plan,
    Scheduler,
    defers_first_chunk,
)
from tts_worker.errors import (
    DeviceLost,
    EngineFault,
    ErrorInfo,
    InvalidRequest,
    OutOfMemory,
    OverCapacity,
    SynthesisFailed,
    TTSWorkerError,
    UnknownVoice,
    UnspeakableText,
)
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Audio,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    EngineInfo,
    EngineReport,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    SynthesisParams,
    Text,
    UtteranceKey,
    unpaced_share,
)

SPEED_RANGE = (0.5, 2.0)
LANGUAGES: dict[str, tuple[str, ...]] = {
    V2: ("zh", "en", "ja", "ko", "yue"),
    V3: ("zh", "en", "ja", "ko", "yue", "de", "es", "fr", "it", "ru"),
}

_MAX_EMIT_SAMPLES = SAMPLE_RATE_HZ // 2
_WARM_UP = "warm-up"  # session of the warm-up utterance
_WARM_UP_TOKENS = 64  # a first, a middle and a last chunk: 8 + 25 + 25 tokens and look-ahead, and a rest
_WARM_UP_SPEEDS = (1.0, 1.25)
_AHEAD_CHUNKS = 2  # unrendered chunks up to which an utterance joins a decode batch


class CosyVoiceEngine:
    """The streaming CosyVoice engine.

    An utterance ends with ``Failed`` for an unknown voice, an unsupported language, speed, seed or instruction, or text
    without speech, and with ``Done(truncated=...)`` if the language model failed after audio may have been sent. Word
    times are estimates (alignment.py).

    Args:
        components: Networks, memory, streams and voices.
        model: What all utterances share.
        healthy: Whether the device still works; called after a fault.

    Attributes:
        components: Networks, memory, streams and voices.
        timings: Device time of the stages.
        info: What the engine offers.
    """

    def __init__(self, components: Components, model: Model, *, healthy: Callable[[], bool] | None = None) -> None:
        self.components = components
        self._model = _with_warm_up(model)
        config = model.config
        settings = model.settings
        self.timings = StageTimings()
        self._utterances: dict[UtteranceKey, Utterance] = {}
        self._tokens = TokenStage(components, settings.burst_tokens, self.timings)
        self._call_pages = max(0, components.pool.free_pages - unpaced_share(components.pool.free_pages))
        # Not a bound method: a reference cycle would keep the memory of a closed engine until the next collection.
        on_pages_freed = partial(wake_page_waiters, self._utterances)
        self._audio = AudioStage(components, self.timings, on_pages_freed)
        self._healthy = healthy or (lambda: device_responds(components.networks.flow.noise.device))
        self._events: list[Event] = []
        self._scheduler = Scheduler()
        self._only_emitted = False  # whether the last step submitted nothing
        self._step_notes: list[str] = []  # what the current step did
        self.info = EngineInfo(
            name="cosyvoice",
            voices=components.voice_cache.names,
            languages=LANGUAGES[config.family],
            alignment=Alignment.ESTIMATED,
            max_utterances=settings.max_utterances,
            sample_rate_hz=config.sample_rate_hz,
            text_by_word=settings.text_mode is TextMode.INTERLEAVED,
            speed_range=SPEED_RANGE,
            device=str(components.networks.flow.noise.device),
            capabilities=("instruct", "speech_tokens"),
            extra=(("family", config.family), ("text_mode", settings.text_mode.value)),
        )

    @property
    def settings(self) -> StreamingConfig:
        return self._model.settings

    @property
    def active_utterances(self) -> int:
        """Number of utterances that hold resources."""
        return len(self._utterances)

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Apply a command. Commands for unknown utterances are ignored."""
        if isinstance(command, Open):
            self._open(command)
            return
        utterance = self._utterances.get(command.key)
        if utterance is None:
            return
        match command:
            case Text():
                utterance.generator.add_text(command.segment)
            case EndText():
                utterance.generator.end_text()
            case Credit():
                utterance.output.grant(command.samples)
            case Hold():
                utterance.is_held = True
            case Release():
                utterance.is_held = False
            case Cancel():
                self._free(utterance)

    def _open(self, command: Open) -> None:
        try:
            self._check(command.params)
            self._check_speech(command.speech_tokens)
            if len(self._utterances) >= self.settings.max_utterances:
                raise OverCapacity("all utterance slots of the engine are taken; retry in a moment")
            unpaced = sum(not utterance.paced for utterance in self._utterances.values())
            if not command.paced and unpaced >= unpaced_share(self.settings.max_utterances):
                raise OverCapacity("all utterance slots for downloads are taken; retry in a moment")
        except TTSWorkerError as error:
            self._events.append(Failed(command.key, error.info))
        else:
            self._utterances[command.key] = Utterance(command, self._model, self.components.decoder.acquire())

    def _check(self, params: SynthesisParams) -> None:
        """Raise UnknownVoice or InvalidRequest for unsupported parameters. No parameter is replaced silently."""
        names = self.components.voice_cache.names
        if params.voice not in self.components.voice_cache:
            raise UnknownVoice(f'unknown voice "{params.voice[:64]}"; available: {", ".join(names[:20]) or "none"}')
        if not (math.isfinite(params.speed) and SPEED_RANGE[0] <= params.speed <= SPEED_RANGE[1]):
            raise InvalidRequest(f"speed must be {SPEED_RANGE[0]:g} to {SPEED_RANGE[1]:g}")
        if not 0 <= params.seed < 1 << 63:
            raise InvalidRequest("seed must be 0 to 2^63 - 1")
        if params.language is not None:
            primary = params.language.replace("_", "-").split("-")[0].lower()
            if primary not in self.info.languages:
                known = ", ".join(self.info.languages)
                raise InvalidRequest(f"this model does not speak {primary[:16]!r}; it speaks {known}")

    def _check_speech(self, tokens: tuple[int, ...]) -> None:
        """Raise InvalidRequest for speech tokens that the flow does not know or that one audio segment cannot hold."""
        config = self._model.config
        if len(tokens) > self.settings.max_segment_s * config.token_rate_hz:
            raise InvalidRequest(f"at most {self.settings.max_segment_s} s of speech tokens can be rendered")
        if tokens and not 0 <= min(tokens) <= max(tokens) < config.flow.vocab:
            raise InvalidRequest(f"speech tokens must be 0 to {config.flow.vocab - 1}")

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        if self._events or self._tokens.is_busy or self._audio.is_busy:
            return True
        return any(
            self._next_op(utterance) is not Need.NONE or utterance.can_emit or utterance.is_finished
            for utterance in self._utterances.values()
        )

    def _next_op(self, utterance: Utterance) -> Need:
        return utterance.next_op(self.components.voice_cache.needs_prepare)

    def step(self, now_s: float) -> Sequence[Event]:
        """Run one step and return its events. Raises DeviceLost if the device no longer responds."""
        try:
            return self._step(now_s)
        except Exception as error:  # outside of a pass, such as a query of an event
            self._check_device(error)
            raise

    def _step(self, now_s: float) -> Sequence[Event]:
        self._step_notes = []
        self.components.take_eager_names()
        now_us = int(now_s * 1e6)
        self._collect()
        self._emit(now_us)
        # Emit finished audio before submitting new work, but never only emit in two consecutive steps.
        self._only_emitted = bool(self._events) and not self._only_emitted
        if not self._only_emitted:
            candidates = self._candidates(now_us)
            plan = self._scheduler.schedule(candidates, self._budgets(candidates), now_us)
            self._submit(plan)
            self._collect()
            self._emit(now_us)
        events = self._events
        self._events = []
        return events

    def _candidates(self, now_us: int) -> list[Candidate]:
        """Return the utterances that could use a step."""
        candidates = []
        for utterance in self._utterances.values():
            needs = self._next_op(utterance)
            joins = self._joins(utterance)
            if needs is not Need.NONE and utterance.waiting_since_us is None:
                utterance.waiting_since_us = now_us
            if needs is not Need.NONE or joins is not Need.NONE:
                candidates.append(self._candidate(utterance, needs, joins, now_us))
        return candidates

    def _joins(self, utterance: Utterance) -> Need:
        """Return the operation of a language model batch that the utterance may join.

        It needs credit and few unrendered tokens, but not a scheduled operation.
        """
        flow = self._model.config.flow
        max_tokens = _AHEAD_CHUNKS * flow.chunk_tokens + flow.lookahead_tokens
        if not utterance.has_capacity or utterance.generator.unrendered_tokens >= max_tokens:
            return Need.NONE
        return utterance.next_token_op()

    def _candidate(self, utterance: Utterance, needs: Need, joins: Need, now_us: int) -> Candidate:
        generator = utterance.generator
        output = utterance.output
        pages = 0
        starts = False
        if needs is Need.PREPARE_VOICE and generator.voice is not None:
            pages = prompt_pages(utterance, self.components.voice_cache)
            starts = True
        elif needs is Need.RENDER:
            segment = generator.audio_segments[0]
            assert segment.due_chunk is not None
            pages = self.components.renderer.pages(segment.state, segment.due_chunk)
            starts = segment.state.flow is None
        return Candidate(
            output.key,
            output.lead_at_samples(now_us) + utterance.in_flight_samples,
            now_us if utterance.waiting_since_us is None else utterance.waiting_since_us,
            output.emitted_samples > 0,
            output.paced,
            needs=needs,
            joins=joins,
            inputs=generator.next_inputs if Need.PREFILL in (needs, joins) else 1,
            tokens_until_due=generator.audio_segments[0].tokens_until_due if generator.audio_segments else 0,
            pages=pages,
            pages_ahead=pages + segment_pages(utterance, self.components.pool) if starts else 0,
            starts=starts,
            runs_alone=utterance.retry_single,
        )

    def _budgets(self, candidates: Sequence[Candidate]) -> Budgets:
        """Return what is free."""
        settings = self.settings
        streams = self.components.streams
        pool = self.components.pool
        voice_cache = self.components.voice_cache
        is_token_stage_free = not self._tokens.is_busy and not self._audio.has_vocoder_work
        return Budgets(
            token_batch=settings.decode_batch if is_token_stage_free else 0,
            audio_batch=settings.render_batch if self._audio.has_capacity else 0,
            concurrent=streams.tokens is not streams.flow,
            burst_steps=settings.burst_tokens,
            free_pages=pool.free_pages,
            evictable_pages=voice_cache.evictable_pages,
            call_pages=self._call_pages,
            claims=page_claims(self._utterances.values(), pool, voice_cache)
            if any(candidate.starts for candidate in candidates)
            else (),
        )

    def _submit(self, plan: Plan) -> None:
        """Start the batches of ``plan``, or wait if there are none."""
        for key in plan.refused:
            self._utterances[key].waiting_for_pages = True
        for key in plan.out_of_memory:
            self._fail(
                self._utterances[key], OutOfMemory("no memory for more audio: end an utterance, or set more pages").info
            )
        pool = self.components.pool
        while pool.free_pages < plan.free_pages and self.components.voice_cache.evict_idle(pool):
            pass
        self._step_notes += [batch.operation.value for batch in (plan.tokens, plan.audio) if batch is not None]
        for key in plan.urgent:
            self._utterances[key].waiting_since_us = None  # so that new utterances share a batch
        if plan.audio is not None:
            members = self._members(plan.audio.members)
            if plan.audio.operation is Need.PREPARE_VOICE:
                self._run_guarded(partial(self._prepare_voice, members[0]))
            else:
                self._run_guarded(partial(self._audio.submit, members))
        if self._audio.has_vocoder_work:
            self._run_guarded(self._audio.vocode)
        elif plan.tokens is not None:
            members = self._members(plan.tokens.members)
            if plan.tokens.operation is Need.PREFILL:
                self._run_guarded(partial(self._tokens.submit_prefill, members))
            else:
                self._run_guarded(partial(self._tokens.submit_burst, members, plan.tokens.steps))
        elif plan.audio is None:
            self._wait()

    def _members(self, keys: Sequence[UtteranceKey]) -> list[Utterance]:
        """Return the utterances of a batch that still exist."""
        return [self._utterances[key] for key in keys if key in self._utterances]

    def _prepare_voice(self, utterance: Utterance) -> None:
        voice_cache = self.components.voice_cache
        params = utterance.generator.params
        try:
            if utterance.generator.voice is None:
                voice = voice_cache.acquire(params.voice, self.components.networks.flow, self.components.streams.flow)
                try:
                    utterance.generator.set_voice(voice, voice.request(params.instruct))
                except TTSWorkerError:
                    voice_cache.release(voice)
                    raise
            elif voice_cache.needs_prepare(utterance.generator.voice):
                self._prepare_prompt(utterance.generator.voice)
        except Exception as error:
            raise StageFault([utterance], error) from error

    def _prepare_prompt(self, voice: VoiceState) -> None:
        """Compute the next chunk of the prompt."""
        voice_cache = self.components.voice_cache
        stream = self.components.streams.flow
        voice_cache.prepare(voice, self.components.pool, stream)
        if not voice_cache.needs_prepare(voice):  # it takes no more pages
            wake_page_waiters(self._utterances)

    def _collect(self) -> None:
        """Collect finished work of both stages."""
        self._run_guarded(partial(self._tokens.collect, block=False))
        self._run_guarded(partial(self._audio.collect, block=False))

    def _wait(self) -> None:
        """Wait for the stage that is expected to finish first, and only for it, so that neither stage idles."""
        busy = [stage for stage in (self._tokens, self._audio) if stage.is_busy]
        if busy:
            self._step_notes.append("wait")
            self._run_guarded(partial(min(busy, key=lambda stage: stage.expected_at_s).collect, block=True))

    def _run_guarded(self, work: Callable[[], object]) -> None:
        """Run ``work`` and handle its fault, if any."""
        fault = catch_fault(work)
        try:
            if fault is not None:
                self._handle_fault(fault)
        finally:
            del fault  # its traceback refers to this frame: the cycle would keep the tensors of the failed pass

    def report(self) -> EngineReport:
        """Return how the computations ran, and what the last step did."""
        notes = [*self._step_notes, *(f"{name} without a graph" for name in self.components.take_eager_names())]
        return EngineReport(self.components.computations, ", ".join(notes) or "emit")

    # -- faults -------------------------------------------------------------------------------------------------------

    def _handle_fault(self, fault: StageFault) -> None:
        """Fail a single utterance; retry the members of a batch one by one to isolate the fault.

        Raises:
            DeviceLost: The device no longer responds.
        """
        cause = fault.cause
        self._check_device(cause)
        if isinstance(cause, torch.OutOfMemoryError):
            while self.components.voice_cache.evict_idle(self.components.pool):
                pass
        members = [utterance for utterance in fault.members if not utterance.cancelled]
        for utterance in members:
            if len(fault.members) == 1:
                self._fail(utterance, client_error(cause))
            else:
                if fault.recover is not None:
                    fault.recover(utterance)
                utterance.retry_single = True

    def _check_device(self, cause: BaseException) -> None:
        """Raise DeviceLost if the device does not respond after ``cause``, so that its memory cannot be trusted."""
        # Without free memory, the health check would fail for the same reason.
        is_known = isinstance(cause, TTSWorkerError | MemoryError | torch.OutOfMemoryError)
        if not is_known and not self._healthy():
            raise DeviceLost(f"the device failed ({type(cause).__name__}) and no longer responds") from cause

    def _fail(self, utterance: Utterance, error: ErrorInfo) -> None:
        self._free(utterance)
        self._events.append(Failed(utterance.output.key, error))

    def _free(self, utterance: Utterance) -> None:
        """Release everything that an utterance holds. Results in flight are dropped."""
        del self._utterances[utterance.output.key]
        utterance.cancelled = True
        for audio_segment in utterance.generator.audio_segments:
            self._audio.close(audio_segment.state)
        self.components.decoder.release(utterance.slot)
        if utterance.generator.voice is not None:
            self.components.voice_cache.release(utterance.generator.voice)
        wake_page_waiters(self._utterances)

    # -- output -------------------------------------------------------------------------------------------------------

    def _emit(self, now_us: int) -> None:
        for utterance in list(self._utterances.values()):
            if utterance.generator.drop_empty_segment():
                wake_page_waiters(self._utterances)
            if utterance.can_emit and not self._defers_first_chunk(utterance, now_us):
                last = (
                    utterance.generator.text_ended
                    and utterance.generator.run is None
                    and not utterance.generator.audio_segments
                )
                self._events += _take_chunks(utterance, last)
            if utterance.is_finished:
                self._finish(utterance)

    def _defers_first_chunk(self, utterance: Utterance, now_us: int) -> bool:
        """Whether the first chunk waits for the second one."""
        output = utterance.output
        if not self.settings.smooth_start or output.emitted_samples or utterance.rendered_chunks != 1:
            return False
        if not utterance.generator.audio_segments or not utterance.has_capacity:
            return False
        if self._next_op(utterance) is Need.NONE and not (
            utterance.is_decoding or utterance.is_rendering or utterance.in_flight_samples
        ):
            return False  # no second chunk will follow
        decode_s = self._model.config.flow.chunk_tokens * self.timings.token_s
        times = ChunkTimes(int(decode_s * 1e6), int(self.timings.chunk_s * 1e6))
        first = Candidate(output.key, output.waiting_samples, now_us, started=False, paced=output.paced)
        others = [candidate for candidate in self._candidates(now_us) if candidate.key != output.key]
        return defers_first_chunk(first, others, times, self.settings.render_batch, now_us)

    def _finish(self, utterance: Utterance) -> None:
        key = utterance.output.key
        if not utterance.generator.has_text or utterance.output.rendered_samples:
            self._free(utterance)
            self._events.append(Done(key, utterance.generator.truncated))
        elif utterance.generator.has_speakable_text:
            self._fail(utterance, SynthesisFailed("the model generated no valid speech; try another seed").info)
        else:
            self._fail(utterance, UnspeakableText("the text has no letters or digits to speak").info)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Synthesize one sentence, then capture graphs.

        Raises:
            EngineFault: Synthesis failed or is silent.
        """
        voices = self.components.voice_cache.warm_up_names
        if not voices:
            raise EngineFault("the model has no voices: add one with tts-worker voice add")
        pcm = self._speak_sentence(voices[0], 1.0)
        if not np.any(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > 100):
            raise EngineFault("the warm-up audio is silent: the weights are damaged or belong to another model")
        if self.components.capture(self.settings):
            # Each capture returns the unused memory to the device, so speak again to allocate what an utterance needs.
            for voice in voices:
                for speed in _WARM_UP_SPEEDS:
                    self._speak_sentence(voice, speed)
        self.info = replace(self.info, degraded=self.components.degraded)
        self.components.reset_counts()
        self.timings.reset()  # loading and capturing do not count

    def _speak_sentence(self, voice: str, speed: float) -> bytes:
        """Synthesize the warm-up sentence."""
        key = UtteranceKey(_WARM_UP, -1)
        pcm = bytearray()
        params = SynthesisParams(voice, speed=speed)
        self.handle(Open(key, params, credit_samples=60 * SAMPLE_RATE_HZ))
        self.handle(Text(key, plain_segment("This is a sentence to warm up with.")))
        self.handle(EndText(key))
        while self.has_work:
            for event in self.step(0.0):
                if isinstance(event, Failed):
                    raise EngineFault(f"the warm-up failed: {event.error.message}")
                if isinstance(event, Audio):
                    pcm += event.pcm
        return bytes(pcm)

    def close(self) -> None:
        """Release all utterances and stop the streams."""
        for utterance in list(self._utterances.values()):
            self._free(utterance)
        self._events.clear()
        self.components.close()


def _take_chunks(utterance: Utterance, last: bool) -> Iterator[Audio]:
    """Yield the chunks that the credit allows."""
    while (audio := utterance.output.emit(_MAX_EMIT_SAMPLES, last=last)) is not None:
        yield audio


def _with_warm_up(model: Model) -> Model:
    """Return ``model`` with a script for the warm-up utterance, which ends with any weights."""
    speech = model.config.lm.speech_tokens
    eos = model.config.lm.eos_id
    original = model.script
    sentence = (*(i * 97 % speech for i in range(_WARM_UP_TOKENS)), eos)

    def script(key: UtteranceKey, run: int) -> Sequence[int]:
        if key.session == _WARM_UP:
            return sentence
        return original(key, run) if original is not None else ()

    return Model(model.config, model.tokenizer, model.settings, script)
