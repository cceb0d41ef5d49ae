"""Admission, routing and drain: ``SessionHub`` opens sessions on the engines of this process.

A request that cannot be served is rejected immediately; callers are never queued.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import anyio

from tts_worker.audio.output import OutputFormat, OutputStage
from tts_worker.callers import ApiScope, Caller, current_caller
from tts_worker.errors import (
    Draining,
    ErrorInfo,
    IllegalCommand,
    InvalidRequest,
    MissingExtra,
    NotReady,
    OverCapacity,
    QuotaExceeded,
    TTSWorkerError,
    UnknownVoice,
)
from tts_worker.models.enrolment import Enrolment
from tts_worker.models.routing import VoiceRequest, choose_voice
from tts_worker.models.voice_library import VoiceLibrary
from tts_worker.session.conversion import SPEECH_TOKENS, Conversion, Source
from tts_worker.session.engine_port import CommandPort, EnginePort
from tts_worker.session.frame_clock import FrameClock
from tts_worker.session.language_routing import LanguageRouter, RoutingPort
from tts_worker.session.lexicons import LexiconCache
from tts_worker.session.loudness import LoudnessPort, VoiceLoudness
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.normalizing import NormalizingPort, SegmentNormalizer
from tts_worker.session.quotas import Quotas
from tts_worker.session.reading import ReadScheduler
from tts_worker.session.session import LocalSession, SessionHooks, SessionObserver, SessionTimeouts
from tts_worker.session.slots import SlotTable
from tts_worker.session.traces import UtteranceTraces
from tts_worker.text.control_tags import PHONEME_ALPHABETS, control_tags
from tts_worker.text.front_end import FrontEnd
from tts_worker.text.language import LanguageDetector
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.pipeline import TextOptions, TextPipeline
from tts_worker.text.spoken_forms import spoken_forms
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Encoding,
    Segment,
    SessionOptions,
    State,
    SynthesisParams,
    unpaced_share,
)
from tts_worker.voices import Voice, VoiceCatalog

RETRY_AFTER_S = 1.0
"""Retry hint of a rejected caller: utterances last seconds, so slots free up quickly."""

_DRAIN_CHECK_S = 0.1
"""Interval at which a drain closes sessions that have become idle."""

_CREDITS_PER_WINDOW = 5
"""Portions in which the credit of a window is returned while the engine is well ahead of the client."""

_READ_CHARS = 16
"""Text read between two looks at the clock. A character takes 2 to 10 us, with a hostile lexicon 100."""


class ModelLoader(Protocol):
    """Loads engines on demand (``models.manager.ModelManager``)."""

    @property
    def started(self) -> bool:
        """Whether every preloaded engine is warm or has failed."""
        ...

    def describe_state(self, name: str) -> str:
        """Return the state of an engine in a word; raises UnknownModel."""
        ...

    async def reload(self, name: str, *, free_first: bool = False) -> None:
        """Replace an engine by one that is built anew; raises the error of its start."""
        ...

    def touch(self, name: str) -> None:
        """Mark an engine as used: a session on it was opened or closed."""
        ...

    def not_ready_error(self, name: str) -> NotReady:
        """The error for a caller that cannot wait until the engine is loaded."""
        ...

    async def wait(self, name: str) -> None:
        """Wait until an engine is loaded; raises NotReady or OverCapacity."""
        ...


class HubObserver(Protocol):
    """Metrics (``metrics.Metrics``)."""

    def refused(self, code: str, transport: str) -> None: ...
    def session_observer(self, transport: str, engine: str, voice: Callable[[], str]) -> SessionObserver: ...


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Defaults and bounds of all sessions; milliseconds, characters and LUFS. See ``settings.SessionSettings``."""

    max_sessions: int = 64
    max_open_sessions: int = 1_024
    slot_idle_s: float = 2.0
    end_idle_s: float = 60.0
    lead_ms: float = 40.0
    window_ms: float = 1_500.0
    frame_ms: int = 20
    max_utterance_chars: int = 200_000
    max_queued_utterances: int = 16
    timeouts: SessionTimeouts = field(default_factory=SessionTimeouts)
    loudness_lufs: float | None = None
    text: TextOptions = field(default_factory=TextOptions)
    lexicon: Lexicon = field(default_factory=Lexicon)
    normalise: bool | None = None
    normalizer: SegmentNormalizer | None = None
    route_by_language: bool = True


@dataclass(frozen=True, slots=True)
class _Delivery:
    """How the audio of a session is sent.

    Attributes:
        output_format: Rate and encoding.
        frame_ms: Duration of a frame.
        lead_s: Playout lead of the worker's pacing; None where the worker does not pace.
        is_paced: Whether audio is taken at playback pace, by the worker's clock or by that of the client.
    """

    output_format: OutputFormat
    frame_ms: int
    lead_s: float | None
    is_paced: bool

    @classmethod
    def of(cls, options: SessionOptions, config: HubConfig) -> _Delivery:
        """Return how the audio of a session with these options is sent. Raises InvalidRequest."""
        frame_ms = options.frame_ms if options.frame_ms is not None else config.frame_ms
        if not 5 <= frame_ms <= 200:
            raise InvalidRequest("frame_ms must be 5 to 200")
        lead_ms = options.lead_ms if options.lead_ms is not None else config.lead_ms
        if not 0 <= lead_ms <= 10_000:
            raise InvalidRequest("lead_ms must be 0 to 10000")
        lead_s = None
        if options.realtime and not options.raw_chunks:
            # A lead below 1.5 frames would leave no time between two frames.
            lead_s = max(lead_ms, 1.5 * frame_ms) / 1000
        is_paced = lead_s is not None or options.own_clock or options.buffered
        return cls(OutputFormat.of(options.sample_rate, options.encoding), frame_ms, lead_s, is_paced)


@dataclass(frozen=True, slots=True)
class _Routing:
    """How the utterances of a session find their voices.

    Attributes:
        port: Takes the commands of the session.
        router: Chooses the voices by language; None if all utterances have the voice of the session.
        choose: Returns parameters with the voice of an utterance, by its first text; None as ``router``.
        engines: Other engines, to which utterances were routed. It grows with them.
    """

    port: CommandPort
    router: LanguageRouter | None = None
    choose: Callable[[SynthesisParams, str | bytes], tuple[SynthesisParams, Alignment]] | None = None
    engines: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _OpenSession:
    """What the hub knows of an open session.

    Attributes:
        session: The session.
        engine: The engine of its voice.
        caller: Who opened it.
        router: Chooses the voices of its utterances; None if all have the voice of the session.
        routed_engines: Other engines, to which utterances were routed.
        lease: Counts it against the sessions of its key; None for a key without such a limit.
        is_conversion: Whether it gets speech instead of text.
    """

    session: LocalSession
    engine: str
    caller: Caller
    router: LanguageRouter | None
    routed_engines: set[str]
    lease: str | None = None
    is_conversion: bool = False

    def uses(self, engine: str) -> bool:
        return engine == self.engine or engine in self.routed_engines


class SessionHub:
    """Opens sessions on engines. It starts without engines and is not ready until one is added (``add_engine``)."""

    def __init__(
        self,
        voices: VoiceCatalog,
        observer: HubObserver,
        config: HubConfig | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.voices = voices
        self.config = config or HubConfig()
        self.models: ModelLoader | None = None
        """Loads engines on demand; None if engines are only added and removed explicitly."""
        self.enrolling_engines: Collection[str] = ()
        """Configured engines that can enrol voices, loaded or not."""
        self.model_versions: dict[str, str] = {}
        """Versions of the loaded engines, by name."""
        self.library: VoiceLibrary | None = None
        """Stored voices; None if no engine stores any."""
        self._engines: dict[str, EnginePort] = {}
        self._enrolments: dict[str, Enrolment] = {}
        self._observer = observer
        self._sessions: dict[str, _OpenSession] = {}
        self.slots = SlotTable(
            self.config.max_sessions, self.config.max_open_sessions, self.config.slot_idle_s, self.config.end_idle_s
        )
        self._loop = asyncio.get_running_loop()
        self.quotas = quotas or Quotas(self._loop.time)
        self._read_scheduler = ReadScheduler(self._loop)
        self._frame_clock = FrameClock(self._loop)
        self._session_prefix = secrets.token_hex(4)
        self._session_numbers = itertools.count(1)
        self._draining = False
        self._all_closed = asyncio.Event()
        self.lexicons = LexiconCache()
        self.traces: UtteranceTraces | None = None
        """Exports ended utterances; None exports none."""
        self._hooks = SessionHooks(self._begin_utterance, self._charge_text, self._mark_idle, self._on_closed)
        target_lufs = self.config.loudness_lufs
        self._loudness = None if target_lufs is None else VoiceLoudness(target_lufs, self._segments)

    def add_engine(self, name: str, family: str, engine: EnginePort, enrolment: Enrolment | None = None) -> None:
        """Accept sessions for the voices of a started engine.

        Args:
            name: Name of the engine.
            family: Kind of the engine; selects its voice packs.
            engine: The running engine.
            enrolment: Enrols voices from recordings, if the engine can.

        Raises:
            ConfigError: Another engine has one of its voices.
        """
        self.voices.add(name, family, engine.info)
        if self.config.normalizer is not None and not engine.info.reads_numbers:
            self.config.normalizer.prepare()
        self._engines[name] = engine
        if self._loudness is not None:
            for voice in self.voices:
                if voice.engine == name and voice.loudness_lufs is not None:
                    self._loudness.set_loudness(name, voice.name, voice.loudness_lufs)
        if enrolment is not None:
            self._enrolments[name] = enrolment

    def replace_engine(
        self, name: str, family: str, engine: EnginePort, enrolment: Enrolment | None = None
    ) -> list[LocalSession]:
        """Use another engine for new sessions; return the sessions on the old one. Raises as ``add_engine`` does."""
        sessions = [opened.session for opened in self._sessions.values() if opened.uses(name)]
        if self._loudness is not None:
            self._loudness.forget(name)
        self.add_engine(name, family, engine, enrolment)
        self.voices.remove_all_enrolled(name)
        return sessions

    def withdraw_engine(self, name: str) -> list[LocalSession]:
        """Accept no more sessions for an engine; return those on it, which may go on. Its voices stay known."""
        sessions = [opened.session for opened in self._sessions.values() if opened.engine == name]
        self.voices.remove_all_enrolled(name)
        self._forget_engine(name)
        return sessions

    def _forget_engine(self, name: str) -> None:
        self.voices.mark_unloaded(name)
        self._engines.pop(name, None)
        self._enrolments.pop(name, None)
        if self._loudness is not None:
            self._loudness.forget(name)

    async def end_sessions(self, sessions: Iterable[LocalSession], reason: str, timeout_s: float) -> None:
        """Let the utterances of sessions end, then close them; after ``timeout_s`` close all."""
        error = Draining("the model of this session was replaced; open another session", retry_after_s=RETRY_AFTER_S)
        remaining = list(sessions)
        with anyio.move_on_after(timeout_s):
            while remaining := [session for session in remaining if session.id in self._sessions]:
                for session in remaining:
                    if session.state is State.IDLE:
                        session.close(reason, error)
                await asyncio.sleep(_DRAIN_CHECK_S)
        for session in remaining:
            session.close(reason, error)

    def remove_engine(self, name: str) -> None:
        """Accept no more sessions for an engine; its voices stay known. An unknown name is ignored.

        Raises:
            IllegalCommand: Sessions use the engine.
        """
        live = self.count_sessions(name)
        if live:
            raise IllegalCommand(f"engine {name} is in use by {live} sessions")
        self._forget_engine(name)

    def renew_loudness(self, engine: str, voice: str) -> None:
        """Take the loudness of a voice that was added, replaced or deleted from its pack, or have it measured."""
        if self._loudness is None:
            return
        self._loudness.forget(engine, voice)
        if self.voices.is_taken(voice) and (lufs := self.voices.get(voice).loudness_lufs) is not None:
            self._loudness.set_loudness(engine, voice, lufs)

    def count_sessions(self, engine: str) -> int:
        """Count the sessions on an engine, including recordings being enrolled."""
        enrolment = self._enrolments.get(engine)
        enrolling = enrolment.pending if enrolment is not None else 0
        return enrolling + sum(opened.uses(engine) for opened in self._sessions.values())

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a session can be opened for every loaded voice."""
        started = self.models is None or self.models.started
        running = bool(self._engines) and all(engine.ready for engine in self._engines.values())
        return started and running and not self._draining

    @property
    def lost(self) -> bool:
        """Whether an engine cannot be rebuilt in this process; the process should then be replaced."""
        return any(engine.lost for engine in self._engines.values())

    @property
    def degraded(self) -> dict[str, tuple[str, ...]]:
        """Why engines are slower than they should be, by name; healthy engines are not listed."""
        reasons = {name: engine.info.degraded for name, engine in self._engines.items() if engine.ready}
        return {name: degraded for name, degraded in reasons.items() if degraded}

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def live_sessions(self) -> int:
        """Open sessions, idle ones included."""
        return len(self._sessions)

    @property
    def speaking_sessions(self) -> int:
        return self.slots.speaking

    @property
    def free_slots(self) -> int:
        """Number of new sessions that could be opened now."""
        return self.slots.free(self._loop.time())

    @property
    def can_enrol(self) -> bool:
        """Whether a loaded engine can enrol voices from recordings."""
        return bool(self._enrolments)

    @property
    def rtf(self) -> float:
        """Engine time per second of audio, over all engines since they were loaded; 0 before the first audio."""
        stats = [engine.stats for engine in self._engines.values()]
        audio_s = sum(each.audio_s for each in stats)
        return sum(each.busy_s for each in stats) / audio_s if audio_s else 0.0

    @property
    def buffered_s(self) -> float:
        """Audio generated and not yet sent, over all sessions, in seconds."""
        sessions = [opened.session for opened in self._sessions.values()]
        return sum(session.buffered_samples / session.sample_rate_hz for session in sessions)

    @property
    def voices_in_use(self) -> set[str]:
        """The voices of utterances that the engines have not finished."""
        return {voice for opened in self._sessions.values() for voice in opened.session.voices_in_use}

    def find(self, session: str) -> LocalSession | None:
        opened = self._sessions.get(session)
        return None if opened is None else opened.session

    # -- admission ----------------------------------------------------------------------------------------------------

    def open(self, options: SessionOptions | None = None, *, replaces: LocalSession | None = None) -> LocalSession:
        """Open a session, atomically closing ``replaces`` and taking over its slot.

        If it raises, no slot is held and no session was closed.

        Raises:
            UnknownVoice: There is no such voice.
            InvalidRequest: A value is out of range.
            OverCapacity: All slots are taken; has ``retry_after_s``.
            Draining: The worker is shutting down.
            NotReady: The engine is not ready or not loaded; ``admit`` waits until it is loaded.
        """
        return self._open_or_count(options or SessionOptions(), replaces, None, None)

    def _open_or_count(
        self, options: SessionOptions, replaces: LocalSession | None, lexicon: Lexicon | None, lease: str | None
    ) -> LocalSession:
        try:
            if lexicon is None and options.lexicon:
                lexicon = self.lexicons.get(options.lexicon)
            session = self._open(options, replaces, lexicon)
        except TTSWorkerError as error:
            self._observer.refused(error.code.value, current_caller().transport)
            raise
        caller = current_caller()
        if caller.key is not None and caller.max_sessions is not None:
            if lease is None:  # opened without ``admit``
                lease = session.id
                self.quotas.hold_session(caller.key, lease)
            self._sessions[session.id].lease = lease
        return session

    async def admit(
        self, options: SessionOptions | None = None, *, replaces: LocalSession | None = None
    ) -> LocalSession:
        """Open a session; wait a bounded time if its model has to be loaded. Raises as ``open`` does."""
        options = options or SessionOptions()
        try:
            current_caller().require(ApiScope.SPEAK)
            self._check_accepting()
            lexicon = await self.lexicons.prepare(options.lexicon) if options.lexicon else None
            # The voices of a model that was never loaded may be unknown; its name is not.
            name = options.model or (await self._choose_voice(options)).engine
            if name not in self._engines and self.models is not None:
                await self.models.wait(name)
            lease = await self._reserve(current_caller(), replaces)
        except TTSWorkerError as error:
            self._observer.refused(error.code.value, current_caller().transport)
            raise
        try:
            return self._open_or_count(options, replaces, lexicon, lease)
        except BaseException:
            self._release(current_caller(), lease)
            raise

    async def _reserve(self, caller: Caller, replaces: LocalSession | None) -> str | None:
        """Ask for a session within the quotas of a key, which workers may share. Raises QuotaExceeded."""
        if caller.key is None:
            return None
        if caller.characters_per_minute is not None:
            await self.quotas.refresh_characters(caller.key, caller.characters_per_minute)
        if caller.max_sessions is None:
            return None
        lease = secrets.token_hex(8)
        replaced = self._sessions.get(replaces.id) if replaces is not None else None
        most = caller.max_sessions + (replaced is not None and replaced.lease is not None)
        try:
            if not await self.quotas.reserve_session(caller.key, lease, most):
                raise _sessions_exceeded(caller)
        except BaseException:  # also when the client disconnects
            self._release(caller, lease)
            raise
        return lease

    def _release(self, caller: Caller, lease: str | None) -> None:
        if caller.key is not None and lease is not None:
            self.quotas.release_session(caller.key, lease)

    async def convert(self, options: SessionOptions, source: Source) -> Conversion:
        """Open a session that speaks like ``source`` in the voice of ``options``. The caller reads its outputs.

        Raises:
            InvalidRequest: The engine of the voice does not convert.
            QuotaExceeded: The key of the caller has exceeded its source audio per minute.
            TTSWorkerError: As ``admit``.
        """
        caller = current_caller()
        if caller.key is not None and caller.source_seconds_per_minute is not None:
            await self.quotas.refresh_source(caller.key, caller.source_seconds_per_minute)
        if (refusal := self._source_refusal(caller)) is not None:
            self._observer.refused(refusal.code.value, caller.transport)
            raise refusal
        session = await self.admit(replace(options, needs=(*options.needs, SPEECH_TOKENS)))
        enrolment = self._enrolments.get(session.model)
        if enrolment is None:
            session.close("refused")
            raise InvalidRequest(f"the engine {session.model} has no speech tokenizer")
        self._sessions[session.id].is_conversion = True
        return Conversion(session, source, enrolment.speech_tokens, partial(self._charge_source, caller))

    async def _choose_voice(self, options: SessionOptions) -> Voice:
        """Choose a voice; another process may have stored it a moment ago."""
        try:
            return choose_voice(self.voices, _voice_request(options))
        except UnknownVoice:
            if self.library is None:
                raise
            await self.library.refresh()
            return choose_voice(self.voices, _voice_request(options))

    def _check_accepting(self) -> None:
        if self._draining:
            raise Draining("the worker is shutting down; use another one", retry_after_s=RETRY_AFTER_S)
        if not self._engines:
            raise NotReady("the worker is still starting", retry_after_s=RETRY_AFTER_S)

    def _open(self, options: SessionOptions, replaces: LocalSession | None, lexicon: Lexicon | None) -> LocalSession:
        caller = current_caller()
        caller.require(ApiScope.SPEAK)
        self._check_accepting()
        if options.model is not None and options.model not in self._engines and self.models is not None:
            raise self.models.not_ready_error(options.model)
        params = self.params(options)
        voice = self.voices.get(params.voice)
        engine = self._engine_speaking(voice)
        delivery = _Delivery.of(options, self.config)
        make_output = _output_factory(delivery.output_format, delivery.frame_ms, options, self._gains(engine))
        make_text = self._text_factory(options, lexicon)
        port = self._port(voice.engine, engine, options.normalise)
        if not engine.ready:
            raise NotReady(f"the engine of voice {voice.name} is not ready", retry_after_s=RETRY_AFTER_S)
        if not delivery.is_paced and (refusal := self._unpaced_refusal(replaces.id if replaces is not None else None)):
            raise refusal
        timeouts = self.timeouts(options)
        name = f"{self._session_prefix}-{next(self._session_numbers)}"
        self._check_quota(caller, replaces)
        self._take_slot(name, replaces)
        routing = self._routing(options, voice.engine, port)
        machine_config = _machine_config(self.config, options, delivery, voice)
        machine = SessionMachine(name, params, make_text, machine_config, make_output, routing.choose)
        session = LocalSession(
            machine,
            routing.port,
            lead_s=delivery.lead_s,
            observer=self._observer.session_observer(caller.transport, voice.engine, lambda: machine.params.voice),
            timeouts=timeouts,
            hooks=self._hooks,
            engine_name=voice.engine,
            read_scheduler=self._read_scheduler,
            frame_clock=self._frame_clock,
            output_format=delivery.output_format,
            traces=self.traces,
        )
        session.join_trace(options.traceparent)
        self._sessions[session.id] = _OpenSession(session, voice.engine, caller, routing.router, routing.engines)
        self._touch(voice.engine)
        return session

    def _engine_speaking(self, voice: Voice) -> EnginePort:
        """Return the engine of a voice. Raises NotReady if it is not loaded."""
        engine = self._engines.get(voice.engine)
        if engine is not None:
            return engine
        if self.models is None:
            raise NotReady(f"the engine of voice {voice.name} is not running", retry_after_s=RETRY_AFTER_S)
        raise self.models.not_ready_error(voice.engine)

    def _check_quota(self, caller: Caller, replaces: LocalSession | None) -> None:
        """Refuse a caller whose key has all of its sessions open. Raises QuotaExceeded."""
        if caller.key is None or caller.max_sessions is None:
            return
        live = sum(
            opened.caller.key == caller.key and opened.session is not replaces for opened in self._sessions.values()
        )
        if live >= caller.max_sessions:
            raise _sessions_exceeded(caller)

    def _take_slot(self, name: str, replaces: LocalSession | None) -> None:
        """Take a slot for the session ``name``: that of ``replaces``, or a free one. Raises OverCapacity."""
        now_s = self._loop.time()
        if replaces is not None and replaces.id in self._sessions:
            self.slots.replace(replaces.id, name, now_s)
            replaces.close("replaced")
            return
        if not self.slots.has_free_slot(now_s):
            raise OverCapacity(f"all {self.slots.slots} sessions are taken", retry_after_s=RETRY_AFTER_S)
        if (surplus := self.slots.eviction_candidate(now_s)) is not None:
            reason = OverCapacity("the idle session was closed to make room for another caller")
            self._sessions[surplus].session.close("idle", reason)
        if len(self.slots) >= self.slots.max_open:
            raise OverCapacity(f"all {self.slots.max_open} open sessions are taken", retry_after_s=RETRY_AFTER_S)
        self.slots.open(name, now_s)

    def _begin_utterance(self, session: str, queued: bool) -> ErrorInfo | None:
        opened = self._sessions.get(session)
        if opened is None:
            return None
        refusal: TTSWorkerError | None = None
        if not opened.is_conversion:
            refusal = self._character_refusal(opened.caller)
        if refusal is None and self.voices.is_deleted(voice := opened.session.params.voice):
            refusal = UnknownVoice(f'the voice "{voice}" was deleted')
        if refusal is None and queued:
            return None  # it has the slot of the utterance before it
        if refusal is None and not opened.session.paced:
            refusal = self._unpaced_refusal(session)
        if refusal is None:
            if self.slots.begin_utterance(session, self._loop.time()):
                return None
            refusal = OverCapacity(f"all {self.slots.slots} sessions are speaking", retry_after_s=RETRY_AFTER_S)
        self._observer.refused(refusal.code.value, opened.caller.transport)
        return refusal.info

    def _character_refusal(self, caller: Caller) -> QuotaExceeded | None:
        if caller.key is None or caller.characters_per_minute is None:
            return None
        if (wait_s := self.quotas.character_wait_s(caller.key, caller.characters_per_minute)) == 0:
            return None
        return QuotaExceeded(
            f'the API key "{caller.key}" has exceeded its characters per minute', retry_after_s=round(wait_s + 0.5)
        )

    def _charge_text(self, session: str, chars: int) -> None:
        if (opened := self._sessions.get(session)) is None:
            return
        caller = opened.caller
        if caller.key is not None and caller.characters_per_minute is not None:
            self.quotas.charge_characters(caller.key, caller.characters_per_minute, chars)

    def _source_refusal(self, caller: Caller) -> QuotaExceeded | None:
        if caller.key is None or caller.source_seconds_per_minute is None:
            return None
        if (wait_s := self.quotas.source_wait_s(caller.key, caller.source_seconds_per_minute)) == 0:
            return None
        return QuotaExceeded(
            f'the API key "{caller.key}" has exceeded its source audio per minute', retry_after_s=round(wait_s + 0.5)
        )

    def _charge_source(self, caller: Caller, seconds: float) -> None:
        if caller.key is not None and caller.source_seconds_per_minute is not None:
            self.quotas.charge_source(caller.key, caller.source_seconds_per_minute, seconds)

    def _mark_idle(self, session: str) -> None:
        self.slots.mark_idle(session, self._loop.time())

    def _unpaced_refusal(self, session: str | None) -> OverCapacity | None:
        """The error if ``session`` may not speak unpaced now: a quarter of the slots is reserved for paced sessions."""
        most = unpaced_share(self.config.max_sessions)
        others = (opened.session for name, opened in self._sessions.items() if name != session)
        if sum(not each.paced and each.state is not State.IDLE for each in others) < most:
            return None
        return OverCapacity(f"all {most} sessions for downloads are taken", retry_after_s=RETRY_AFTER_S)

    def configure(self, session: LocalSession, options: SessionOptions) -> None:
        """Apply the voice and the time limits of ``options`` to the later utterances of a session.

        Raises:
            IllegalCommand: The voice belongs to another engine.
            TTSWorkerError: The errors of ``params`` and ``timeouts``.
        """
        params = self.params(options)
        if self.voices.get(params.voice).engine != self.voices.get_in_use(session.params.voice).engine:
            raise IllegalCommand("that voice is on another engine: start when nothing is being spoken")
        session.configure(params, self.timeouts(options))
        opened = self._sessions.get(session.id)
        if opened is not None and opened.router is not None:
            opened.router.options = options
        session.join_trace(options.traceparent)

    def params(self, options: SessionOptions) -> SynthesisParams:
        """Validate the options and choose a voice (``models.routing``).

        Raises:
            UnknownVoice: There is no such voice.
            UnknownModel: There is no such model.
            InvalidRequest: The named value is out of range.
        """
        voice = choose_voice(self.voices, _voice_request(options))
        slowest, fastest = voice.info.speed_range
        if not slowest <= options.speed <= fastest:  # also refuses NaN
            raise InvalidRequest(f"speed must be {slowest:g} to {fastest:g} for voice {voice.name}")
        if not 0 <= options.seed < 2**63:
            raise InvalidRequest("seed must be 0 to 2^63 - 1")
        return SynthesisParams(voice.name, options.speed, options.seed, options.language, options.instruct)

    def timeouts(self, options: SessionOptions) -> SessionTimeouts:
        """Return the checked time limits of ``options``. Raises InvalidRequest."""
        defaults = self.config.timeouts
        pause_s = options.pause_timeout_s if options.pause_timeout_s is not None else defaults.pause_s
        text_idle_s = options.text_idle_timeout_s if options.text_idle_timeout_s is not None else defaults.text_idle_s
        if not 0 < pause_s <= 3_600:
            raise InvalidRequest("pause_timeout_s must be above 0 and at most 3600")
        if not 0 < text_idle_s <= 3_600:
            raise InvalidRequest("text_idle_timeout_s must be above 0 and at most 3600")
        flush_after_s = options.flush_after_ms / 1000 if options.flush_after_ms is not None else defaults.flush_after_s
        if not 0 <= flush_after_s <= 60:
            raise InvalidRequest("flush_after_ms must be 0 to 60000")
        return SessionTimeouts(pause_s, text_idle_s, flush_after_s)

    def _text_factory(
        self, options: SessionOptions, session_lexicon: Lexicon | None
    ) -> Callable[[SynthesisParams], TextPipeline]:
        defaults = self.config.text
        lexicons: dict[str, Lexicon | None] = {}  # merged lexicon by voice
        rewrites = (self.config.normalise if options.normalise is None else options.normalise) is not False

        def make_text(params: SynthesisParams) -> TextPipeline:
            voice = self.voices.get_in_use(params.voice)
            if voice.name not in lexicons:
                levels = [level for level in (self.config.lexicon, voice.lexicon, session_lexicon) if level]
                lexicons[voice.name] = Lexicon.merged(*levels) if levels else None
            text = replace(
                defaults,
                markdown=defaults.markdown if options.markdown is None else options.markdown,
                urls=defaults.urls if options.urls is None else options.urls,
                # A multilingual voice does not tell the language of the text: the English rules apply.
                language=params.language or (voice.languages[0] if len(voice.languages) == 1 else None),
                by_word=voice.info.text_by_word,
                control_tags=control_tags(voice.info.control_tags, voice.info.phonemes),
                alphabets=PHONEME_ALPHABETS if voice.info.phonemes else ("ipa",),
            )
            forms = spoken_forms(voice.languages, params.language) if rewrites else None
            return TextPipeline(text, lexicons[voice.name], forms)

        return make_text

    def _segments(self, params: SynthesisParams, text: str) -> Sequence[Segment]:
        """The segments of a whole text."""
        pipeline = self._text_factory(SessionOptions(), None)(params)
        return [*pipeline.feed(text), *pipeline.end()]

    def _routing(self, options: SessionOptions, engine: str, port: CommandPort) -> _Routing:
        """Return the routing of a session whose voice belongs to ``engine``, behind ``port``."""
        if not self.config.route_by_language:
            return _Routing(port)
        router = LanguageRouter(self.voices, options, self._is_ready)
        engines: set[str] = set()
        most_utterances = self.config.max_queued_utterances + 2
        return _Routing(
            RoutingPort(port, self._other_port(engine, options), most_utterances),
            router,
            self._route(router, engine, engines),
            engines,
        )

    def _route(
        self, router: LanguageRouter, engine: str, routed_engines: set[str]
    ) -> Callable[[SynthesisParams, str | bytes], tuple[SynthesisParams, Alignment]]:
        """Return what chooses the voice of an utterance by its first text.

        Args:
            router: Chooses it.
            engine: The engine of the session.
            routed_engines: The engines of voices on others are added to this set.
        """

        def route(params: SynthesisParams, text: str | bytes) -> tuple[SynthesisParams, Alignment]:
            voice = router.choose(params, text)
            if voice is None:
                return params, self.voices.get_in_use(params.voice).info.alignment
            if voice.engine != engine:
                routed_engines.add(voice.engine)
                self._touch(voice.engine)
            return replace(params, voice=voice.name), voice.info.alignment

        return route

    def _is_ready(self, engine: str) -> bool:
        return engine in self._engines and self._engines[engine].ready

    def _other_port(self, engine: str, options: SessionOptions) -> Callable[[str], CommandPort | None]:
        """Return what finds the port of a voice on another engine than a session's."""
        ports: dict[str, tuple[EnginePort, CommandPort]] = {}

        def port_of(voice: str) -> CommandPort | None:
            name = self.voices.get_in_use(voice).engine
            other = self._engines.get(name)
            if name == engine or other is None:
                return None
            if name not in ports or ports[name][0] is not other:
                ports[name] = other, self._port(name, other, options.normalise)
            return ports[name][1]

        return port_of

    def _gains(self, engine: EnginePort) -> Callable[[str], float] | None:
        """Return what tells the gains of the voices of a session on an engine; None if their level stays as it is."""
        loudness = self._loudness
        if loudness is None or engine.info.test_signal:
            return None
        engines: dict[str, str] = {}  # by voice

        def gain(voice: str) -> float:
            if voice not in engines:
                engines[voice] = self.voices.get_in_use(voice).engine
            return loudness.gain(engines[voice], voice)

        return gain

    def _port(self, name: str, engine: EnginePort, requested: bool | None) -> CommandPort:
        """The port to an engine, through text normalization if requested. Raises InvalidRequest, MissingExtra."""
        enabled = self.config.normalise if requested is None else requested
        normalizer = self.config.normalizer
        if normalizer is None and enabled:
            if self.config.normalise is False:
                raise InvalidRequest("text normalization is disabled (setting text.normalise)")
            raise MissingExtra("text normalization", "normalise")
        port: CommandPort = engine
        if self._loudness is not None and not engine.info.test_signal:
            port = LoudnessPort(name, engine, self._loudness)
        if enabled is False or (normalizer is None and not engine.info.front_end):
            return port

        def detector_of(params: SynthesisParams) -> LanguageDetector | FrontEnd | None:
            voice = self.voices.get_in_use(params.voice)
            if voice.info.front_end:
                return FrontEnd(voice.languages, params.language)
            if enabled is None and voice.info.reads_numbers:
                return None
            return LanguageDetector(voice.languages, params.language)

        return NormalizingPort(port, normalizer, detector_of)

    def _on_closed(self, session: str) -> None:
        opened = self._sessions.pop(session, None)
        self.slots.close(session)
        if opened is not None:
            self._release(opened.caller, opened.lease)
            for engine in (*opened.routed_engines, opened.engine):
                self._touch(engine)
        if not self._sessions:
            self._all_closed.set()

    def _touch(self, engine: str) -> None:
        if self.models is not None:
            self.models.touch(engine)

    # -- voices from recordings ---------------------------------------------------------------------------------------

    async def enrol(self, recording: bytes, transcript: str = "", *, engine: str | None = None) -> str:
        """Enrol a voice from a recording and return its name.

        The same recording and transcript give the same voice. It is unlisted and cached; voices in use are not
        evicted. Waits for an engine that is loaded on demand.

        Args:
            recording: A complete WAV, FLAC, Ogg or MP3 file.
            transcript: The text of the recording. Without it only the timbre is cloned.
            engine: The engine to use; None selects the first that can enrol voices.

        Raises:
            InvalidRequest: No configured engine can enrol voices, or the recording is unusable.
            TextTooLong: The transcript is too long.
            OverCapacity: Too many enrolments are running.
            Draining: The worker is shutting down.
            NotReady: The engine is not ready or still being loaded.
        """
        current_caller().require(ApiScope.ENROL)
        self._check_accepting()
        name = await self._enrolling_engine(engine)
        in_use = {opened.session.params.voice for opened in self._sessions.values()}
        voice = await self._enrolments[name].voice_of(recording, transcript, in_use)
        if (running := self._engines.get(name)) is None:
            raise NotReady(f"the engine {name} is being unloaded", retry_after_s=RETRY_AFTER_S)
        for evicted in voice.evicted:
            self.voices.remove_enrolled(evicted)
            if self._loudness is not None:
                self._loudness.forget(name, evicted)
        self.voices.add_enrolled(voice.name, name, running.info)
        if self._loudness is not None and not running.info.test_signal:
            self._loudness.prepare(name, running, SynthesisParams(voice.name))
        self._touch(name)
        return voice.name

    async def enrolment_of(self, engine: str | None) -> tuple[str, Enrolment]:
        """Return an engine that can enrol voices and its enrolment; load it if necessary. Raises as ``enrol`` does."""
        self._check_accepting()
        name = await self._enrolling_engine(engine)
        self._touch(name)
        return name, self._enrolments[name]

    async def refresh_voices(self) -> None:
        """Take over the voices that other processes have stored or deleted."""
        if self.library is not None:
            await self.library.refresh()

    def require_library(self) -> VoiceLibrary:
        """Return the stored voices. Raises InvalidRequest if no engine stores any."""
        if self.library is None:
            raise InvalidRequest("no engine of this worker stores voices: it needs a CosyVoice model")
        return self.library

    async def _enrolling_engine(self, engine: str | None) -> str:
        """A loaded engine that can enrol voices. Raises InvalidRequest if none is configured, else NotReady."""
        if (loaded := _first(self._enrolments, engine)) is not None:
            return loaded
        configured = _first(self.enrolling_engines, engine)
        if configured is None or self.models is None:
            raise InvalidRequest("no engine of this worker can enrol voices from recordings: use a listed voice")
        await self.models.wait(configured)
        if configured not in self._enrolments:
            raise NotReady(f"the engine {configured} is being unloaded", retry_after_s=RETRY_AFTER_S)
        return configured

    # -- drain --------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Open no more sessions, close idle ones, let running utterances end; after ``timeout_s`` close all."""
        self._draining = True
        with anyio.move_on_after(timeout_s):
            while self._close_idle():
                self._all_closed.clear()
                with anyio.move_on_after(_DRAIN_CHECK_S):
                    await self._all_closed.wait()
        for opened in list(self._sessions.values()):
            opened.session.close("drain")

    def _close_idle(self) -> bool:
        """Close all idle sessions; return whether any session remains."""
        for opened in list(self._sessions.values()):
            if opened.session.state is State.IDLE:
                opened.session.close("drain")
        return bool(self._sessions)


def _sessions_exceeded(caller: Caller) -> QuotaExceeded:
    return QuotaExceeded(
        f'the API key "{caller.key}" has all of its {caller.max_sessions} sessions open', retry_after_s=RETRY_AFTER_S
    )


def _first(names: Iterable[str], requested: str | None) -> str | None:
    """The requested name if it is among ``names``; without one the first of them."""
    return next((name for name in names if requested in (None, name)), None)


def _voice_request(options: SessionOptions) -> VoiceRequest:
    return VoiceRequest(options.voice, options.language, options.model, options.needs)


def _machine_config(config: HubConfig, options: SessionOptions, delivery: _Delivery, voice: Voice) -> MachineConfig:
    window_samples = int(config.window_ms * SAMPLE_RATE_HZ / 1000)
    return MachineConfig(
        window_samples=window_samples,
        large_credit_samples=window_samples // _CREDITS_PER_WINDOW,
        frame_samples=None if options.raw_chunks else delivery.output_format.frame_samples(delivery.frame_ms),
        max_text_chars=config.max_utterance_chars,
        max_queued_utterances=config.max_queued_utterances,
        read_chars=_READ_CHARS,
        paced=delivery.is_paced,
        buffered=options.buffered and delivery.lead_s is None,
        reports_playback=options.reports_playback,
        alignment=voice.info.alignment,
    )


def _output_factory(
    output_format: OutputFormat, frame_ms: int, options: SessionOptions, gain: Callable[[str], float] | None
) -> Callable[[SynthesisParams], OutputStage] | None:
    """Return what builds the output stage of an utterance; None if the engine's audio is sent as it is.

    Raises:
        InvalidRequest: The encoding does not fit the other options.
        MissingExtra: The library of the encoding is not installed.
    """
    if output_format.is_native and gain is None:
        return None
    if output_format.encoding is Encoding.WAV and options.realtime and not options.raw_chunks:
        raise InvalidRequest("encoding wav is for downloads: set realtime to false")
    if output_format.encoding is Encoding.OPUS:
        if options.raw_chunks:
            raise InvalidRequest("encoding opus needs frames: set raw_chunks to false")
        output_format.frame_samples(frame_ms)
        OutputStage(output_format, frame_ms)  # fails now rather than in the first utterance
    if gain is None:
        return lambda params: OutputStage(output_format, frame_ms)
    return lambda params: OutputStage(output_format, frame_ms, lambda: gain(params.voice))
