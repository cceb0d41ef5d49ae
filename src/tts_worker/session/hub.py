"""Admission, routing and drain: ``SessionHub`` opens sessions on the engines of this process.

A request that cannot be served is rejected immediately; callers are never queued.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import anyio

from tts_worker.callers import ApiScope, Caller, current_caller
from tts_worker.errors import (
    Draining,
    ErrorInfo,
    IllegalCommand,
    InvalidRequest,
    NotReady,
    OverCapacity,
    QuotaExceeded,
    TTSWorkerError,
    UnknownVoice,
)
from tts_worker.session.conversion import SPEECH_TOKENS, Conversion, Converter, Source
from tts_worker.session.engine_port import EnginePort
from tts_worker.session.factory import HubConfig, SessionFactory
from tts_worker.session.language_routing import LanguageRouter
from tts_worker.session.lexicons import LexiconCache
from tts_worker.session.quotas import CallerQuotas, Metered, Quotas, sessions_exceeded
from tts_worker.session.record import SessionObserver
from tts_worker.session.session import LocalSession, SessionHooks
from tts_worker.session.slots import SlotTable
from tts_worker.session.usage import Usage
from tts_worker.text.formulas import formula_reader
from tts_worker.text.language import primary_tag
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.reading.further import further_languages
from tts_worker.text.reading.verbalizer import rewrites_of
from tts_worker.types import SessionOptions, State, SynthesisParams, unpaced_share
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.enrollment import Enrollment
from tts_worker.voices.library import VoiceLibrary
from tts_worker.voices.routing import VoiceRequest, choose_voice

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Retry hint of a rejected caller: utterances last seconds, so slots free up quickly."""

_DRAIN_CHECK_S = 0.1
"""Interval at which a drain closes sessions that have become idle."""


class ModelLoader(Protocol):
    """Loads engines on demand (``models.manager.ModelManager``)."""

    @property
    def started(self) -> bool:
        """Whether every preloaded engine is warm or has failed."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all configured engines."""
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
    def session_observer(self, transport: str, engine: str, voice: str) -> SessionObserver: ...


@dataclass(slots=True)
class _OpenSession:
    """What the hub knows of an open session.

    Attributes:
        session: The session.
        engine: The engine of its voice.
        caller: Who opened it.
        router: Chooses the voices of its utterances; None if all have the voice of the session.
        lease: Counts it against the sessions of its key; None for a key without such a limit.
        is_conversion: Whether it gets speech instead of text.
    """

    session: LocalSession
    engine: str
    caller: Caller
    router: LanguageRouter | None
    lease: str | None = None
    is_conversion: bool = False

    @property
    def engines(self) -> set[str]:
        """The engine of its voice, and those to which utterances were routed."""
        return {self.engine} if self.router is None else {self.engine, *self.router.engines}


class SessionHub:
    """Opens sessions on engines. It starts without engines and is not ready until one is added (``add_engine``)."""

    def __init__(
        self,
        library: VoiceLibrary,
        observer: HubObserver,
        config: HubConfig | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.library = library
        self.voices = library.catalog
        self.config = config or HubConfig()
        self.models: ModelLoader | None = None
        """Loads engines on demand; None if engines are only added and removed explicitly."""
        self.model_versions: dict[str, str] = {}
        """Versions of the loaded engines, by name."""
        self.converter: Converter | None = None
        self._engines: dict[str, EnginePort] = {}
        self._observer = observer
        self._sessions: dict[str, _OpenSession] = {}
        self.slots = SlotTable(
            self.config.max_sessions, self.config.max_open_sessions, self.config.slot_idle_s, self.config.end_idle_s
        )
        self._loop = asyncio.get_running_loop()
        self.quotas = quotas or Quotas(self._loop.time)
        self._caller_quotas = CallerQuotas(self.quotas)
        self.usage = Usage()
        """What the API keys have used since the start."""
        self._session_prefix = secrets.token_hex(4)
        self._session_numbers = itertools.count(1)
        self._draining = False
        self._all_closed = asyncio.Event()
        self.lexicons = LexiconCache()
        self._hooks = SessionHooks(
            self._begin_utterance, self._charge_text, self._count_audio, self._mark_idle, self._on_closed
        )
        self._factory = SessionFactory(self.voices, self.config, self._engines, self._touch)
        self._loudness = self._factory.loudness
        library.connect(self)

    def add_engine(self, name: str, family: str, engine: EnginePort, enrollment: Enrollment | None = None) -> None:
        """Accept sessions for the voices of a started engine.

        Args:
            name: Name of the engine.
            family: Kind of the engine; selects its voice packs.
            engine: The running engine.
            enrollment: Enrolls voices from recordings, if the engine can.

        Raises:
            ConfigError: Another engine has one of its voices.
        """
        info = engine.info
        if enrollment is None or self.converter is None:  # it has the tokenizer of a conversion
            info = replace(info, capabilities=tuple(each for each in info.capabilities if each != SPEECH_TOKENS))
        self.library.add_engine(name, family, info, enrollment)
        if self.config.normalizer is not None and engine.info.front_end:
            self.config.normalizer.prepare()
        further_languages()  # the first text asks it for abbreviations
        if not engine.info.test_signal:
            self._loop.run_in_executor(None, _prepare_readings, engine.info.languages)
        self._engines[name] = engine
        self.slots.slots = self._count_slots()
        if self._loudness is not None:
            for voice in self.voices:
                if voice.engine == name and voice.loudness_lufs is not None:
                    self._loudness.set_loudness(name, voice.name, voice.loudness_lufs)

    def replace_engine(
        self, name: str, family: str, engine: EnginePort, enrollment: Enrollment | None = None
    ) -> list[LocalSession]:
        """Use another engine for new sessions; return the sessions on the old one. Raises as ``add_engine`` does."""
        sessions = [opened.session for opened in self._sessions.values() if name in opened.engines]
        if self._loudness is not None:
            self._loudness.forget(name)
        self.add_engine(name, family, engine, enrollment)
        return sessions

    def withdraw_engine(self, name: str) -> list[LocalSession]:
        """Accept no more sessions for an engine; return those on it, which may go on. Its voices stay known."""
        sessions = [opened.session for opened in self._sessions.values() if name in opened.engines]
        self._forget_engine(name)
        return sessions

    def _forget_engine(self, name: str) -> None:
        self.library.withdraw_engine(name)
        self._engines.pop(name, None)
        self.slots.slots = self._count_slots()
        if self._loudness is not None:
            self._loudness.forget(name)

    async def end_sessions(self, sessions: Iterable[LocalSession], timeout_s: float) -> None:
        """Let the utterances of sessions on a replaced engine end, then close them; after ``timeout_s`` close all."""
        error = Draining("the model of this session was replaced; open another session", retry_after_s=RETRY_AFTER_S)
        remaining = list(sessions)
        with anyio.move_on_after(timeout_s):
            while remaining := [session for session in remaining if session.id in self._sessions]:
                for session in remaining:
                    if session.state is State.IDLE:
                        session.close("reload", error)
                await asyncio.sleep(_DRAIN_CHECK_S)
        for session in remaining:
            session.close("reload", error)

    def remove_engine(self, name: str) -> None:
        """Accept no more sessions for an engine; its voices stay known. An unknown name is ignored.

        Raises:
            IllegalCommand: Sessions use the engine.
        """
        live = self.count_sessions(name)
        if live:
            raise IllegalCommand(f"engine {name} is in use by {live} sessions")
        self._forget_engine(name)

    def voice_changed(self, engine: str, voice: str) -> None:
        """Take the loudness of a voice that was added, replaced or removed from its pack, or have it measured."""
        if self._loudness is None:
            return
        self._loudness.forget(engine, voice)
        if self.voices.is_taken(voice) and (lufs := self.voices.get(voice).loudness_lufs) is not None:
            self._loudness.set_loudness(engine, voice, lufs)

    def count_sessions(self, engine: str) -> int:
        """Count the sessions on an engine, including recordings being enrolled."""
        sessions = sum(engine in opened.engines for opened in self._sessions.values())
        return self.library.count_pending(engine) + sessions

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
    def max_sessions(self) -> int:
        """Sessions that may speak at the same time: the configured number, but no more than the engines take."""
        return self.slots.slots

    def _count_slots(self) -> int:
        has_unloaded = self.models is not None and any(name not in self._engines for name in self.models.names)
        if has_unloaded or not self._engines:
            return self.config.max_sessions  # a session may load an engine that takes more
        return min(self.config.max_sessions, sum(engine.info.max_utterances for engine in self._engines.values()))

    @property
    def free_slots(self) -> int:
        """Number of new sessions that could be opened now."""
        return self.slots.free(self._loop.time()) + sum(1 for _ in self._waiting())

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

    @property
    def session_voices(self) -> set[str]:
        """The voices in use, and those of the next utterances of all sessions."""
        return self.voices_in_use | {opened.session.params.voice for opened in self._sessions.values()}

    def find(self, session: str) -> LocalSession | None:
        opened = self._sessions.get(session)
        return None if opened is None else opened.session

    # -- admission ----------------------------------------------------------------------------------------------------

    def open(self, options: SessionOptions | None = None, *, replaces: LocalSession | None = None) -> LocalSession:
        """Open a session, atomically closing ``replaces``, taking over its slot and counting its utterances on.

        If it raises, no slot is held and no session was closed.

        Raises:
            UnknownVoice: There is no such voice.
            InvalidRequest: A value is out of range.
            OverCapacity: All slots are taken; has ``retry_after_s``.
            Draining: The worker is shutting down.
            NotReady: The engine is not ready or not loaded; ``admit`` waits until it is loaded.
        """
        options = options or SessionOptions()
        with self._counting_refusals():
            lexicon = self.lexicons.get(options.lexicon) if options.lexicon else None
            return self._open(options, replaces, lexicon, None)

    async def admit(
        self, options: SessionOptions | None = None, *, replaces: LocalSession | None = None
    ) -> LocalSession:
        """Open a session; wait a bounded time if its model has to be loaded. Raises as ``open`` does."""
        options = options or SessionOptions()
        caller = current_caller()
        with self._counting_refusals():
            caller.require(ApiScope.SPEAK)
            self._check_accepting()
            lexicon = await self.lexicons.prepare(options.lexicon) if options.lexicon else None
            # The voices of a model that was never loaded may be unknown; its name is not.
            name = options.model or (await self._choose_voice(options)).engine
            if name not in self._engines and self.models is not None:
                await self.models.wait(name)
            replaced = self._sessions.get(replaces.id) if replaces is not None else None
            is_counted = replaced is not None and replaced.lease is not None
            lease = await self._caller_quotas.reserve_session(caller, replaces=is_counted)
            try:
                return self._open(options, replaces, lexicon, lease)
            except BaseException:
                self._caller_quotas.release_session(caller, lease)
                raise

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        """Count the error with which a caller is refused."""
        try:
            yield
        except TTSWorkerError as error:
            self._observer.refused(error.code.value, current_caller().transport)
            raise

    async def convert(self, options: SessionOptions, source: Source) -> Conversion:
        """Open a session that speaks like ``source`` in the voice of ``options``. The caller reads its outputs.

        Raises:
            InvalidRequest: The engine of the voice does not convert.
            QuotaExceeded: The key of the caller has exceeded its source audio per minute.
            TTSWorkerError: As ``admit``.
        """
        caller = current_caller()
        await self._caller_quotas.refresh(Metered.SOURCE, caller)
        with self._counting_refusals():
            if (refusal := self._caller_quotas.refusal(Metered.SOURCE, caller)) is not None:
                raise refusal
        if self.converter is None:
            raise InvalidRequest("this installation does not convert speech: it lacks the feature conversion")
        session = await self.admit(replace(options, needs=(*options.needs, SPEECH_TOKENS)))
        enrollment = self.library.enrollment(session.model)
        if enrollment is None:
            session.close("refused")
            raise InvalidRequest(f"the engine {session.model} has no speech tokenizer")
        self._sessions[session.id].is_conversion = True
        charge = partial(self._charge_source, caller)
        return self.converter.convert(session, source, enrollment.speech_tokens, charge)

    async def _choose_voice(self, options: SessionOptions) -> VoiceDescription:
        await self.library.look_up(options.voice)
        return choose_voice(self.voices, VoiceRequest.of(options))

    def _check_accepting(self) -> None:
        if self._draining:
            raise Draining("the worker is shutting down; use another one", retry_after_s=RETRY_AFTER_S)
        self.check_started()

    def check_started(self) -> None:
        """Raise NotReady until the first engine is there: before that no voice is known."""
        if not self._engines:
            raise NotReady("the worker is still starting", retry_after_s=RETRY_AFTER_S)

    def _open(
        self, options: SessionOptions, replaces: LocalSession | None, lexicon: Lexicon | None, lease: str | None
    ) -> LocalSession:
        caller = current_caller()
        caller.require(ApiScope.SPEAK)
        self._check_accepting()
        if options.model is not None and options.model not in self._engines and self.models is not None:
            raise self.models.not_ready_error(options.model)
        params = self._factory.params(options)
        voice = self.voices.get(params.voice)
        engine = self._engine_speaking(voice)
        plan = self._factory.plan(options, params, lexicon)
        if not engine.ready:
            raise NotReady(f"the engine of voice {voice.name} is not ready", retry_after_s=RETRY_AFTER_S)
        if not plan.delivery.is_paced:
            refusal = self._unpaced_refusal(replaces.id if replaces is not None else None)
            if refusal is not None:
                raise refusal
        name = f"{self._session_prefix}-{next(self._session_numbers)}"
        self._check_quota(caller, replaces)
        self._take_slot(name, replaces)
        observe = partial(self._observer.session_observer, caller.transport)
        generation = 0 if replaces is None else replaces.generation
        session, router = self._factory.build(name, plan, self._hooks, observe, generation)
        if lease is None:  # opened without ``admit``
            lease = self._caller_quotas.hold_session(caller, name)
        self._sessions[name] = _OpenSession(session, voice.engine, caller, router, lease)
        self.usage.of(caller.key).sessions += replaces is None
        self._touch(voice.engine)
        return session

    def _engine_speaking(self, voice: VoiceDescription) -> EnginePort:
        """Return the engine of a voice. Raises NotReady if it is not loaded."""
        engine = self._engines.get(voice.engine)
        if engine is not None:
            return engine
        if self.models is None:
            raise NotReady(f"the engine of voice {voice.name} is not running", retry_after_s=RETRY_AFTER_S)
        raise self.models.not_ready_error(voice.engine)

    def _check_quota(self, caller: Caller, replaces: LocalSession | None) -> None:
        """Refuse a caller whose key, or token, has all of its sessions open. Raises QuotaExceeded."""
        others = [opened.caller for opened in self._sessions.values() if opened.session is not replaces]

        def has_all(limit: int | None, live: int) -> bool:
            return limit is not None and live >= limit

        if caller.key is not None and has_all(caller.max_sessions, sum(each.key == caller.key for each in others)):
            raise sessions_exceeded(caller)
        if has_all(caller.token_sessions, sum(each.token == caller.token for each in others)):
            raise QuotaExceeded(
                f"the token has all of its {caller.token_sessions} sessions open", retry_after_s=RETRY_AFTER_S
            )

    def _take_slot(self, name: str, replaces: LocalSession | None) -> None:
        """Take a slot for the session ``name``: that of ``replaces``, or a free one. Raises OverCapacity."""
        now_s = self._loop.time()
        if replaces is not None and replaces.id in self._sessions:
            self.slots.replace(replaces.id, name, now_s)
            replaces.close("replaced")
            return
        if not self.slots.has_free_slot(now_s) and not self._end_waiting(now_s):
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
            refusal = self._caller_quotas.refusal(Metered.CHARACTERS, opened.caller)
        if refusal is None and self.voices.is_deleted(voice := opened.session.params.voice):
            refusal = UnknownVoice(f'the voice "{voice}" was deleted')
        if refusal is None and queued:
            return None  # it has the slot of the utterance before it
        if refusal is None and not opened.session.paced:
            refusal = self._unpaced_refusal(session)
        if refusal is None:
            now_s = self._loop.time()
            if self.slots.begin_utterance(session, now_s):
                return None
            if self._end_waiting(now_s) and self.slots.begin_utterance(session, now_s):
                return None
            refusal = OverCapacity(f"all {self.slots.slots} sessions are speaking", retry_after_s=RETRY_AFTER_S)
        self._observer.refused(refusal.code.value, opened.caller.transport)
        return refusal.info

    def _waiting(self) -> Iterator[str]:
        """The speaking sessions that only wait for text, so that others may have their slots."""
        for name, opened in self._sessions.items():
            awaits_text = opened.session.awaits_text_for(self.config.slot_idle_s)
            if awaits_text and not opened.is_conversion and self.slots.has_slot(name):
                yield name

    def _end_waiting(self, now_s: float, *, unpaced: bool = False) -> bool:
        """End an utterance that only waits for text; its session stays open.

        Args:
            now_s: The time.
            unpaced: End one of a download only.

        Returns:
            Whether there was one.
        """
        found = (name for name in self._waiting() if not (unpaced and self._sessions[name].session.paced))
        waiting = next(found, None)
        if waiting is None:
            return False
        self._sessions[waiting].session.yield_slot()
        self.slots.mark_idle(waiting, now_s - 2 * self.config.slot_idle_s)
        return True

    def _charge_text(self, session: str, chars: int) -> None:
        if (opened := self._sessions.get(session)) is not None:
            self.usage.of(opened.caller.key).characters += chars
            self._caller_quotas.charge(Metered.CHARACTERS, opened.caller, chars)

    def _count_audio(self, session: str, seconds: float) -> None:
        if (opened := self._sessions.get(session)) is not None:
            self.usage.of(opened.caller.key).audio_s += seconds

    def _charge_source(self, caller: Caller, seconds: float) -> None:
        self.usage.of(caller.key).source_s += seconds
        self._caller_quotas.charge(Metered.SOURCE, caller, seconds)

    def _mark_idle(self, session: str) -> None:
        self.slots.mark_idle(session, self._loop.time())

    def _unpaced_refusal(self, session: str | None) -> OverCapacity | None:
        """The error if ``session`` may not speak unpaced now: a quarter of the slots is reserved for paced sessions."""
        most = unpaced_share(self.max_sessions)
        others = [opened.session for name, opened in self._sessions.items() if name != session]
        if sum(not each.paced and each.state is not State.IDLE for each in others) < most:
            return None
        if self._end_waiting(self._loop.time(), unpaced=True):
            return None
        return OverCapacity(f"all {most} sessions for downloads are taken", retry_after_s=RETRY_AFTER_S)

    def configure(self, session: LocalSession, options: SessionOptions) -> None:
        """Apply the voice and the time limits of ``options`` to the later utterances of a session.

        Raises:
            IllegalCommand: The voice belongs to another engine.
            TTSWorkerError: An option is invalid (``SessionFactory.params`` and ``timeouts``).
        """
        params = self._factory.params(options)
        if self.voices.get(params.voice).engine != self.voices.get_in_use(session.params.voice).engine:
            raise IllegalCommand("that voice is on another engine: start when nothing is spoken, or in another session")
        session.configure(params, self._factory.timeouts(options))
        opened = self._sessions.get(session.id)
        if opened is not None and opened.router is not None:
            opened.router.options = options
        session.join_trace(options.traceparent)

    def _on_closed(self, session: str) -> None:
        opened = self._sessions.pop(session, None)
        self.slots.close(session)
        if opened is not None:
            self._caller_quotas.release_session(opened.caller, opened.lease)
            for engine in opened.engines:
                self._touch(engine)
        if not self._sessions:
            self._all_closed.set()

    def _touch(self, engine: str) -> None:
        if self.models is not None:
            self.models.touch(engine)

    # -- voices from recordings ---------------------------------------------------------------------------------------

    async def enroll(self, recording: bytes, transcript: str = "", *, engine: str | None = None) -> str:
        """Enroll a voice for sessions and return its name. Its loudness is measured meanwhile.

        See ``VoiceLibrary.enroll``, also for the errors.
        """
        voice = await self.library.enroll(recording, transcript, engine)
        running = self._engines[voice.engine]
        if self._loudness is not None and not running.info.test_signal:
            self._loudness.prepare(voice.engine, running, SynthesisParams(voice.name))
        self._touch(voice.engine)
        return voice.name

    async def use_engine(self, engine: str) -> None:
        """Load an engine unless it is loaded. Raises Draining, NotReady, OverCapacity."""
        self._check_accepting()
        if engine not in self._engines and self.models is not None:
            await self.models.wait(engine)
        self._touch(engine)

    # -- drain --------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> int:
        """Open no more sessions, close idle ones, let running utterances end; after ``timeout_s`` close all.

        Returns:
            Number of sessions that were closed while they spoke.
        """
        self._draining = True
        with anyio.move_on_after(timeout_s):
            while self._close_idle():
                self._all_closed.clear()
                with anyio.move_on_after(_DRAIN_CHECK_S):
                    await self._all_closed.wait()
        speaking = list(self._sessions.values())
        for opened in speaking:
            opened.session.close("drain")
        return len(speaking)

    def _close_idle(self) -> bool:
        """Close all idle sessions; return whether any session remains."""
        for opened in list(self._sessions.values()):
            if opened.session.state is State.IDLE:
                opened.session.close("drain")
        return bool(self._sessions)


def _prepare_readings(languages: Iterable[str]) -> None:
    """Load what reads numbers in these languages, and formulas: the first text would block the event loop for 0.1 s."""
    formula_reader()
    for tag in set(map(primary_tag, languages)):
        if (rewrites := rewrites_of(tag)) is not None:
            rewrites("1", 0)
