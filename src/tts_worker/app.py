"""The composition root: ``Worker`` builds and runs all parts of a worker; ``serve`` runs it behind HTTP servers."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, cast

import anyio.lowlevel
import uvicorn
from starlette.types import ASGIApp

from tts_worker import __version__
from tts_worker.adapter import TTSWorker
from tts_worker.engine.engine_thread import SWITCH_INTERVAL_S
from tts_worker.engine.factory import (
    EngineFactory,
    enroller_of,
    info_before_loading,
    model_version,
    stored_voices_dir,
)
from tts_worker.engine.loop import EngineLoop, EngineState
from tts_worker.errors import ConfigError, DeviceLost, InvalidRequest, MissingExtra, OutOfMemory
from tts_worker.logs import fields
from tts_worker.metrics import Metrics
from tts_worker.models.enrolment import Enrolment
from tts_worker.models.manager import EngineActions, ManagerConfig, ModelManager
from tts_worker.models.policy import EvictionRules
from tts_worker.models.voice_library import VoiceLibrary
from tts_worker.models.voice_store import VoiceStore
from tts_worker.server.batch.runner import BatchRunner
from tts_worker.server.connections import (
    Connection,
    ConnectionLimits,
    ConnectionTable,
    Listener,
    limit_by_descriptors,
)
from tts_worker.server.http import Extension, create_app
from tts_worker.server.http_protocol import HttpProtocol
from tts_worker.server.keys import KeyFileWatch, KeyRing
from tts_worker.server.tls import TlsContext, expiry_s
from tts_worker.session.factory import HubConfig
from tts_worker.session.hub import SessionHub
from tts_worker.session.normalizing import SegmentNormalizer
from tts_worker.session.quotas import Quotas
from tts_worker.session.session import LocalSession, SessionTimeouts
from tts_worker.session.traces import open_traces
from tts_worker.settings import (
    CosyVoiceEngineSettings,
    EngineSettings,
    ServerSettings,
    Settings,
    TextSettings,
    check_directory,
    packaged,
    read_yaml,
)
from tts_worker.settings.keys import plain_keys, read_key_file
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.normalizer import load_normalizer
from tts_worker.text.pipeline import TextOptions
from tts_worker.voicepack.voice_pack import InstalledPack, read_voicepacks
from tts_worker.voices import VoiceCatalog

if TYPE_CHECKING:
    from tts_worker.fleet import FleetMember

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
        from_file = () if server.key_file is None else read_key_file(server.key_file)
        quotas = _quotas(settings)
        self.keys = KeyRing(
            (*plain, *from_file), required=server.needs_key, on_failure=self.metrics.auth_failure, quotas=quotas
        )
        self.key_file = None if server.key_file is None else KeyFileWatch(self.keys, server.key_file, plain)
        voices = settings.voices
        if voices.directory is not None:
            check_directory("voices.directory", voices.directory, must_exist=True)
        if settings.batch.directory is not None:
            check_directory("batch.directory", settings.batch.directory, must_exist=False)
        directory = voices.directory or packaged("voicepacks")
        self.packs: tuple[InstalledPack, ...] = read_voicepacks(directory) if directory is not None else ()
        packs = [installed.pack for installed in self.packs]
        self.hub = SessionHub(
            VoiceCatalog(packs, default=voices.default, aliases=voices.aliases, on_demand=settings.models.on_demand),
            self.metrics,
            _hub_config(settings),
            quotas,
        )
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
        self.hub.enrolling_engines = [name for name, engine in settings.engines.items() if self.can_enrol(name, engine)]
        stores = {name: self.store_of(engine) for name, engine in settings.engines.items()}
        present = {name: store for name, store in stores.items() if store is not None}
        if present:
            self.hub.library = VoiceLibrary(
                self.hub.voices,
                present,
                self.hub.enrolment_of,
                max_stored=voices.max_stored,
                on_change=self.hub.renew_loudness,
                in_use=lambda: self.hub.voices_in_use,
            )
        self.batches: BatchRunner | None = None
        if settings.batch.enabled:
            self.batches = BatchRunner(self.hub, settings.batch, server.max_input_chars, self.keys.caller_named)
        self._retiring: set[asyncio.Task[None]] = set()  # engines that were replaced and still have sessions
        self._housekeeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load the preloaded engines. Raises ConfigError, and the error of an engine that fails to start."""
        for name, engine in self.settings.engines.items():
            self.hub.voices.add_unloaded(name, engine.kind, info_before_loading(name, engine))
        await self.hub.refresh_voices()
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
        if self.batches is not None:
            jobs["batches"] = self.batches.run()
        if self.hub.library is not None:
            jobs["stored-voices"] = self.hub.library.watch(self.settings.voices.watch_interval_s)
        if self.key_file is not None:
            jobs["key-file"] = self.key_file.run()
        loop = asyncio.get_running_loop()
        self._housekeeping = [loop.create_task(job, name=name) for name, job in jobs.items()]

    def store_of(self, settings: EngineSettings) -> VoiceStore | None:
        """Return the directory of an engine's stored voices; None for an engine that stores none."""
        folder = stored_voices_dir(settings)
        return None if folder is None else VoiceStore(folder, unused_s=5 * self.settings.voices.watch_interval_s)

    def can_enrol(self, name: str, settings: EngineSettings) -> bool:
        """Whether a configured engine can enrol voices once it is loaded."""
        return isinstance(settings, CosyVoiceEngineSettings)

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
        engine, enrolment, version = await self._start_engine(name)
        settings = self.settings.engines[name]
        try:
            self.hub.add_engine(name, settings.kind, engine, enrolment)
        except BaseException:
            await engine.stop()
            raise
        await self._use_engine(name, engine, version)

    async def _replace_engine(self, name: str) -> None:
        """Start an engine beside the running one, and use it for new sessions; the old one ends with its sessions."""
        try:
            engine, enrolment, version = await self._start_engine(name)
        except (OutOfMemory, ConfigError) as error:
            if isinstance(error, ConfigError) and not error.message.startswith("memory_gb:"):
                raise
            hint = "the running model goes on, and its memory can be freed first (free_first)"
            raise type(error)(f"{error.message}; {hint}") from None
        settings = self.settings.engines[name]
        try:
            sessions = self.hub.replace_engine(name, settings.kind, engine, enrolment)
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
        await self.hub.end_sessions(self.hub.withdraw_engine(name), "reload", self.settings.server.drain_s)
        await self._unload(name)

    async def _retire(self, engine: EngineLoop, sessions: Iterable[LocalSession]) -> None:
        try:
            await self.hub.end_sessions(sessions, "reload", _RETIRE_S)
        finally:
            await engine.stop()

    async def _start_engine(self, name: str) -> tuple[EngineLoop, Enrolment | None, str]:
        """Build and warm up an engine. Raises its error."""
        settings = self.settings.engines[name]
        enroller = enroller_of(settings)
        version = await asyncio.to_thread(model_version, settings)
        engine = EngineLoop(
            EngineFactory(settings, enroller, self.settings.engine.memory_share),
            name=name,
            hang_timeout_s=self.settings.hang_timeout_s,
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
        return engine, None if enroller is None else Enrolment(enroller), version

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
        if self.hub.library is not None:
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
        if self.hub.library is not None:
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
        yield TTSWorker(worker)


def _hub_config(settings: Settings) -> HubConfig:
    session = settings.session
    text = settings.text
    return HubConfig(
        max_sessions=session.max_sessions,
        max_open_sessions=session.open_limit,
        slot_idle_s=session.slot_idle_s,
        end_idle_s=session.end_idle_s,
        lead_ms=session.lead_ms,
        window_ms=session.window_ms,
        frame_ms=session.frame_ms,
        max_utterance_chars=session.max_utterance_chars,
        max_queued_utterances=session.max_queued_utterances,
        timeouts=SessionTimeouts(session.pause_timeout_s, session.text_idle_timeout_s, session.flush_after_ms / 1000),
        loudness_lufs=session.loudness,
        text=TextOptions(markdown=text.markdown, urls=text.urls),
        lexicon=_server_lexicon(text),
        normalise=text.normalise,
        normalizer=_normalizer(text.normalise),
        route_by_language=settings.voices.route_by_language,
        traces=open_traces(settings.tracing),
    )


def _quotas(settings: Settings) -> Quotas:
    """The quotas of API keys, shared if there is a Redis for them. Raises ConfigError and MissingExtra."""
    url = settings.quotas.redis_url or settings.registry.url
    if url is None:
        return Quotas()
    from tts_worker.registry.quotas import RedisQuotas
    from tts_worker.registry.store import RedisStore

    store = RedisStore(url.get_secret_value(), "the Redis of the quotas")
    return RedisQuotas(store, settings.quotas.prefix or settings.registry.prefix)


def _normalizer(enabled: bool | None) -> SegmentNormalizer | None:
    """The normalizer; None if disabled, or if optional and not installed. Raises MissingExtra."""
    if enabled is False:
        return None
    try:
        return SegmentNormalizer(load_normalizer())
    except MissingExtra:
        if enabled:
            raise
        return None


def _manager_config(settings: Settings) -> ManagerConfig:
    models = settings.models
    return ManagerConfig(
        default=settings.default_engine,
        preload=models.preload,
        on_demand=models.on_demand,
        load_wait_s=models.load_wait_s,
        check_interval_s=models.check_interval_s,
        max_parallel_loads=models.max_parallel_loads,
        max_waiting=settings.session.max_sessions,
        # Without models.preload all engines are loaded at start and never evicted.
        rules=EvictionRules(
            models.ttl_s, models.min_residency_s, None if models.preload is None else models.resident_cap
        ),
    )


def _server_lexicon(text: TextSettings) -> Lexicon:
    try:
        levels = [Lexicon.from_mapping(text.lexicon, name="text.lexicon")]
        if text.lexicon_file is not None:
            levels.insert(0, Lexicon.from_mapping(read_yaml(text.lexicon_file), name="text.lexicon_file"))
    except InvalidRequest as error:
        raise ConfigError(error.message) from None
    return Lexicon.merged(*levels)


# -- serving ----------------------------------------------------------------------------------------------------------


def create_application(worker: Worker, extension: Extension | None = None) -> ASGIApp:
    """Create the ASGI application of ``worker``; its routes answer 503 until the worker has started."""
    return create_app(worker.hub, worker.metrics, worker.settings, worker.keys, worker.batches, extension)


_SHUTDOWN_S = 13.0
"""Time limit after the drain: closing connections and stopping engines take at most 5 s each."""

_LOST_MARGIN_S = 1.0
"""Time to deliver the errors of a lost engine, after the audio that it generated before (``session.window_ms``)."""


def _set_kill_timer(seconds: float) -> None:
    """Let the operating system end this process after ``seconds`` if it is still running.

    A process that is out of memory, or that has a hanging event loop, cannot start a thread or run a handler. The
    system timer needs neither: SIGALRM ends the process with status 128 + 14.
    """
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


_GOODBYE_S = 1.0
"""How long connections may take to end by themselves before they are closed."""


class _Server(uvicorn.Server):
    """Uvicorn with this package's connections and drain.

    The first signal lets running utterances end; the second one closes all connections.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listening: socket.socket,
        table: ConnectionTable,
        tls: TlsContext | None,
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._listening = listening
        self._table = table
        self._tls = tls
        self._on_exit = on_exit
        self._is_draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol(connection: Connection) -> HttpProtocol:
            return HttpProtocol(
                self.config, self.server_state, self.lifespan.state, connection=connection, limits=self._table.limits
            )

        await self.lifespan.startup()
        listener = Listener(self._listening, self._table, protocol, self._tls)
        self.servers = [cast(asyncio.Server, listener)]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, those of closed sessions after they have told their clients why."""
        for server in self.servers:
            server.close()
        if self.server_state.tasks and not self.force_exit:
            await asyncio.wait(set(self.server_state.tasks), timeout=_GOODBYE_S)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._is_draining:
            self.should_exit = self.force_exit = True
        else:
            self._is_draining = True
            self._on_exit()


async def serve(
    settings: Settings,
    on_listening: Callable[[str], None],
    on_ready: Callable[[], None],
    *,
    ends_process: bool = False,
    extension: Extension | None = None,
    on_reload: Callable[[], None] | None = None,
) -> None:
    """Run the servers until SIGINT or SIGTERM.

    Args:
        settings: The settings.
        on_listening: Called with every address, before the engines are warm.
        on_ready: Called when the worker accepts sessions.
        ends_process: The process has no other purpose: a signal ends it even if the drain hangs.
        extension: Adds routes to the HTTP application.
        on_reload: Called on SIGHUP, as keys and certificate are read again.

    Raises:
        ConfigError: A setting is invalid or a port is taken.
        DeviceLost: An engine cannot be rebuilt in this process, which must be restarted. Clients have their errors.
        MissingExtra: A setting needs an extra that is not installed.
        TTSWorkerError: An engine failed to start.
    """
    worker = Worker(settings)
    tls = _tls_context(settings.server)
    listener = _listen(settings.server)
    loop = asyncio.get_running_loop()
    drained: set[asyncio.Task[None]] = set()
    members: list[FleetMember] = []

    def begin_drain(timeout_s: float = settings.server.drain_s) -> None:
        if ends_process:
            _set_kill_timer(timeout_s + _SHUTDOWN_S)
        log.info("draining: running utterances may end within %.0f s", timeout_s)
        loop.call_soon_threadsafe(lambda: drained.add(loop.create_task(drain(timeout_s))))

    async def drain(timeout_s: float) -> None:
        try:
            for member in members:
                member.begin_drain()
            await worker.hub.drain(timeout_s)
        finally:  # also after an error, such as running out of memory
            server.should_exit = True

    server = _create_server(worker, listener, tls, begin_drain, extension)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    stack = AsyncExitStack()
    try:
        scheme = "http" if tls is None else "https"
        on_listening(f"{scheme}://{_url_host(settings.server.host)}:{listener.getsockname()[1]}")
        if settings.grpc.enabled:
            members.append(await stack.enter_async_context(_join_fleet(worker)))
            scheme = "grpc" if settings.grpc.tls_certificate is None else "grpcs"
            on_listening(f"{scheme}://{members[0].address}")
        stack.enter_context(_reloading(worker, tls, on_reload))
        await worker.start()
        for member in members:
            await member.announce()  # register before reporting "ready"
        _log_start(worker)
        on_ready()
        if await _ends_lost(worker, serving):
            server.config.timeout_graceful_shutdown = 1
            begin_drain((settings.session.window_ms + settings.session.lead_ms) / 1000 + _LOST_MARGIN_S)
            await asyncio.wait({serving})
            raise DeviceLost("an engine cannot be rebuilt in this process; restart it")
        serving.result()
    finally:
        server.should_exit = True
        await worker.stop()
        await stack.aclose()
        await asyncio.wait({serving})


@contextmanager
def _reloading(worker: Worker, tls: TlsContext | None, on_reload: Callable[[], None] | None) -> Iterator[None]:
    """Read the key file and the TLS certificate again on SIGHUP, and the certificate when it changes.

    ``on_reload`` is called on SIGHUP as well. Without any of the three, SIGHUP ends the process.
    """
    loop = asyncio.get_running_loop()
    sources = [source.reload for source in (worker.key_file, tls) if source is not None]
    reloads = [*sources, on_reload] if on_reload is not None else sources
    watch = None if tls is None else loop.create_task(tls.run(), name="tls")

    def reload() -> None:
        for each in reloads:
            each()

    handles_signal = bool(reloads) and hasattr(signal, "SIGHUP")
    if handles_signal:
        loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        if handles_signal:
            loop.remove_signal_handler(signal.SIGHUP)
        if watch is not None:
            watch.cancel()


def _create_server(
    worker: Worker,
    listener: socket.socket,
    tls: TlsContext | None,
    on_exit: Callable[[], None],
    extension: Extension | None,
) -> _Server:
    server = worker.settings.server
    table = ConnectionTable(_connection_limits(worker.settings), worker.metrics)
    worker.metrics.watch_connections(lambda: table.active, lambda: table.waiting)
    if server.tls_certificate is not None:
        worker.metrics.watch_certificate("http", partial(expiry_s, server.tls_certificate))
    config = uvicorn.Config(
        create_application(worker, extension),
        log_config=None,
        access_log=False,
        ws_max_size=server.max_request_bytes,
        ws_ping_interval=server.heartbeat_s,
        ws_ping_timeout=server.heartbeat_s,
        ws_per_message_deflate=False,  # PCM hardly compresses
        timeout_graceful_shutdown=5,
        lifespan="off",
        h11_max_incomplete_event_size=server.max_header_bytes + 1,
    )
    return _Server(config, listener, table, tls, on_exit)


async def _ends_lost(worker: Worker, serving: asyncio.Task[None]) -> bool:
    """Wait until the server ends or an engine is lost; return whether one is."""
    lost = asyncio.create_task(worker.lost.wait(), name="lost")
    try:
        await asyncio.wait({serving, lost}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost.cancel()
    return worker.lost.is_set()


def _listen(server: ServerSettings) -> socket.socket:
    """Open the listening socket. Raises ConfigError if the port is taken."""
    try:
        return socket.create_server((server.host, server.port), family=_family(server.host), backlog=1024)
    except OSError as error:
        raise ConfigError(f"server.port: cannot listen on {server.host}:{server.port}: {error.strerror}") from None


def _log_start(worker: Worker) -> None:
    settings = worker.settings
    log.info(
        "ready",
        extra=fields(
            version=__version__,
            host=settings.server.host,
            tls=settings.server.tls_certificate is not None,
            grpc=settings.grpc.enabled,
            authenticated=settings.server.needs_key,
            engines=",".join(sorted(worker.engines)),
            devices=",".join(f"{name}:{engine.info.device}" for name, engine in sorted(worker.engines.items())),
            voices=len(list(worker.hub.voices)),
            max_sessions=settings.session.max_sessions,
        ),
    )


def _connection_limits(settings: Settings) -> ConnectionLimits:
    server = settings.server
    return ConnectionLimits(
        max_connections=limit_by_descriptors(server.max_connections, settings.grpc.connection_limit),
        header_timeout_s=server.header_timeout_s,
        body_timeout_s=server.body_timeout_s,
        send_timeout_s=server.send_timeout_s,
        max_header_bytes=server.max_header_bytes,
    )


def _tls_context(server: ServerSettings) -> TlsContext | None:
    """Load the configured certificate; None without one. Raises ConfigError naming the setting."""
    if server.tls_certificate is None:
        return None
    return TlsContext(server.tls_certificate, server.tls_key, server.tls_client_ca)


def _join_fleet(worker: Worker) -> AbstractAsyncContextManager[FleetMember]:
    from tts_worker.fleet import join_fleet  # needs extras

    return join_fleet(worker)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def run(coroutine: Coroutine[object, object, None]) -> None:
    """Run a coroutine on uvloop if it is installed, else on asyncio's event loop."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)
