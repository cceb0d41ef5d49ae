"""The interface of a running engine for sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tts_worker.metrics import EngineCounts
from tts_worker.types import Command, EngineInfo, Event


class CommandPort(Protocol):
    """Carries the commands of sessions to an engine and its events back."""

    def post(self, command: Command) -> None: ...
    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None: ...
    def unsubscribe(self, session: str) -> None: ...


class EnginePort(CommandPort, Protocol):
    """A running engine and its state (``engine.loop.EngineLoop``)."""

    @property
    def ready(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def stats(self) -> EngineCounts: ...
