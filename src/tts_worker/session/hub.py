"""Admission, routing and drain: who may speak, with which voice, on which engine.

The hub holds the live sessions of the process and the engines they run on. It refuses at once what it cannot serve and
never queues a caller. It knows no transport; building engines and reading settings is ``app.py``'s work.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import anyio

from tts_worker.errors import Draining, IllegalCommand, InvalidRequest, NotReady, OverCapacity, TTSWorkerError
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.session.session import EnginePort, LocalSession, SessionObserver, SessionTimeouts
from tts_worker.text.filter import UrlMode
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.normaliser import Normalise
from tts_worker.text.pipeline import TextOptions, TextPipeline
from tts_worker.types import SAMPLE_RATE_HZ, EngineInfo, SynthesisParams
from tts_worker.voices import Voice, VoiceCatalog

RETRY_AFTER_S = 1.0
"""When a refused caller may try again: turns last seconds, so slots free up quickly."""


class HubEngine(EnginePort, Protocol):
    """An engine as the hub needs it (``engine.loop.EngineLoop``)."""

    @property
    def ready(self) -> bool: ...
    @property
    def info(self) -> EngineInfo: ...


class HubObserver(SessionObserver, Protocol):
    def refused(self, code: str) -> None: ...


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Defaults and bounds of all sessions; milliseconds and characters. See ``settings.SessionSettings``."""

    max_sessions: int = 64
    lead_ms: float = 40.0
    window_ms: float = 1_500.0
    frame_ms: int = 20
    max_utterance_chars: int = 200_000
    max_queued_utterances: int = 16
    timeouts: SessionTimeouts = field(default_factory=SessionTimeouts)
    text: TextOptions = field(default_factory=TextOptions)
    lexicon: Lexicon = field(default_factory=Lexicon)
    normalise: Normalise | None = None


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a caller asks for. None means the worker's default.

    ``realtime``: sound leaves at the pace of playback, at most ``lead_ms`` ahead; else as fast as it is made.
    ``raw_chunks``: hand out the engine's own chunks, unpaced, instead of frames of ``frame_ms``. ``lexicon``: word ->
    spelling or /phonemes/. ``markdown``: keep Markdown, emoji and URLs from being read aloud.
    """

    voice: str | None = None
    speed: float = 1.0
    seed: int = 0
    language: str | None = None
    instruct: str | None = None
    realtime: bool = True
    lead_ms: float | None = None
    frame_ms: int | None = None
    raw_chunks: bool = False
    lexicon: Mapping[str, Any] | None = None
    markdown: bool | None = None
    urls: UrlMode | None = None
    normalise: bool | None = None
    pause_timeout_s: float | None = None
    text_idle_timeout_s: float | None = None


class SessionHub:
    """See the module. It begins without engines and is not ready until it has one (``add_engine``)."""

    def __init__(self, voices: VoiceCatalog, observer: HubObserver, config: HubConfig | None = None) -> None:
        self.voices = voices
        self.config = config or HubConfig()
        self._engines: dict[str, HubEngine] = {}
        self._observer = observer
        self._sessions: dict[str, LocalSession] = {}
        self._engine_of: dict[str, str] = {}
        self._names = itertools.count(1)
        self._prefix = secrets.token_hex(4)
        self._draining = False
        self._empty = asyncio.Event()

    def add_engine(self, name: str, family: str, engine: HubEngine) -> None:
        """Take sessions for the voices of an engine that has started. Raises ConfigError if one is there already."""
        self.voices.add(name, family, engine.info)
        self._engines[name] = engine

    def remove_engine(self, name: str) -> None:
        """Take no more sessions for its voices; an unknown name is fine.

        Raises IllegalCommand while sessions use it.
        """
        live = sum(engine == name for engine in self._engine_of.values())
        if live:
            raise IllegalCommand(f"engine {name} is in use by {live} sessions")
        self.voices.remove(name)
        self._engines.pop(name, None)

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a session for any voice could begin now."""
        return not self._draining and bool(self._engines) and all(engine.ready for engine in self._engines.values())

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def live_sessions(self) -> int:
        return len(self._sessions)

    @property
    def buffered_s(self) -> float:
        """Sound generated and not yet sent, over all sessions."""
        return sum(session.buffered_samples for session in self._sessions.values()) / SAMPLE_RATE_HZ

    def find(self, session: str) -> LocalSession | None:
        return self._sessions.get(session)

    # -- admission ----------------------------------------------------------------------------------------------------

    def open(self, options: SessionOptions | None = None, *, replaces: LocalSession | None = None) -> LocalSession:
        """A new session; ``replaces`` is closed in the same moment and its slot taken over.

        Raises UnknownVoice, InvalidRequest (a value out of range), OverCapacity (with retry_after_s), Draining or
        NotReady. When it raises, nothing is held and nothing was closed.
        """
        try:
            return self._open(options or SessionOptions(), replaces)
        except TTSWorkerError as error:
            self._observer.refused(error.code.value)
            raise

    def _open(self, options: SessionOptions, replaces: LocalSession | None) -> LocalSession:
        if self._draining:
            raise Draining("the worker is shutting down; use another one", retry_after_s=RETRY_AFTER_S)
        if not self._engines:
            raise NotReady("the worker is still starting", retry_after_s=RETRY_AFTER_S)
        params = self.params(options)
        voice = self.voices.get(params.voice)
        engine = self._engines[voice.engine]
        config = self.config
        frame_ms = options.frame_ms if options.frame_ms is not None else config.frame_ms
        if not 5 <= frame_ms <= 200:
            raise InvalidRequest("frame_ms must be 5 to 200")
        lead_ms = options.lead_ms if options.lead_ms is not None else config.lead_ms
        if not 0 <= lead_ms <= 10_000:
            raise InvalidRequest("lead_ms must be 0 to 10000")
        make_text = self._text_factory(options)
        if not engine.ready:
            raise NotReady(f"the engine of voice {voice.name} is not ready", retry_after_s=RETRY_AFTER_S)
        if len(self._sessions) - (replaces is not None) >= config.max_sessions:
            raise OverCapacity(f"all {config.max_sessions} sessions are taken", retry_after_s=RETRY_AFTER_S)
        timeouts = _timeouts(options, config.timeouts)
        if replaces is not None:
            replaces.close("replaced")
        machine = SessionMachine(
            f"{self._prefix}-{next(self._names)}",
            params,
            make_text,
            MachineConfig(
                window_samples=int(config.window_ms * SAMPLE_RATE_HZ / 1000),
                frame_samples=None if options.raw_chunks else frame_ms * SAMPLE_RATE_HZ // 1000,
                max_text_chars=config.max_utterance_chars,
                max_queued_utterances=config.max_queued_utterances,
                alignment=voice.info.alignment,
            ),
        )
        session = LocalSession(
            machine,
            engine,
            # Less than a frame and a half would leave no time between two frames.
            lead_s=max(lead_ms, 1.5 * frame_ms) / 1000 if options.realtime and not options.raw_chunks else None,
            observer=self._observer,
            timeouts=timeouts,
            on_close=self._closed,
        )
        self._sessions[session.id] = session
        self._engine_of[session.id] = voice.engine
        return session

    def params(self, options: SessionOptions) -> SynthesisParams:
        """The params of ``options``, checked. Raises UnknownVoice, or InvalidRequest naming what is out of range."""
        voice = self.voices.get(options.voice)
        slowest, fastest = voice.info.speed_range
        if not slowest <= options.speed <= fastest:  # also refuses NaN
            raise InvalidRequest(f"speed must be {slowest:g} to {fastest:g} for voice {voice.name}")
        if not 0 <= options.seed < 2**63:
            raise InvalidRequest("seed must be 0 to 2^63 - 1")
        language = options.language
        if language is not None and not _speaks(voice, language):
            spoken = ", ".join(voice.languages)
            raise InvalidRequest(f"voice {voice.name} does not speak {language[:16]!r}; it speaks {spoken}")
        return SynthesisParams(voice.name, options.speed, options.seed, language, options.instruct)

    def _text_factory(self, options: SessionOptions) -> Callable[[SynthesisParams], TextPipeline]:
        defaults = self.config.text
        session_lexicon = Lexicon.from_mapping(options.lexicon) if options.lexicon else None
        normalise = options.normalise if options.normalise is not None else defaults.normalise
        if normalise and self.config.normalise is None:
            raise InvalidRequest("this worker runs without text normalisation (setting text.normalise)")

        def make_text(params: SynthesisParams) -> TextPipeline:
            voice = self.voices.get(params.voice)
            levels = [level for level in (self.config.lexicon, voice.lexicon, session_lexicon) if level]
            text = replace(
                defaults,
                markdown=defaults.markdown if options.markdown is None else options.markdown,
                urls=defaults.urls if options.urls is None else options.urls,
                language=params.language or voice.languages[0],
                normalise=normalise,
                by_word=voice.info.text_by_word,
            )
            return TextPipeline(text, Lexicon.merged(*levels) if levels else None, self.config.normalise)

        return make_text

    def _closed(self, session: str) -> None:
        self._sessions.pop(session, None)
        self._engine_of.pop(session, None)
        if not self._sessions:
            self._empty.set()

    # -- drain --------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Take no more sessions, let the running ones end, close what is left after ``timeout_s``."""
        self._draining = True
        if self._sessions:
            self._empty.clear()
            with anyio.move_on_after(timeout_s):
                await self._empty.wait()
        for session in list(self._sessions.values()):
            session.close("drain")


def _timeouts(options: SessionOptions, defaults: SessionTimeouts) -> SessionTimeouts:
    pause_s = options.pause_timeout_s if options.pause_timeout_s is not None else defaults.pause_s
    text_idle_s = options.text_idle_timeout_s if options.text_idle_timeout_s is not None else defaults.text_idle_s
    if not 0 < pause_s <= 3_600:
        raise InvalidRequest("pause_timeout_s must be above 0 and at most 3600")
    if not 0 < text_idle_s <= 3_600:
        raise InvalidRequest("text_idle_timeout_s must be above 0 and at most 3600")
    return SessionTimeouts(pause_s, text_idle_s)


def _speaks(voice: Voice, language: str) -> bool:
    primary = language.split("-")[0].lower()
    return "mul" in voice.languages or primary in {tag.split("-")[0].lower() for tag in voice.languages}
