"""Tone engines with faults, described by data, so that they can be built in another process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from tts_worker.engine.tone import Fault, ToneEngine, ToneSettings
from tts_worker.errors import DeviceLost, EngineFault, MissingExtra
from tts_worker.types import Command, Open, UtteranceKey


@dataclass(frozen=True)
class FaultAt:
    """A fault of some utterances.

    Attributes:
        fault: The kind of fault.
        chunk: First chunk that fails.
        session: The session that fails; None for every session.
        generation: The utterance that fails within its session; None for every utterance.
    """

    fault: Fault
    chunk: int = 0
    session: str | None = None
    generation: int | None = None

    def __call__(self, key: UtteranceKey, chunk: int) -> Fault | None:
        concerns = self.session in (None, key.session) and self.generation in (None, key.generation)
        return self.fault if concerns and chunk >= self.chunk else None


class StartFault(Enum):
    """What happens when an engine is warmed up."""

    RAISE = "raise"  # an error with a type
    ERROR = "error"  # one without
    DEVICE_LOST = "device_lost"
    EXIT = "exit"
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True)
class ToneFactory:
    """Builds tone engines.

    Attributes:
        fault: Faults of the engine.
        start: Fault of the warm-up.
        count: File that gets a byte per engine built.
        faulty: Numbers, from 1, of the engines with these faults; None for all. Needs ``count``.
        max_utterances: Utterances served at a time.
    """

    fault: FaultAt | None = None
    start: StartFault | None = None
    count: Path | None = None
    faulty: tuple[int, ...] | None = None
    max_utterances: int = 256

    def __call__(self) -> ToneEngine:
        number = 0
        if self.count is not None:
            with self.count.open("ab") as file:
                file.write(b".")
            number = self.count.stat().st_size
        is_faulty = self.faulty is None or number in self.faulty
        settings = ToneSettings(max_utterances=self.max_utterances)
        if self.fault is not None and is_faulty:
            settings = ToneSettings(max_utterances=self.max_utterances, fault=self.fault)
        return _StartingEngine(settings, self.start if is_faulty else None)


@dataclass(frozen=True)
class BreakingFactory:
    """Builds an engine that breaks with its first utterance; ``others``, which count, build the later ones."""

    others: ToneFactory

    def __call__(self) -> ToneEngine:
        engine = self.others()
        assert self.others.count is not None
        return ToneFactory(FaultAt(Fault.RAISE))() if self.others.count.stat().st_size == 1 else engine


def build_without_extra() -> ToneEngine:
    raise MissingExtra("the CosyVoice engine", "cosyvoice")


class _StartingEngine(ToneEngine):
    def __init__(self, settings: ToneSettings, start: StartFault | None) -> None:
        super().__init__(settings)
        self._start = start

    def warm_up(self) -> None:
        if self._start is not None:
            _START_FAULTS[self._start]()
        super().warm_up()


def _fail() -> None:
    raise EngineFault("the output is silent")


def _error() -> None:
    raise RuntimeError("device-side assert triggered")


def _lose_device() -> None:
    raise DeviceLost("an illegal memory access was encountered")


def _exit() -> None:
    raise SystemExit(3)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> None:
    threading.Event().wait()


_START_FAULTS: dict[StartFault, Callable[[], None]] = {
    StartFault.RAISE: _fail,
    StartFault.ERROR: _error,
    StartFault.DEVICE_LOST: _lose_device,
    StartFault.EXIT: _exit,
    StartFault.CRASH: _crash,
    StartFault.HANG: _hang,
}


class TalkingEngine(ToneEngine):
    """Writes to standard output, as libraries do, and to the log."""

    LOGGER = "tts_worker.engine.talking"

    def handle(self, command: Command) -> None:
        print("a line of a library", flush=True)
        if isinstance(command, Open):
            logging.getLogger(self.LOGGER).warning("utterance %s", command.key.generation)
            logging.getLogger(self.LOGGER).debug("details")
        super().handle(command)


class IntervalEngine(ToneEngine):
    """Logs the interval after which threads of its process release the interpreter lock."""

    LOGGER = "tts_worker.engine.interval"

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            logging.getLogger(self.LOGGER).warning("%s", sys.getswitchinterval())
        super().handle(command)


@dataclass
class Pitches:
    """Shared state: additional names of voices."""

    names: dict[str, str] = field(default_factory=dict)
    callback: Callable[[object], None] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"names": dict(self.names), "callback": None}

    def on_change(self, callback: Callable[[object], None] | None) -> None:
        self.callback = callback

    def apply(self, change: object) -> None:
        assert isinstance(change, tuple)
        self.names.update([change])
        if self.callback is not None:
            self.callback(change)


class PitchedEngine(ToneEngine):
    def __init__(self, pitches: Pitches) -> None:
        super().__init__()
        self._pitches = pitches

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            name = command.params.voice
            voice = self._pitches.names.get(name, name)
            command = replace(command, params=replace(command.params, voice=voice))
        super().handle(command)


@dataclass(frozen=True)
class PitchedFactory:
    pitches: Pitches

    def __call__(self) -> ToneEngine:
        return PitchedEngine(self.pitches)
