"""The composition root: ``Worker`` builds and runs all parts of a worker, except for the servers in front of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import anyio.lowlevel

from tts_worker.adapter import TTSWorker
from tts_worker.engine.engine_thread import SWITCH_INTERVAL_S
from tts_worker.engine.factory import (
    EngineFactory,
    can_enroll,
    enroller_of,
    info_before_loading,
    model_version,
    stored_voices_dir,
)
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.errors import ConfigError, DeviceLost, MissingExtra, OutOfMemory
from tts_worker.feature import WorkerPart, features, find_converter, find_file_signer, find_lexicons, find_marker
from tts_worker.front_end.normalizer import load_normalizer
from tts_worker.metrics import Metrics
from tts_worker.models.manager import EngineActions, ManagerConfig, ModelManager
from tts_worker.models.policy import EvictionRules
from tts_worker.server.keys import KeyFileWatch, KeyRing
from tts_worker.server.tokens import TokenSigner
from tts_worker.session.factory import HubConfig, Reading
from tts_worker.session.hub import SessionHub
from tts_worker.session.normalizing import SegmentNormalizer
from tts_worker.session.quotas import Quotas
from tts_worker.session.record import UtteranceExporter
from tts_worker.session.session import LocalSession
from tts_worker.session.timers import SessionTimeouts
from tts_worker.settings import EngineSettings, HibariEngineSettings, Settings, check_directory, packaged, read_lexicon
from tts_worker.settings.keys import KeyFile, plain_keys, read_key_file
from tts_worker.text.options import TextOptions
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.enrollment import Enrollment
from tts_worker.voices.library import VoiceLibrary
from tts_worker.voices.packs import InstalledPack, read_voicepack, read_voicepacks
from tts_worker.voices.store import VoiceStore

log = logging.getLogger(__name__)

_RETIRE_S = 600.0
"""Time limit for utterances on an engine that was replaced."""


class Worker:
    """Engines, hub and metrics of one process. The hub is not ready until ``start`` has finished.

    Create it on the event loop that runs it. Raises ConfigError.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.engines: dict[str, EngineLoop] = {}
        self.lost = asyncio.Event()
        """Set when an engine cannot be rebuilt in this process, which should then be restarted."""
        server = settings.server
        plain = plain_keys(server.keys)
        from_file = KeyFile() if server.key_file is None else read_key_file(server.key_file)
        quotas = _quotas(settings)
        self.keys = KeyRing(
            (*plain, *from_file.keys),
            required=server.needs_key,
            on_failure=self.metrics.auth_failure,
            quotas=quotas,
            tokens=TokenSigner(from_file.token_secret),
        )
        self.key_file = None if server.key_file is None else KeyFileWatch(self.keys, server.key_file, plain)
        voices = settings.voices
        if voices.directory is not None:
            check_directory("voices.directory", voices.directory, must_exist=True)
        directory = voices.directory or packaged("voicepacks")
        packaged_packs = read_voicepacks(directory) if directory is not None else ()
        of_voices = (
            read_voicepack(folder)
            for engine in settings.engines.values()
            if isinstance(engine, HibariEngineSettings)
            for folder in engine.installed_packs().values()
        )
        self.packs: tuple[InstalledPack, ...] = (*of_voices, *packaged_packs)  # the later one of a name applies
        packs = [installed.pack for installed in self.packs]
        stores = {name: self.store_of(engine) for name, engine in settings.engines.items()}
        library = VoiceLibrary(
            VoiceCatalog(packs, default=voices.default, aliases=voices.aliases, on_demand=settings.models.on_demand),
            {name: store for name, store in stores.items() if store is not None},
            enrolling=[name for name, engine in settings.engines.items() if self.can_enroll(name, engine)],
            max_stored=voices.max_stored,
        )
        self.hub = SessionHub(library, self.metrics, _hub_config(settings), quotas)
        self.hub.converter = find_converter()
        self.hub.lexicons.library = find_lexicons(settings)
        self.models = ModelManager(
            settings.engines,
            EngineActions(
                self._load,
                self.hub.remove_engine,
                self._unload,
                self.hub.count_sessions,
                self._replace_engine,
                self._vacate_engine,
            ),
            self.metrics,
            _manager_config(settings),
            asyncio.get_running_loop().time,
        )
        self.hub.models = self.models
        self.parts = self._build_parts()
        """What features have added."""
        self._retiring: set[asyncio.Task[None]] = set()  # engines that were replaced and still have sessions
        self._housekeeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load the preloaded engines. Raises ConfigError, and the error of an engine that fails to start."""
        for name, engine in self.settings.engines.items():
            self.hub.voices.add_unloaded(name, engine.kind, info_before_loading(name, engine))
        await self.hub.library.refresh()
        await self.models.start()
        self.hub.voices.check()
        self.run_housekeeping()
        await _import_for_requests()
        # Objects created so far live as long as the process: excluding them keeps garbage collection pauses short.
        gc.collect()
        gc.freeze()

    def run_housekeeping(self) -> None:
        """Start what runs in the background, once; shorten the thread switch interval."""
        if self._housekeeping:
            return
        self.metrics.watch_hub(self.hub)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        jobs = {"loop-lag": self.metrics.measure_loop_lag(), "quotas": self.hub.quotas.run()}
        jobs |= {name: part.run() for name, part in self.parts.items()}
        if self.hub.library.can_store:
            jobs["stored-voices"] = self.hub.library.watch()
        if self.key_file is not None:
            jobs["key-file"] = self.key_file.run()
        loop = asyncio.get_running_loop()
        self._housekeeping = [loop.create_task(job, name=name) for name, job in jobs.items()]

    def _build_parts(self) -> dict[str, WorkerPart]:
        builders = {name: feature.part for name, feature in features().items() if feature.part is not None}
        built = {name: build(self.hub, self.settings, self.keys) for name, build in builders.items()}
        return {name: part for name, part in built.items() if part is not None}

    def store_of(self, settings: EngineSettings) -> VoiceStore | None:
        """Return the directory of an engine's stored voices; None for an engine that stores none."""
        folder = stored_voices_dir(settings)
        return None if folder is None else VoiceStore(folder)

    def can_enroll(self, name: str, settings: EngineSettings) -> bool:
        """Whether a configured engine can enroll voices once it is loaded."""
        return can_enroll(settings)

    def is_loaded(self, name: str) -> bool:
        """Whether an engine is running."""
        return name in self.engines

    async def load(self, name: str) -> None:
        """Start and warm up a configured engine; concurrent calls share one load.

        Raises:
            UnknownModel: There is no such engine.
            OverCapacity: ``models.resident_cap`` is reached and no engine can be evicted.
            TTSWorkerError: The engine failed to start.
        """
        await self.models.load(name)

    async def reload(self, name: str) -> None:
        """Replace an engine by one that is built anew. Raises as ``ModelManager.reload`` does."""
        await self.models.reload(name)

    async def unload(self, name: str) -> None:
        """Stop an engine and free its memory; does nothing if it is not loaded.

        Raises:
            UnknownModel: There is no such engine.
            IllegalCommand: Sessions use the engine.
        """
        await self.models.unload(name)

    async def _load(self, name: str) -> None:
        engine, enrollment, version = await self._start_engine(name)
        settings = self.settings.engines[name]
        try:
            self.hub.add_engine(name, settings.kind, engine, enrollment)
        except BaseException:
            await engine.stop()
            raise
        await self._use_engine(name, engine, version)

    async def _replace_engine(self, name: str) -> None:
        """Start an engine beside the running one, and use it for new sessions; the old one ends with its sessions."""
        try:
            engine, enrollment, version = await self._start_engine(name)
        except (OutOfMemory, ConfigError) as error:
            if isinstance(error, ConfigError) and not error.message.startswith("memory_gb:"):
                raise
            hint = "the running model goes on, and its memory can be freed first (free_first)"
            raise type(error)(f"{error.message}; {hint}") from None
        settings = self.settings.engines[name]
        try:
            sessions = self.hub.replace_engine(name, settings.kind, engine, enrollment)
        except BaseException:
            await engine.stop()
            raise
        old = self.engines[name]
        retiring = asyncio.get_running_loop().create_task(self._retire(old, sessions), name=f"retire-{name}")
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        await self._use_engine(name, engine, version)

    async def _vacate_engine(self, name: str) -> None:
        """Let the utterances on an engine end within ``server.drain_s``, and stop it."""
        await self.hub.end_sessions(self.hub.withdraw_engine(name), self.settings.server.drain_s)
        await self._unload(name)

    async def _retire(self, engine: EngineLoop, sessions: Iterable[LocalSession]) -> None:
        try:
            await self.hub.end_sessions(sessions, _RETIRE_S)
        finally:
            await engine.stop()

    async def _start_engine(self, name: str) -> tuple[EngineLoop, Enrollment | None, str]:
        """Build and warm up an engine. Raises its error."""
        settings = self.settings.engines[name]
        enroller = enroller_of(settings)
        version = await asyncio.to_thread(model_version, settings)
        engine = EngineLoop(
            EngineFactory(settings, enroller, self.settings.memory_share(name)),
            name=name,
            start_timeout_s=self.settings.engine.start_timeout_s,
            in_process=self.settings.engine.process == "process",
            shared=enroller,
        )
        engine.on_state(lambda state: self.lost.set() if state is EngineState.LOST else None)
        try:
            await engine.start()
        except BaseException as error:  # also on cancellation: the thread must not outlive the worker
            await engine.stop()
            if isinstance(error, DeviceLost):
                self.lost.set()
            raise
        return engine, Enrollment(enroller) if enroller is not None and can_enroll(settings) else None, version

    async def _use_engine(self, name: str, engine: EngineLoop, version: str) -> None:
        self.engines[name] = engine
        self.hub.model_versions[name] = version
        await self._import_packs(name, self.settings.engines[name].kind, engine)
        self.metrics.watch_engine(name, engine.stats)
        if (gpu := dict(engine.info.extra).get("gpu")) is not None:
            self.metrics.gpus.add(name, gpu)

    async def _import_packs(self, name: str, kind: str, engine: EngineLoop) -> None:
        """Store the recordings of the voice packs that belong to an engine; takes time the first time only."""
        families = (kind, dict(engine.info.extra).get("family"))
        packs = [installed for installed in self.packs if installed.pack.family in families]
        await self.hub.library.import_packs(name, packs)

    async def _unload(self, name: str) -> None:
        self.metrics.forget_engine(name)
        self.hub.model_versions.pop(name, None)
        self.metrics.gpus.remove(name)
        await self.engines.pop(name).stop()

    async def stop(self) -> None:
        """Close all sessions and stop the engines."""
        for task in self._housekeeping:
            task.cancel()
        if self._housekeeping:
            await asyncio.wait(self._housekeeping)
        self.metrics.gpus.stop()
        await self.hub.drain(timeout_s=0.0)
        await self.hub.library.close()
        await self.models.close()
        if retiring := [*self._retiring]:  # their sessions are closed
            await asyncio.wait(retiring)
        for engine in self.engines.values():
            await engine.stop()
        await self.hub.quotas.aclose()
        if self.hub.config.normalizer is not None:
            self.hub.config.normalizer.close()
        if self.hub.config.traces is not None:
            await asyncio.to_thread(self.hub.config.traces.close)
        gc.unfreeze()


async def _import_for_requests() -> None:
    """Import what the first requests would: it takes up to 20 ms, in which running calls get no frames."""
    import soundfile  # noqa: F401  (compressed formats)

    await anyio.lowlevel.checkpoint()  # anyio imports its backend when it is first used


@asynccontextmanager
async def running_worker(settings: Settings) -> AsyncIterator[Worker]:
    """Start a worker, and stop it when the context exits."""
    worker = Worker(settings)
    try:
        await worker.start()
        yield worker
    finally:
        await worker.stop()


@asynccontextmanager
async def running_adapter(settings: Settings) -> AsyncIterator[TTSWorker]:
    """Do the same as ``running_worker`` and yield its ``TTSWorker``."""
    async with running_worker(settings) as worker:
        yield TTSWorker(worker, aliases=settings.grpc.models)


def _hub_config(settings: Settings) -> HubConfig:
    session = settings.session
    text = settings.text
    return HubConfig(
        max_sessions=session.max_sessions,
        max_open_sessions=session.open_limit,
        slot_idle_s=session.slot_idle_s,
        lead_ms=session.lead_ms,
        frame_ms=session.frame_ms,
        max_utterance_chars=session.max_utterance_chars,
        timeouts=SessionTimeouts(session.pause_timeout_s, session.text_idle_timeout_s, session.flush_after_ms / 1000),
        longest_pause_s=settings.grpc.pause_timeout_s or 0.0,
        loudness_lufs=session.loudness,
        text=TextOptions(markdown=text.markdown, urls=text.urls, drop_reasoning=text.drop_reasoning),
        lexicon=read_lexicon(text),
        reading=text.reading,
        normalizer=_normalizer(text.reading),
        route_by_language=settings.voices.route_by_language,
        traces=_exporter(settings),
        make_marker=find_marker(settings),
        file_signer=find_file_signer(settings),
    )


def _quotas(settings: Settings) -> Quotas:
    """The quotas of API keys, shared if a feature shares them. Raises ConfigError and MissingExtra."""
    shared = [feature.quotas(settings) for feature in features().values() if feature.quotas is not None]
    return next((quotas for quotas in shared if quotas is not None), Quotas())


def _exporter(settings: Settings) -> UtteranceExporter | None:
    """What exports ended utterances. Raises MissingExtra."""
    opened = [feature.exporter(settings) for feature in features().values() if feature.exporter is not None]
    return next((exporter for exporter in opened if exporter is not None), None)


def _normalizer(reading: Reading) -> SegmentNormalizer | None:
    """The normalizer of the reference's front end; None without that, or without wetext."""
    if reading != "reference":
        return None
    try:
        return SegmentNormalizer(load_normalizer())
    except MissingExtra as error:
        log.warning("text.reading: reference has only its own rules: %s", error)
        return None


def _manager_config(settings: Settings) -> ManagerConfig:
    models = settings.models
    return ManagerConfig(
        default=settings.default_engine,
        preload=models.preload,
        on_demand=models.on_demand,
        load_wait_s=models.load_wait_s,
        max_waiting=settings.session.max_sessions,
        # Without models.preload all engines are loaded at start and never evicted.
        rules=EvictionRules(ttl_s=models.ttl_s, resident_cap=None if models.preload is None else models.resident_cap),
    )
