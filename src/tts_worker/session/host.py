"""The interface of a worker for what runs on it: the adapter class, gRPC's model service, the local client."""

from __future__ import annotations

from typing import Protocol

from tts_worker.session.hub import SessionHub


class WorkerHost(Protocol):
    """Opens sessions and loads engines (``worker.Worker``)."""

    @property
    def hub(self) -> SessionHub: ...
    def is_loaded(self, name: str) -> bool: ...
    async def load(self, name: str) -> None: ...
    async def unload(self, name: str) -> None: ...
    async def reload(self, name: str) -> None: ...
