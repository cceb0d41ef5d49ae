"""``serve`` runs a worker behind its HTTP and gRPC servers, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.types import ASGIApp

from tts_worker.errors import DeviceLost
from tts_worker.feature import features, web_folders
from tts_worker.logs import fields
from tts_worker.server.application import Application, Extension
from tts_worker.server.connections import (
    HEARTBEAT_S,
    MAX_HEADER_BYTES,
    Connection,
    ConnectionLimits,
    ConnectionTable,
    Listener,
    limit_by_descriptors,
)
from tts_worker.server.http import create_app
from tts_worker.server.http_protocol import HttpProtocol
from tts_worker.server.listener import listen
from tts_worker.server.page import WebFiles
from tts_worker.server.tls import TlsContext, expiry_s
from tts_worker.settings import ServerSettings, Settings
from tts_worker.version import __version__
from tts_worker.worker import Worker

if TYPE_CHECKING:
    from tts_worker.grpc_serving import GrpcServers

log = logging.getLogger(__name__)


def create_application(worker: Worker, extension: Extension | None = None) -> ASGIApp:
    """Create the ASGI application of ``worker``; its routes answer 503 until the worker has started."""
    settings = worker.settings
    web = WebFiles(web_folders() if settings.server.web_page else ())
    parts = Application(worker.hub, settings, worker.keys, [*worker.parts.values()], web)
    extensions = [feature.http for feature in features().values() if feature.http is not None]
    return create_app(parts, worker.metrics, extensions if extension is None else [*extensions, extension])


_SHUTDOWN_S = 13.0
"""Time limit after the drain: closing connections and stopping engines take at most 5 s each."""

_LOST_MARGIN_S = 1.0
"""Time to deliver the errors of a lost engine, after the audio that it generated before (``HubConfig.window_ms``)."""


def _set_kill_timer(seconds: float) -> None:
    """Let the operating system end this process after ``seconds`` if it is still running.

    A process that is out of memory, or that has a hanging event loop, cannot start a thread or run a handler. The
    system timer needs neither: SIGALRM ends the process with status 128 + 14.
    """
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


GOODBYE_S = 1.0
"""How long connections may take to end by themselves before they are closed."""

CLOSE_S = 5
"""How long the requests that are left may take then."""


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
            await asyncio.wait(set(self.server_state.tasks), timeout=GOODBYE_S)
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
        on_listening: Called with every address, that of HTTP first, before the engines are warm.
        on_ready: Called when the worker accepts sessions.
        ends_process: The process has no other purpose: a signal ends it even if the drain hangs.
        extension: Adds routes to the HTTP application.
        on_reload: Called on SIGHUP, as keys and certificate are read again.

    Raises:
        AddressInUse: Another process listens on a port.
        ConfigError: A setting is invalid.
        DeviceLost: An engine cannot be rebuilt in this process, which must be restarted. Clients have their errors.
        MissingExtra: A setting needs an extra that is not installed.
        TTSWorkerError: An engine failed to start.
    """
    worker = Worker(settings)
    tls = _tls_context(settings.server)
    listener = listen(settings.server.host, settings.server.port, "server.port")
    loop = asyncio.get_running_loop()
    drained: set[asyncio.Task[None]] = set()
    servers: list[GrpcServers] = []

    def begin_drain(timeout_s: float = settings.server.drain_s) -> None:
        if ends_process:
            _set_kill_timer(timeout_s + _SHUTDOWN_S)
        log.info("draining: running utterances may end within %.0f s", timeout_s)
        loop.call_soon_threadsafe(lambda: drained.add(loop.create_task(drain(timeout_s))))

    async def drain(timeout_s: float) -> None:
        try:
            for each in servers:
                each.begin_drain()
            began_s = loop.time()
            cut_off = await worker.hub.drain(timeout_s)
            log.info("drained", extra=fields(seconds=round(loop.time() - began_s, 1), cut_off=cut_off))
        finally:  # also after an error, such as running out of memory
            server.should_exit = True

    server = _create_server(worker, listener, tls, begin_drain, extension)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    stack = AsyncExitStack()
    try:
        scheme = "http" if tls is None else "https"
        on_listening(f"{scheme}://{_url_host(settings.server.host)}:{listener.getsockname()[1]}")
        if settings.grpc.enabled:
            servers.append(await stack.enter_async_context(_running_grpc(worker)))
            scheme = "grpc" if settings.grpc.tls_certificate is None else "grpcs"
            for address in (servers[0].address, *servers[0].other_addresses.values()):
                on_listening(f"{scheme}://{address}")
        stack.enter_context(_reloading(worker, tls, on_reload))
        await worker.start()
        for each in servers:
            await each.announce()  # register before reporting "ready"
        _log_start(worker)
        on_ready()
        if await _ends_lost(worker, serving):
            server.config.timeout_graceful_shutdown = 1
            begin_drain((worker.hub.config.window_ms + settings.session.lead_ms) / 1000 + _LOST_MARGIN_S)
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
        server_header=False,
        proxy_headers=bool(server.trusted_proxies),
        forwarded_allow_ips=list(server.trusted_proxies),
        ws_max_size=server.max_request_bytes,
        ws_ping_interval=HEARTBEAT_S,
        ws_ping_timeout=HEARTBEAT_S,
        ws_per_message_deflate=False,  # PCM hardly compresses
        timeout_graceful_shutdown=CLOSE_S,
        lifespan="off",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES + 1,
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
            max_sessions=worker.hub.max_sessions,
        ),
    )


def _connection_limits(settings: Settings) -> ConnectionLimits:
    server = settings.server
    return ConnectionLimits(
        max_connections=limit_by_descriptors(server.max_connections, settings.grpc.ports * server.max_connections),
        send_timeout_s=server.send_timeout_s,
    )


def _tls_context(server: ServerSettings) -> TlsContext | None:
    """Load the configured certificate; None without one. Raises ConfigError naming the setting."""
    if server.tls_certificate is None:
        return None
    return TlsContext(server.tls_certificate, server.tls_key, server.tls_client_ca)


def _running_grpc(worker: Worker) -> AbstractAsyncContextManager[GrpcServers]:
    from tts_worker.grpc_serving import running_grpc  # needs extras

    return running_grpc(worker)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
