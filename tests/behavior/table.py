"""The behavior table: ``@behavior(...)`` registers a coroutine that runs on every transport.

The coroutine takes a ``BehaviorContext``; the decorator's arguments say which worker and which transport features it
requires. This module is independent of the transports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.behavior.recording_client import RecordingClient
from tests.behavior.transports import LONG_TIMEOUTS, Setup
from tts_worker.client import Client, ClientSettings, SessionOptions
from tts_worker.engine.tone import ToneSettings

TEXT = "Hello there, my friend. How are you today?"
LONG = "This is a rather long story, and it goes on and on. " * 8
FAST = SessionOptions(realtime=False)
CHAR_SAMPLES = 60 * 24
"""Audio per character of the tone engine."""


@dataclass
class BehaviorContext:
    """A worker, a client connected to it, and the properties of the transport (see ``TransportCase``)."""

    client: Client
    is_lossless: bool
    is_slow: bool = False
    concurrent_sessions: int = 25

    async def open(self, options: SessionOptions = FAST) -> RecordingClient:
        return RecordingClient((await self.client.open(options)).session, is_lossless=self.is_lossless)

    async def open_error(self, options: SessionOptions) -> BaseException:
        """Open a session that must be rejected; return the error."""
        with pytest.raises(Exception) as caught:  # noqa: PT011  (the caller checks the type)
            await self.client.open(options)
        return caught.value

    def assert_same_audio(self, actual: bytes, expected: bytes) -> None:
        """Compare PCM exactly, or by duration on a lossy transport."""
        if self.is_lossless:
            assert actual == expected
        else:
            assert len(actual) == pytest.approx(len(expected), abs=2 * 24 * 60)


BehaviorFunction = Callable[[BehaviorContext], Awaitable[None]]


@dataclass(frozen=True)
class Behavior:
    """One row of the table.

    Attributes:
        run: The coroutine function.
        setup: The worker and client settings.
        requires: Transport features beyond text, audio, words, PAUSE, RESUME, STOP and a terminal event.
    """

    run: BehaviorFunction
    setup: Setup
    requires: frozenset[str]


BEHAVIORS: dict[str, Behavior] = {}


def behavior(
    *requires: str, client: ClientSettings | None = None, engine: ToneSettings | None = None, **sections: Any
) -> Callable[[BehaviorFunction], BehaviorFunction]:
    """Register a behavior.

    Args:
        requires: Transport features (see ``TransportCase.unsupported``).
        client: Client settings; ``LONG_TIMEOUTS`` by default.
        engine: A fault-injecting tone engine instead of the configured one.
        sections: Sections of the worker's settings.
    """

    def register(function: BehaviorFunction) -> BehaviorFunction:
        setup = Setup(sections, engine, client or LONG_TIMEOUTS)
        BEHAVIORS[function.__name__] = Behavior(function, setup, frozenset(requires))
        return function

    return register


def has_audio(pcm: bytes) -> bool:
    """Whether the PCM is more than silence."""
    return bool(np.abs(np.frombuffer(pcm, "<i2")).max(initial=0) > 500)
