"""``RemoteSession`` against a worker's real session machine, over a simulated wire with arbitrary delays."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.behaviour.recording_client import RecordingClient
from tests.fakes.engine import ManualEngine
from tests.fakes.text import WordText
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, ErrorCode, IllegalCommand, SynthesisFailed
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.types import (
    Acknowledged,
    ControlName,
    Ended,
    Failed,
    Outcome,
    PcmFrame,
    Started,
    State,
    SynthesisParams,
    UtteranceKey,
    Words,
)

PARAMS = SynthesisParams("voice")


@dataclass
class Wire:
    """Queues of both directions, delivered one message at a time; also the ``Link`` of the client."""

    up: deque[tuple[Any, ...]] = field(default_factory=deque)
    down: deque[tuple[Any, ...]] = field(default_factory=deque)
    released: list[bool] = field(default_factory=list)

    def text(self, context: str, text: str) -> None:
        self.up.append(("text", context, text))

    def flush(self) -> None:
        self.up.append(("flush",))

    def end_text(self, context: str) -> None:
        self.up.append(("end", context))

    def pause(self) -> None:
        self.up.append(("pause",))

    def resume(self) -> None:
        self.up.append(("resume",))

    def stop(self, reason: str, played_samples: int) -> None:
        self.up.append(("stop", reason, played_samples))

    def played(self, samples: int) -> None:
        self.up.append(("played", samples))

    def configure(self, params: SynthesisParams) -> None:
        self.up.append(("configure", params))

    def release(self, *, healthy: bool) -> None:
        self.released.append(healthy)


class SimulatedWorker:
    """Server side of a session, with the context rules of ``transports.websocket``, without a socket."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.engine = ManualEngine()
        config = MachineConfig(window_samples=1_000, credit_quantum_samples=200, frame_samples=100)
        self.machine = SessionMachine("far", PARAMS, lambda params: WordText(), config)
        self.contexts: dict[UtteranceKey, str] = {}
        self.context: str | None = None
        self.key: UtteranceKey | None = None
        self.stopped: str | None = None

    def retire(self) -> None:
        if self.context is not None:
            self.stopped = self.context
            self.context = None

    def receive(self) -> None:
        kind, *rest = self.wire.up.popleft()
        machine = self.machine
        if kind == "text":
            if rest[0] == self.context and machine.writing != self.key:
                self.retire()
            if rest[0] == self.stopped:
                return
            if self.context not in (None, rest[0]) and machine.writing == self.key:
                machine.end_text()
            self.key = machine.speak(rest[1])
            self.context = self.contexts[self.key] = rest[0]
        elif kind == "end":
            if rest[0] == self.context and machine.writing == self.key:
                machine.end_text()
                self.context = None
        elif kind == "stop":
            self.retire()
            machine.stop(rest[0], rest[1])
        elif kind == "played":
            machine.played(rest[0])
        elif kind == "configure":
            machine.configure(rest[0])
        else:
            {"flush": machine.flush, "pause": machine.pause, "resume": machine.resume}[kind]()
        while machine.has_unread_text:
            machine.read_more()
        self.engine.take(machine.take_commands())

    def work(self, samples: int, *, fail: bool = False) -> None:
        live = self.engine.live()
        if live:
            key = live[0]
            event: Any = self.engine.emit(key, samples)
            if fail and not self.engine.utterances[key].is_done:
                self.engine.utterances[key].is_done = True
                event = Failed(key, SynthesisFailed("requested by the test").info)
            if event is not None:
                self.machine.on_engine(event)
                self.engine.take(self.machine.take_commands())

    def send(self) -> bool:
        item = self.machine.poll()
        self.engine.take(self.machine.take_commands())
        if item is None:
            return False
        if isinstance(item, PcmFrame):
            self.wire.down.append(("audio", item.pcm))
        elif isinstance(item, Started):
            self.wire.down.append(("started", self.contexts[item.key]))
        elif isinstance(item, Words):
            self.wire.down.append(("words", item.words))
        elif isinstance(item, Acknowledged):
            if item.command is not ControlName.STOP:
                self.wire.down.append(("acknowledged", item.command))
        else:
            context = self.contexts.pop(item.key)
            if item.key == self.key:
                self.retire()
            self.wire.down.append(("ended", context, item))
        return True


def deliver(wire: Wire, session: RemoteSession) -> None:
    kind, *rest = wire.down.popleft()
    if kind == "audio":
        session.on_audio(rest[0])
    elif kind == "started":
        session.on_started(rest[0], PARAMS)
    elif kind == "words":
        session.on_words(rest[0])
    elif kind == "acknowledged":
        session.on_acknowledged(rest[0])
    else:
        ended: Ended = rest[1]
        session.on_ended(rest[0], ended.outcome, ended.receipt, ended.error)


def remote(wire: Wire, audio_timeout_s: float = 60.0) -> RemoteSession:
    return RemoteSession(wire, RemoteConfig("near", "", PARAMS, audio_timeout_s, read_ahead_s=1.0))


ACTIONS = st.sampled_from(
    ["speak"] * 3
    + ["end", "flush", "pause", "resume", "stop", "played", "fail"]
    + ["up", "work", "send", "down", "take", "flow", "flow"]
)


class Scenario:
    """One random run; ``RecordingClient`` checks the session invariants throughout."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.session = remote(self.wire)
        self.worker = SimulatedWorker(self.wire)
        self.recorder = RecordingClient(self.session)
        self.texts: dict[UtteranceKey, str] = {}
        self.paused = False

    def act(self, name: str, size: int) -> None:
        session = self.session
        if name == "speak":
            text = ["one ", "two three ", "x", "", "four, five. "][size % 5]
            key = session.speak(text)
            self.texts[key] = self.texts.get(key, "") + text
        elif name == "end":
            try:
                session.end_text()
            except IllegalCommand:
                assert session.writing is None
        elif name == "stop":
            session.stop("stop", None if size % 2 else size * 40)
        elif name == "played":
            session.played(size * 30)
        elif name == "fail":
            if size > 6:
                self.worker.work(100, fail=True)
        elif name in ("flush", "pause", "resume"):
            {"flush": session.flush, "pause": session.pause, "resume": session.resume}[name]()
        else:
            for _ in range(1 + size):
                self.move(name)

    def move(self, name: str) -> None:
        """Run one step of the wire, the worker or the reader."""
        if name == "up" and self.wire.up:
            self.worker.receive()
        elif name == "work":
            self.worker.work(137)
        elif name == "send":
            self.worker.send()
        elif name == "down" and self.wire.down:
            deliver(self.wire, self.session)
        elif name == "take":
            self.take()
        elif name == "flow":
            for step in ("up", "work", "send", "send", "down", "down", "take"):
                self.move(step)

    def take(self) -> bool:
        paused = self.session.state is State.PAUSED
        item = self.session.poll()
        if item is None:
            return False
        assert not (paused and isinstance(item, PcmFrame)), "audio while paused"
        self.recorder.record(item)
        return True

    def settle(self) -> None:
        """Deliver everything in flight."""
        quiet = 0
        while quiet < 3:
            before = (len(self.recorder.log), len(self.wire.up), self.worker.machine.sent_samples)
            while self.wire.up:
                self.worker.receive()
            self.worker.work(500)
            while self.worker.send():
                pass
            while self.wire.down:
                deliver(self.wire, self.session)
            while self.take():
                pass
            after = (len(self.recorder.log), len(self.wire.up), self.worker.machine.sent_samples)
            quiet = quiet + 1 if before == after else 0

    def check(self) -> None:
        assert set(self.recorder.ends) == set(self.texts), "exactly one terminal event each"
        for key, ended in self.recorder.ends.items():
            receipt = ended.receipt
            assert receipt.text_spoken + receipt.text_remaining == self.texts[key]
            if ended.outcome is Outcome.DONE:
                assert receipt.text_remaining == ""


@settings(deadline=None, max_examples=150)
@given(actions=st.lists(st.tuples(ACTIONS, st.integers(0, 9)), max_size=120))
def test_guarantees_hold_over_any_wire(actions: list[tuple[str, int]]) -> None:
    async def run() -> None:
        scenario = Scenario()
        for name, size in actions:
            scenario.act(name, size)
        if scenario.session.state is State.PAUSED:
            scenario.session.resume()
        if scenario.session.writing is not None:
            scenario.session.end_text()
        scenario.settle()
        assert scenario.session.state is State.IDLE
        scenario.session.close()
        assert scenario.wire.released == [True], "the connection is reusable"
        scenario.check()

    asyncio.run(run())


@settings(deadline=None, max_examples=150)
@given(actions=st.lists(st.tuples(ACTIONS, st.integers(0, 9)), max_size=60))
def test_loss_at_any_moment_ends_each_utterance_once(actions: list[tuple[str, int]]) -> None:
    async def run() -> None:
        scenario = Scenario()
        for name, size in actions:
            scenario.act(name, size)
        stopped = {
            utterance.key for utterance in scenario.session._by_context.values() if utterance.stop_reason is not None
        }
        paused = scenario.session.state is State.PAUSED
        logged = len(scenario.recorder.log)
        scenario.session.on_lost(ConnectionLost("cut").info)
        assert scenario.session.state is State.CLOSED
        before = set(scenario.recorder.ends)
        while scenario.take():
            pass
        scenario.check()
        assert not (paused and any(isinstance(item, PcmFrame) for item in scenario.recorder.log[logged:]))
        for key in set(scenario.recorder.ends) - before:
            ended = scenario.recorder.ends[key]
            if key in stopped:
                assert ended.outcome is Outcome.STOPPED, "a stopped utterance does not fail"
            elif ended.error is not None and ended.error.code is ErrorCode.CONNECTION_LOST:
                assert ended.error.retryable

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(actions=st.lists(st.tuples(ACTIONS, st.integers(0, 9)), max_size=80))
def test_close_releases_the_link_after_the_last_answer(
    actions: list[tuple[str, int]],
) -> None:
    async def run() -> None:
        scenario = Scenario()
        for name, size in actions:
            scenario.act(name, size)
        scenario.session.close("over")
        while scenario.take():
            pass
        scenario.check()
        end_count = len(scenario.recorder.ends)
        scenario.settle()
        assert len(scenario.recorder.ends) == end_count
        assert scenario.wire.released == [True]

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(pauses=st.lists(st.integers(1, 30), max_size=4), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_pauses_change_no_sample(pauses: list[int], sizes: list[int]) -> None:
    async def run(pauses: list[int]) -> bytes:
        scenario = Scenario()
        key = scenario.session.speak("one two three four five six seven ")
        scenario.texts[key] = "one two three four five six seven "
        scenario.session.end_text()
        for pause in pauses:
            for step in range(pause):
                for name in ("up", "work", "send", "down", "take"):
                    scenario.act(name, sizes[step % len(sizes)])
            if scenario.session.state is State.SPEAKING:
                scenario.session.pause()
                scenario.settle()
                scenario.session.resume()
        scenario.settle()
        scenario.check()
        return scenario.recorder.pcm[key]

    assert asyncio.run(run(pauses)) == asyncio.run(run([]))


async def test_rejection_marks_the_link_unhealthy() -> None:
    wire = Wire()
    session = remote(wire)
    recorder = RecordingClient(session)
    key = session.speak("too much")
    session.on_rejected(ConnectionLost("no").info)
    ended = await recorder.wait_ended(key)
    assert ended.outcome is Outcome.ERROR
    session.close()
    assert wire.released == [False]


async def test_missing_audio_expires_unless_paused() -> None:
    wire = Wire()
    session = remote(wire, audio_timeout_s=0.1)
    recorder = RecordingClient(session)
    key = session.speak("text")
    await asyncio.sleep(0.2)
    assert session.state is State.SPEAKING, "no audio is due before the text has ended"
    session.end_text()
    session.pause()
    await asyncio.sleep(0.2)
    assert session.state is State.PAUSED
    session.resume()
    session.on_acknowledged(ControlName.PAUSE)
    session.on_acknowledged(ControlName.RESUME)
    ended = await recorder.wait_ended(key)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert wire.up[-1][0] == "stop", "the worker is stopped"
    session.close()
    assert wire.released == [False]
