"""What a behaviour is, and the table that holds them. Nothing here knows a transport.

``@behaviour()`` puts a coroutine over a ``Room`` into the table; its arguments say what worker it needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.behaviour.ear import Ear
from tests.behaviour.ways import PATIENT, Setup
from tts_worker.client import Client, ClientSettings, SessionOptions
from tts_worker.engine.tone import ToneSettings

TEXT = "Hello there, my friend. How are you today?"
LONG = "This is a rather long story, and it goes on and on. " * 8
FAST = SessionOptions(realtime=False)
CHAR_SAMPLES = 60 * 24  # of the tone engine


@dataclass
class Room:
    """One worker and its client, and what the way to it can do."""

    client: Client
    exact: bool
    slow: bool = False
    crowd: int = 50

    async def open(self, options: SessionOptions = FAST) -> Ear:
        return Ear((await self.client.open(options)).session, exact=self.exact)

    async def refused(self, options: SessionOptions) -> BaseException:
        with pytest.raises(Exception) as refusal:  # noqa: PT011  (the caller looks at the type)
            await self.client.open(options)
        return refusal.value

    def same(self, heard: bytes, expected: bytes) -> None:
        """The same sound, as exactly as the way carries it."""
        if self.exact:
            assert heard == expected
        else:
            assert len(heard) == pytest.approx(len(expected), abs=2 * 24 * 60)


Behave = Callable[[Room], Awaitable[None]]


@dataclass(frozen=True)
class Behaviour:
    """``needs``: what a way must be able to say for it, beyond text, sound, words, PAUSE, RESUME, STOP and an end."""

    behave: Behave
    setup: Setup
    needs: frozenset[str]


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(
    *needs: str, client: ClientSettings | None = None, engine: ToneSettings | None = None, **sections: Any
) -> Callable[[Behave], Behave]:
    def register(function: Behave) -> Behave:
        setup = Setup(sections, engine, client or PATIENT)
        BEHAVIOURS[function.__name__] = Behaviour(function, setup, frozenset(needs))
        return function

    return register


def loud(pcm: bytes) -> bool:
    """Whether there is sound in it."""
    return bool(np.abs(np.frombuffer(pcm, "<i2")).max(initial=0) > 500)
