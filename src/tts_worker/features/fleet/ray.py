"""Deployment of workers as replicas of Ray Serve behind one address.

    tts-worker serve --ray --config configs/ray.yaml
    serve run tts_worker.features.fleet.ray:app config=configs/ray.yaml

A replica is a whole worker in its own process, with its engines loaded before it gets requests. Replicas share no
state, and sessions end with their replica. Ray does the scheduling, routing and proxying.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from tts_worker.errors import ConfigError, MissingExtra, NotReady
from tts_worker.features.fleet.settings import RaySettings
from tts_worker.serving import create_application
from tts_worker.settings import Settings, is_loopback, load_settings
from tts_worker.worker import Worker

try:
    import ray
    from ray import serve
except ModuleNotFoundError as error:
    raise MissingExtra("serving on Ray", "ray") from error

if TYPE_CHECKING:
    from ray.serve import Application

log = logging.getLogger(__name__)

APPLICATION = "tts-worker"
_EXTRA_REQUESTS = 16
"""Requests beyond its session limit that Ray passes to a replica, which rejects them at once instead of queueing."""
_LOOK_BACK_S = 10.0
"""The load is averaged over this time."""
_UPSCALE_DELAY_S = 10.0
_DOWNSCALE_DELAY_S = 300.0
_CLOSE_MARGIN_S = 5.0
"""Time after the drain to close connections and engines."""


class Replica:
    """A worker in a process that Ray started. ``settings`` is the dump of a ``Settings``."""

    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        if is_loopback(ray.util.get_node_ip_address()):  # type: ignore[no-untyped-call]
            _bind_replica_to_loopback()
        self._worker = self.create_worker(load_settings(flags=settings))
        logging.basicConfig(level=self._worker.settings.log_level.upper())
        await self._worker.start()
        self._was_ready = True

    @staticmethod
    def create_worker(settings: Settings) -> Worker:
        """Build the worker; tests override it."""
        return Worker(settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:  # hook of Ray Serve
        return create_application(self._worker)

    async def check_health(self) -> None:
        """Report readiness to Ray, which replaces a replica after three failed checks.

        Suppresses a single failure: the worker rebuilds a failed engine meanwhile, and replacing the replica would end
        the sessions of its other engines.
        """
        if self._worker.hub.lost:
            raise NotReady("an engine is lost for this process")
        ready = self._worker.hub.ready or self._worker.hub.draining
        if not ready and not self._was_ready:
            raise NotReady("the worker accepts no sessions")
        self._was_ready = ready

    async def __del__(self) -> None:
        """Stop the worker; Ray calls this after running requests have ended or timed out."""
        await self._worker.stop()


def application(settings: Settings, replica: type[Replica] = Replica) -> Application:
    """Build the deployment of ``settings`` without running it."""
    replicas = settings.section(RaySettings)
    drain_s = settings.server.drain_s
    deployment = serve.deployment(
        name="worker",
        ray_actor_options={"num_cpus": replicas.cpus_per_replica, "num_gpus": replicas.gpus_per_replica},
        max_ongoing_requests=settings.session.open_limit + _EXTRA_REQUESTS,
        max_queued_requests=settings.session.open_limit + _EXTRA_REQUESTS,
        graceful_shutdown_timeout_s=drain_s + _CLOSE_MARGIN_S,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config={"enable_access_log": False},
        **_scaling(replicas, settings.session.max_sessions),
    )(serve.ingress()(replica))
    bound: Application = deployment.bind(replica_flags(settings))
    return bound


def replica_flags(settings: Settings) -> dict[str, Any]:
    """Return the settings of a replica. One with a part of a GPU uses that part of its memory, unless it is set."""
    flags = settings.model_dump()
    share = settings.section(RaySettings).gpus_per_replica
    if 0 < share < 1 and settings.engine.memory_share == 1.0:
        flags["engine"]["memory_share"] = share
    return flags


def _scaling(replicas: RaySettings, max_sessions: int) -> dict[str, Any]:
    """Scaling options of Ray; a running connection or download counts as one ongoing request."""
    if replicas.max_replicas == replicas.min_replicas:
        return {"num_replicas": replicas.min_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": replicas.target_sessions or 0.7 * max_sessions,
            "upscale_delay_s": _UPSCALE_DELAY_S,
            "downscale_delay_s": _DOWNSCALE_DELAY_S,
            "look_back_period_s": _LOOK_BACK_S,
        }
    }


def app(arguments: dict[str, str]) -> Application:
    """Application builder for ``serve run tts_worker.features.fleet.ray:app config=FILE``. Raises ConfigError."""
    if unknown := set(arguments) - {"config"}:
        raise ConfigError(f"unknown argument {', '.join(sorted(unknown))}: use config=FILE; see configs/ray.yaml")
    return application(load_settings(Path(arguments["config"]) if "config" in arguments else None))


# -- tts-worker serve --ray -------------------------------------------------------------------------------------------


def connect(replicas: RaySettings) -> None:
    """Join the cluster of the settings or start one on this machine. Disables Ray's usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's default niceness of 15 would delay the audio frames that replicas send every 20 ms.
    os.environ.setdefault("RAY_worker_niceness", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING", "ignore_reinit_error": True}
    if replicas.address is None:
        _bind_node_to_loopback()
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": 100 << 20}
        needed = replicas.max_replicas * replicas.cpus_per_replica
        options["num_cpus"] = max(os.cpu_count() or 1, int(-(-needed // 1)))
    else:
        options["address"] = replicas.address
    try:
        ray.init(**options)
    except ConnectionError:
        raise ConfigError(f"ray.address: no Ray cluster answers at {replicas.address}") from None


def _bind_node_to_loopback() -> None:
    """Make the processes of a new node listen on loopback only. Call it before Ray starts.

    On Linux, Ray listens on every interface, because other nodes may join. Its single-node mode, meant for macOS and
    Windows, uses the node address 127.0.0.1 and binds its servers to it. The environment variable configures the
    processes that Ray starts; this process has read it already, so its attribute is set too.
    """
    from ray._private import ray_constants

    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _bind_replica_to_loopback() -> None:
    """Bind the gRPC port of a replica to loopback.

    Ray binds this port to every interface in any mode, and it unpickles requests without authentication. Ray opens it
    after the replica's constructor. The patched function is private to Ray, so its presence is checked.
    """
    replica: Any = importlib.import_module("ray.serve._private.replica")
    bind = getattr(replica, "add_port_to_grpc_server", None)
    if bind is None:
        log.warning("this version of Ray may listen on all interfaces: cannot bind a replica's gRPC port to loopback")
        return

    def bind_to_loopback(server: object, address: str) -> int:
        return int(bind(server, address.replace("[::]", "127.0.0.1")))

    replica.add_port_to_grpc_server = bind_to_loopback


def deploy(settings: Settings) -> str:
    """Run the application, or update a running one: new sessions go to new replicas, old ones stay where they are.

    Returns:
        The address, once the replicas are ready.

    Raises:
        ConfigError: The replicas failed to start.
    """
    server = settings.server
    serve.start(http_options={"host": server.host, "port": server.port})
    try:
        serve.run(application(settings), name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        log.error("the deployment failed: %s", error)
        raise ConfigError("the replicas failed to start; see their logs") from None
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def serve_on_ray(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Deploy and run until SIGINT or SIGTERM, then drain.

    Args:
        settings: Settings of the deployment and its workers.
        on_ready: Called with the address once the replicas are ready.

    Raises:
        ConfigError: The cluster is unreachable or the replicas failed to start.
    """
    if settings.server.port == 0:
        raise ConfigError("server.port: Ray's proxy needs a fixed port, such as 8080")
    stop_requested = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stop_requested.set()

    connect(settings.section(RaySettings))
    for number in (signal.SIGINT, signal.SIGTERM):  # replaces the handlers that Ray installed
        signal.signal(number, stop)
    try:
        on_ready(deploy(settings))
        stop_requested.wait()
        log.info("draining: running utterances have %.0f s to end", settings.server.drain_s)
        # Deletes the application before the proxy, which still carries the audio of its replicas.
        serve.delete(APPLICATION)
    finally:
        if settings.section(RaySettings).address is None:  # other applications may use an existing cluster
            serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
