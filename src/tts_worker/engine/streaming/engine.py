"""CosyVoice behind the ``Engine`` protocol: whose turn it is, and what a fault costs.

Owns the utterances and the order of work: least slack first, a voice to prepare, text to feed, tokens to draw or a
chunk to render. A step is one bounded piece of work; on a GPU tokens and sound are made side by side and a step takes
what has landed. What is said never depends on any of this (utterance.py). It must not know sessions or how networks
work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from tts_worker.engine.cosyvoice.config import V2, V3
from tts_worker.engine.schedule import Job, Scheduler
from tts_worker.engine.streaming.config import StreamingConfig, TextMode
from tts_worker.engine.streaming.faults import answers, explain, fault_of
from tts_worker.engine.streaming.pages import Pages, unblock
from tts_worker.engine.streaming.parts import Parts
from tts_worker.engine.streaming.sound_stage import SoundStage
from tts_worker.engine.streaming.stage import Spent, StageFault
from tts_worker.engine.streaming.talk import Model
from tts_worker.engine.streaming.token_stage import TokenStage
from tts_worker.engine.streaming.utterance import Need, Utterance, plain_segment
from tts_worker.engine.streaming.voices import VoiceState
from tts_worker.errors import (
    EngineFault,
    ErrorInfo,
    InvalidRequest,
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

_LONGEST_SLICE_SAMPLES = SAMPLE_RATE_HZ // 2
_WARM_UP = "warm-up"
_WARM_UP_TOKENS = 60
_AHEAD_CHUNKS = 2  # of tokens, that an utterance may have waiting when others decode anyway


class CosyVoiceEngine:
    """See the module. Utterances end with Failed for an unknown voice, a language, pace or seed that there is not, an
    instruction that the voice cannot take, or text without anything to say; with ``Done(truncated=...)`` where the
    language model lost itself after something was heard. Word times are estimates (alignment.py)."""

    def __init__(self, parts: Parts, model: Model, *, healthy: Callable[[], bool] | None = None) -> None:
        """``healthy`` finds out, after a fault, whether the device still works."""
        self.parts = parts
        self._model = _with_warm_up(model)
        config = model.config
        settings = model.settings
        self.spent = Spent()
        self._utterances: dict[UtteranceKey, Utterance] = {}
        self._tokens = TokenStage(parts, settings.decode_batch, settings.burst_tokens, self.spent)
        self._pages = Pages(parts.pool, parts.book)
        # No method for it: an engine that refers to itself would not go away by itself, and it is large.
        freed = partial(unblock, self._utterances)
        self._sound = SoundStage(parts, self._pages, settings.render_batch, self.spent, freed)
        self._healthy = healthy or (lambda: answers(parts.networks.flow.noise.device))
        self._events: list[Event] = []
        self._scheduler = Scheduler()
        self._sent_only = False  # the last step made nothing new
        self.info = EngineInfo(
            name="cosyvoice",
            voices=parts.book.names,
            languages=LANGUAGES[config.family],
            alignment=Alignment.ESTIMATED,
            max_utterances=settings.max_utterances,
            sample_rate_hz=config.sample_rate_hz,
            text_by_word=settings.text_mode is TextMode.INTERLEAVED,
            speed_range=SPEED_RANGE,
            device=str(parts.networks.flow.noise.device),
            capabilities=("instruct",),
            extra=(("family", config.family), ("text_mode", settings.text_mode.value)),
        )

    @property
    def settings(self) -> StreamingConfig:
        return self._model.settings

    @property
    def live(self) -> int:
        """Utterances that hold anything."""
        return len(self._utterances)

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self._open(command)
            return
        utterance = self._utterances.get(command.key)
        if utterance is None:
            return
        if isinstance(command, Text):
            utterance.talk.add(command.segment)
        elif isinstance(command, EndText):
            utterance.talk.end()
        elif isinstance(command, Credit):
            utterance.output.grant(command.samples)
        elif isinstance(command, Hold):
            utterance.held = True
        elif isinstance(command, Release):
            utterance.held = False
        elif isinstance(command, Cancel):
            self._free(utterance)

    def _open(self, command: Open) -> None:
        try:
            self._check(command.params)
            if len(self._utterances) >= self.settings.max_utterances:
                raise OverCapacity("every utterance slot of the engine is taken; try again in a moment")
            unpaced = sum(not utterance.paced for utterance in self._utterances.values())
            if not command.paced and unpaced >= unpaced_share(self.settings.max_utterances):
                raise OverCapacity("every utterance slot for downloads is taken; try again in a moment")
        except TTSWorkerError as error:
            self._events.append(Failed(command.key, error.info))
        else:
            self._utterances[command.key] = Utterance(command, self._model, self.parts.decoder.acquire())

    def _check(self, params: SynthesisParams) -> None:
        """Raises UnknownVoice or InvalidRequest for what cannot be done; nothing is replaced in silence."""
        names = self.parts.book.names
        if params.voice not in self.parts.book:
            raise UnknownVoice(f'there is no voice "{params.voice[:64]}"; there are: {", ".join(names[:20]) or "none"}')
        if not (math.isfinite(params.speed) and SPEED_RANGE[0] <= params.speed <= SPEED_RANGE[1]):
            raise InvalidRequest(f"speed must be {SPEED_RANGE[0]:g} to {SPEED_RANGE[1]:g}")
        if not 0 <= params.seed < 1 << 63:
            raise InvalidRequest("seed must be 0 to 2^63 - 1")
        if params.language is not None:
            primary = params.language.replace("_", "-").split("-")[0].lower()
            if primary not in self.info.languages:
                known = ", ".join(self.info.languages)
                raise InvalidRequest(f"this model does not speak {primary[:16]!r}; it speaks {known}")

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        if self._events or self._tokens.busy or self._sound.busy:
            return True
        return any(
            self._need(utterance) is not Need.NOTHING or utterance.can_emit or utterance.finished
            for utterance in self._utterances.values()
        )

    def _need(self, utterance: Utterance) -> Need:
        return utterance.need(self.parts.book.missing)

    def step(self, now_s: float) -> Sequence[Event]:
        self._land()
        self._emit()
        # What is ready leaves before anything new is made, but sending alone never fills two steps in a row.
        self._sent_only = bool(self._events) and not self._sent_only
        if not self._sent_only:
            between = self._sound.has_frames
            launched = self._launch(int(now_s * 1e6), sound_only=between)
            if between:
                self._attempt(self._sound.vocode)
            elif not launched:
                self._wait()
            self._land()
            self._emit()
        events = self._events
        self._events = []
        return events

    def _launch(self, now_us: int, *, sound_only: bool) -> bool:
        """Begin the most urgent work that the device has room for. True if something was begun."""
        launched = False
        jobs = self._jobs(now_us)
        ordered = self._scheduler.order(jobs, now_us)
        order = [self._utterances[job.key] for job in ordered]
        for job, utterance in zip(ordered, order, strict=True):
            need = self._need(utterance)
            if sound_only and need is not Need.RENDER:
                continue
            if need is Need.VOICE:
                self._attempt(partial(self._prepare_voice, utterance))
            elif need is Need.RENDER and self._sound.has_room:
                wanting = [u for u in order if u is utterance or (self._need(u) is Need.RENDER and not u.alone)]
                wanting = _sharing(utterance, wanting[wanting.index(utterance) :])
                self._attempt(partial(self._sound.launch, wanting, list(self._utterances.values())))
            elif need in (Need.FEED, Need.DECODE) and not self._tokens.busy:
                self._attempt(partial(self._tokens.launch, utterance, self._company(utterance, order)))
            else:
                continue
            self._scheduler.served(job, jobs)
            utterance.waiting_since_us = None  # also before a first chunk: new utterances meet in one batch
            launched = True
            break
        return launched

    def _jobs(self, now_us: int) -> list[Job]:
        """The utterances that could use a step."""
        jobs = []
        for key, utterance in self._utterances.items():
            if self._need(utterance) is not Need.NOTHING:
                if utterance.waiting_since_us is None:
                    utterance.waiting_since_us = now_us
                output = utterance.output
                lead_samples = output.lead_at_samples(now_us) + utterance.coming_samples
                started = output.emitted_samples > 0
                jobs.append(Job(key, lead_samples, utterance.waiting_since_us, started, output.paced))
        return jobs

    def _company(self, urgent: Utterance, order: Sequence[Utterance]) -> list[Utterance]:
        """The utterances that may share a pass of the language model with ``urgent``: those with room and not too many
        tokens ahead, in ``order``, calls before downloads."""
        flow = self._model.config.flow
        most = _AHEAD_CHUNKS * flow.chunk_tokens + flow.lookahead_tokens
        rest = sorted((u for u in self._utterances.values() if u not in order), key=lambda u: not u.paced)
        sharing = sorted((*order, *rest), key=lambda u: not u.paced)  # stable
        return _sharing(urgent, [u for u in sharing if u.has_room and u.talk.ahead_tokens < most])

    def _prepare_voice(self, utterance: Utterance) -> None:
        book = self.parts.book
        params = utterance.talk.params
        try:
            if utterance.talk.voice is None:
                voice = book.get(params.voice, self.parts.networks.flow, self.parts.lanes.flow)
                try:
                    utterance.talk.use(voice, voice.request(params.instruct))
                except TTSWorkerError:
                    book.leave(voice)
                    raise
            elif book.missing(utterance.talk.voice):
                self._prepare_prompt(utterance, utterance.talk.voice)
        except Exception as problem:
            raise StageFault([utterance], problem) from problem

    def _prepare_prompt(self, utterance: Utterance, voice: VoiceState) -> None:
        """A piece of it, if there is memory."""
        book = self.parts.book
        lane = self.parts.lanes.flow
        with lane:
            if self._pages.for_prompt(utterance, list(self._utterances.values())):
                book.prepare(voice, self.parts.pool, lane)
        if not book.missing(voice):  # it takes no more pages: whoever waits for some may look again
            unblock(self._utterances)

    def _land(self) -> None:
        """Take what has arrived."""
        self._attempt(partial(self._tokens.land, block=False))
        self._attempt(partial(self._sound.land, block=False))

    def _wait(self) -> None:
        """Nothing can begin before something has landed: wait for what is expected first, and for that alone, so that
        neither half of the device stands idle for the other."""
        busy = [stage for stage in (self._tokens, self._sound) if stage.busy]
        if busy:
            self._attempt(partial(min(busy, key=lambda stage: stage.expected_s).land, block=True))

    def _attempt(self, work: Callable[[], object]) -> None:
        fault = fault_of(work)
        try:
            if fault is not None:
                self._contain(fault)
        finally:
            del fault  # its traceback leads back to this frame: a cycle would keep all that the failed pass had made

    # -- faults -------------------------------------------------------------------------------------------------------

    def _contain(self, fault: StageFault) -> None:
        """A fault of one utterance is its own; in a batch everybody goes on by himself, so that it shows whose it is.

        Raises EngineFault if the device no longer answers: then nothing that is on it can be trusted."""
        cause = fault.cause
        # Without memory, looking whether the device answers would only fail for the same reason.
        known = isinstance(cause, TTSWorkerError | MemoryError | torch.OutOfMemoryError)
        if not known and not self._healthy():
            raise EngineFault(f"the device failed ({type(cause).__name__}) and no longer answers") from cause
        if isinstance(cause, torch.OutOfMemoryError):
            while self.parts.book.shrink(self.parts.pool):
                pass
        members = [utterance for utterance in fault.members if not utterance.gone]
        for utterance in members:
            if len(fault.members) == 1:
                self._fail(utterance, explain(cause))
            else:
                if fault.recover is not None:
                    fault.recover(utterance)
                utterance.alone = True

    def _fail(self, utterance: Utterance, error: ErrorInfo) -> None:
        self._free(utterance)
        self._events.append(Failed(utterance.output.key, error))

    def _free(self, utterance: Utterance) -> None:
        """Give back everything that an utterance holds. What of it is on the device lands nowhere."""
        del self._utterances[utterance.output.key]
        utterance.gone = True
        for passage in utterance.talk.passages:
            self._sound.close(passage.stream)
        self.parts.decoder.release(utterance.slot)
        if utterance.talk.voice is not None:
            self.parts.book.leave(utterance.talk.voice)
        unblock(self._utterances)

    # -- the way out --------------------------------------------------------------------------------------------------

    def _emit(self) -> None:
        for utterance in list(self._utterances.values()):
            if utterance.talk.leave_silent():
                unblock(self._utterances)
            if utterance.can_emit and not self._gathers(utterance):
                last = utterance.talk.ended and utterance.talk.run is None and not utterance.talk.passages
                self._events += _slices(utterance, last)
            if utterance.finished:
                self._finish(utterance)

    def _gathers(self, utterance: Utterance) -> bool:
        """Whether a first sound waits for more of it: under load, a first chunk that is played before the next one can
        be there would only begin with a hole."""
        output = utterance.output
        if not self.settings.smooth_start or output.emitted_samples or utterance.chunks != 1:
            return False
        if not utterance.talk.passages or not utterance.has_room:
            return False
        if self._need(utterance) is Need.NOTHING and not (
            utterance.decoding or utterance.rendering or utterance.coming_samples
        ):
            return False  # nothing more comes by itself
        flow = self._model.config.flow
        spent = self.spent
        others = sum(u.paced or not utterance.paced for u in self._utterances.values()) - 1
        renders = 1 + others // self.settings.render_batch
        next_s = flow.chunk_tokens * spent.token_s + renders * spent.chunk_s
        return output.waiting_samples < next_s * SAMPLE_RATE_HZ

    def _finish(self, utterance: Utterance) -> None:
        key = utterance.output.key
        if not utterance.talk.text_seen or utterance.output.rendered_samples:
            self._free(utterance)
            self._events.append(Done(key, utterance.talk.truncated))
        elif utterance.talk.speakable:
            self._fail(utterance, SynthesisFailed("the language model said nothing sensible; try another seed").info)
        else:
            self._fail(utterance, UnspeakableText("the text holds no letters or digits to speak").info)

    # -- life ---------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Speak once through every path with the first voice, and record what is to be recorded. Raises EngineFault if
        that fails or is silent."""
        if not self.info.voices:
            raise EngineFault("the model has no voice yet: add one with tts-worker voice add")
        key = UtteranceKey(_WARM_UP, -1)
        heard = bytearray()
        self.handle(Open(key, SynthesisParams(self.info.voices[0]), credit_samples=60 * SAMPLE_RATE_HZ))
        self.handle(Text(key, plain_segment("This is a sentence to warm up with.")))
        self.handle(EndText(key))
        while self.has_work:
            for event in self.step(0.0):
                if isinstance(event, Failed):
                    raise EngineFault(f"the model cannot speak: {event.error.message}")
                if isinstance(event, Audio):
                    heard += event.pcm
        if not np.any(np.abs(np.frombuffer(bytes(heard), "<i2").astype(np.int32)) > 100):
            raise EngineFault("the model is silent: its weights are damaged, or of another model")
        self.parts.record(self.settings)
        self.spent.reset()  # loading and recording are nobody's pace

    def close(self) -> None:
        for utterance in list(self._utterances.values()):
            self._free(utterance)
        self._events.clear()
        self.parts.close()


def _sharing(urgent: Utterance, others: list[Utterance]) -> list[Utterance]:
    """Those of ``others`` that may be in a batch with ``urgent``."""
    return [u for u in others if u.paced] if urgent.awaits_first_audio else others


def _slices(utterance: Utterance, last: bool) -> Iterator[Audio]:
    while (audio := utterance.output.emit(_LONGEST_SLICE_SAMPLES, last=last)) is not None:
        yield audio


def _with_warm_up(model: Model) -> Model:
    """A model whose warm-up utterance ends, whatever the weights say."""
    speech = model.config.lm.speech_tokens
    eos = model.config.lm.eos_id
    own = model.script
    sentence = (*(i * 97 % speech for i in range(_WARM_UP_TOKENS)), eos)

    def script(key: UtteranceKey, run: int) -> Sequence[int]:
        if key.session == _WARM_UP:
            return sentence
        return own(key, run) if own is not None else ()

    return Model(model.config, model.tokenizer, model.settings, script)
