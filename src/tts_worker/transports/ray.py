"""Many workers behind one address: the same application as replicas of Ray Serve.

    tts-worker serve --ray --config configs/ray.yaml
    serve run tts_worker.transports.ray:app config=configs/ray.yaml

Owns what a replica is (a whole worker, its engines loaded before it is asked anything), what Ray is told about it
(share of a GPU, how many, when more) and the life of a deployment. Scheduling, routing and the proxy are Ray's. A
replica's sessions live and die with it; no state is shared. It stands above ``app``: a replica is a whole process.
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

from tts_worker.app import Worker, create_application
from tts_worker.errors import ConfigError, MissingExtra, NotReady
from tts_worker.settings import RaySettings, Settings, is_loopback, load_settings

try:
    import ray
    from ray import serve
except ModuleNotFoundError as error:
    raise MissingExtra("serving on Ray", "ray") from error

if TYPE_CHECKING:
    from ray.serve import Application

log = logging.getLogger(__name__)

APPLICATION = "tts-worker"
_REFUSALS = 16
"""So many requests beyond its sessions reach a replica at the same time, which refuses at once what Ray would queue."""
_GIVE_UP_HANGING_S = 5.0
"""Beyond the drain: closing connections and engines."""


class Replica:
    """A worker in a process that Ray started. ``settings``: those of ``Settings``, as plain data."""

    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        if is_loopback(ray.util.get_node_ip_address()):  # type: ignore[no-untyped-call]
            _bind_replica_to_loopback()
        self._worker = self.worker_of(load_settings(flags=settings))
        logging.basicConfig(level=self._worker.settings.log_level.upper())
        await self._worker.start()
        self._was_ready = True

    @staticmethod
    def worker_of(settings: Settings) -> Worker:
        return Worker(settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:  # the name is Ray's
        return create_application(self._worker)

    async def check_health(self) -> None:
        """Ray asks every few seconds and replaces a replica that fails three times. An engine that broke is being
        rebuilt in the meantime, which ends no other engine's sessions, so one failure is not told."""
        ready = self._worker.hub.ready or self._worker.hub.draining
        if not ready and not self._was_ready:
            raise NotReady("no session can begin")
        self._was_ready = ready

    async def __del__(self) -> None:
        """Running requests have ended, or Ray waits no longer for them."""
        await self._worker.stop()


def application(settings: Settings, replica: type[Replica] = Replica) -> Application:
    """The deployment of ``settings``, not yet running."""
    replicas = settings.ray
    drain_s = settings.server.drain_s
    deployment = serve.deployment(
        name="worker",
        ray_actor_options={"num_cpus": replicas.cpus_per_replica, "num_gpus": replicas.gpus_per_replica},
        max_ongoing_requests=settings.session.open_limit + _REFUSALS,
        max_queued_requests=settings.session.open_limit + _REFUSALS,
        graceful_shutdown_timeout_s=drain_s + _GIVE_UP_HANGING_S,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config={"enable_access_log": False},
        **_scaling(replicas, settings.session.max_sessions),
    )(serve.ingress()(replica))
    bound: Application = deployment.bind(settings.model_dump())
    return bound


def _scaling(replicas: RaySettings, max_sessions: int) -> dict[str, Any]:
    """A connection or a download that runs is what Ray calls an ongoing request, and what we call a session."""
    if replicas.max_replicas == replicas.min_replicas:
        return {"num_replicas": replicas.min_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": replicas.target_sessions or 0.7 * max_sessions,
            "upscale_delay_s": replicas.upscale_delay_s,
            "downscale_delay_s": replicas.downscale_delay_s,
            "look_back_period_s": replicas.look_back_s,
        }
    }


def app(arguments: dict[str, str]) -> Application:
    """What ``serve run tts_worker.transports.ray:app config=FILE`` looks for. Raises ConfigError."""
    if unknown := set(arguments) - {"config"}:
        raise ConfigError(f"there is no argument {', '.join(sorted(unknown))}: only config=FILE; see configs/ray.yaml")
    return application(load_settings(Path(arguments["config"]) if "config" in arguments else None))


# -- without Ray's own command line -----------------------------------------------------------------------------------


def connect(replicas: RaySettings) -> None:
    """Join the cluster of the settings, or begin one on this machine. Nothing is reported to anybody."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray makes its processes the last to get a processor (15); what they say here is waited for every 20 ms.
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
        raise ConfigError(f"ray.address: there is no Ray cluster at {replicas.address}") from None


def _bind_node_to_loopback() -> None:
    """Make the processes of a node that is about to begin listen on loopback only.

    On Linux Ray listens on every interface, because other nodes may join. It has a mode without that, meant for macOS
    and Windows: the node's address is then 127.0.0.1, and Ray's servers bind to it. The variable is for the processes
    that Ray starts; this one has read it already.
    """
    from ray._private import ray_constants

    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _bind_replica_to_loopback() -> None:
    """Bind the one server that Ray binds to every interface in any mode: a replica's own gRPC port, which unpickles
    what it is sent and asks for no token. Ray starts it after the replica's constructor. Private to Ray, hence the
    check."""
    replica: Any = importlib.import_module("ray.serve._private.replica")
    bind = getattr(replica, "add_port_to_grpc_server", None)
    if bind is None:
        log.warning("this version of Ray may listen on all interfaces: a replica's gRPC port cannot be bound here")
        return

    def bind_to_loopback(server: object, address: str) -> int:
        return int(bind(server, address.replace("[::]", "127.0.0.1")))

    replica.add_port_to_grpc_server = bind_to_loopback


def deploy(settings: Settings) -> str:
    """Run the application, or update it where it runs: new sessions go to new replicas, old ones end where they are.
    Returns when it is ready; the address. Raises ConfigError if it does not come up."""
    server = settings.server
    serve.start(http_options={"host": server.host, "port": server.port})
    try:
        serve.run(application(settings), name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        log.error("the deployment failed: %s", error)
        raise ConfigError("the replicas did not come up; their log says why") from None
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def serve_on_ray(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Deploy and stay until SIGINT or SIGTERM, then let running turns end. ``on_ready`` gets the address.

    Raises ConfigError.
    """
    if settings.server.port == 0:
        raise ConfigError("server.port: Ray's proxy needs a port of its own, such as 8080")
    asked = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        asked.set()

    connect(settings.ray)
    for number in (signal.SIGINT, signal.SIGTERM):  # after Ray has set its own
        signal.signal(number, stop)
    try:
        on_ready(deploy(settings))
        asked.wait()
        log.info("draining: running turns may end within %.0f s", settings.server.drain_s)
        # The application first: the proxy goes on carrying what its replicas still have to say.
        serve.delete(APPLICATION)
    finally:
        if settings.ray.address is None:  # else others may use it
            serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
