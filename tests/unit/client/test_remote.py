"""``RemoteSession`` against a worker's real session machine, over a wire that is as slow and as short as it likes."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.behaviour.recording_client import RecordingClient
from tests.fakes.engine import HandEngine
from tests.fakes.text import WordText
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, ErrorCode, IllegalCommand, SynthesisFailed
from tts_worker.session.machine import MachineConfig, SessionMachine, State
from tts_worker.types import (
    Acknowledged,
    ControlName,
    Ended,
    Failed,
    Outcome,
    PcmFrame,
    Started,
    SynthesisParams,
    UtteranceKey,
    Words,
)

PARAMS = SynthesisParams("voice")


@dataclass
class Wire:
    """Both directions, each delivered one message at a time. Is the ``Link`` of the client."""

    up: deque[tuple[Any, ...]] = field(default_factory=deque)
    down: deque[tuple[Any, ...]] = field(default_factory=deque)
    handed_back: list[bool] = field(default_factory=list)

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
        self.handed_back.append(healthy)


class FarWorker:
    """The other end: as ``transports.websocket`` treats a session, without the socket."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.engine = HandEngine()
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
        self.engine.take(machine.take_commands())

    def work(self, samples: int, *, fail: bool = False) -> None:
        live = self.engine.live()
        if live:
            key = live[0]
            event: Any = self.engine.emit(key, samples)
            if fail and not self.engine.utterances[key].done:
                self.engine.utterances[key].done = True
                event = Failed(key, SynthesisFailed("told to").info)
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


ACTS = st.sampled_from(
    ["speak"] * 3
    + ["end", "flush", "pause", "resume", "stop", "played", "fail"]
    + ["up", "work", "send", "down", "take", "flow", "flow"]
)


class Play:
    """One run: whatever happens, the ``RecordingClient`` checks what must hold while it listens."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.session = remote(self.wire)
        self.worker = FarWorker(self.wire)
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
        """One step of what goes on by itself."""
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
        assert not (paused and isinstance(item, PcmFrame)), "sound while paused"
        self.recorder.record(item)
        return True

    def settle(self) -> None:
        """Everything that is on its way arrives."""
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
@given(acts=st.lists(st.tuples(ACTS, st.integers(0, 9)), max_size=120))
def test_every_promise_holds_over_any_wire(acts: list[tuple[str, int]]) -> None:
    async def run() -> None:
        play = Play()
        for name, size in acts:
            play.act(name, size)
        if play.session.state is State.PAUSED:
            play.session.resume()
        if play.session.writing is not None:
            play.session.end_text()
        play.settle()
        assert play.session.state is State.IDLE
        play.session.close()
        assert play.wire.handed_back == [True], "the connection can be used again"
        play.check()

    asyncio.run(run())


@settings(deadline=None, max_examples=150)
@given(acts=st.lists(st.tuples(ACTS, st.integers(0, 9)), max_size=60))
def test_a_loss_at_any_moment_ends_everything_once(acts: list[tuple[str, int]]) -> None:
    async def run() -> None:
        play = Play()
        for name, size in acts:
            play.act(name, size)
        stopped = {
            utterance.key for utterance in play.session._by_context.values() if utterance.stop_reason is not None
        }
        paused = play.session.state is State.PAUSED
        heard = len(play.recorder.log)
        play.session.on_lost(ConnectionLost("cut").info)
        assert play.session.state is State.CLOSED
        before = set(play.recorder.ends)
        while play.take():
            pass
        play.check()
        assert not (paused and any(isinstance(item, PcmFrame) for item in play.recorder.log[heard:]))
        for key in set(play.recorder.ends) - before:
            ended = play.recorder.ends[key]
            if key in stopped:
                assert ended.outcome is Outcome.STOPPED, "what was stopped before did not fail"
            elif ended.error is not None and ended.error.code is ErrorCode.CONNECTION_LOST:
                assert ended.error.retryable

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(acts=st.lists(st.tuples(ACTS, st.integers(0, 9)), max_size=80))
def test_close_ends_everything_and_gives_the_connection_back_once_the_worker_has_answered(
    acts: list[tuple[str, int]],
) -> None:
    async def run() -> None:
        play = Play()
        for name, size in acts:
            play.act(name, size)
        play.session.close("over")
        while play.take():
            pass
        play.check()
        ends = len(play.recorder.ends)
        play.settle()
        assert len(play.recorder.ends) == ends
        assert play.wire.handed_back == [True]

    asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(pauses=st.lists(st.integers(1, 30), max_size=4), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_pauses_change_no_sample(pauses: list[int], sizes: list[int]) -> None:
    async def run(pauses: list[int]) -> bytes:
        play = Play()
        key = play.session.speak("one two three four five six seven ")
        play.texts[key] = "one two three four five six seven "
        play.session.end_text()
        for pause in pauses:
            for step in range(pause):
                for name in ("up", "work", "send", "down", "take"):
                    play.act(name, sizes[step % len(sizes)])
            if play.session.state is State.SPEAKING:
                play.session.pause()
                play.settle()
                play.session.resume()
        play.settle()
        play.check()
        return play.recorder.pcm[key]

    assert asyncio.run(run(pauses)) == asyncio.run(run([]))


async def test_a_worker_that_refuses_a_message_is_not_trusted_any_more() -> None:
    wire = Wire()
    session = remote(wire)
    recorder = RecordingClient(session)
    key = session.speak("too much")
    session.on_rejected(ConnectionLost("no").info)
    ended = await recorder.wait_ended(key)
    assert ended.outcome is Outcome.ERROR
    session.close()
    assert wire.handed_back == [False]


async def test_owed_sound_has_a_deadline_and_a_pause_owes_nothing() -> None:
    wire = Wire()
    session = remote(wire, audio_timeout_s=0.1)
    recorder = RecordingClient(session)
    key = session.speak("text")
    await asyncio.sleep(0.2)
    assert session.state is State.SPEAKING, "a writer that has not finished is owed nothing"
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
    assert wire.up[-1][0] == "stop", "the worker is told to give up"
    session.close()
    assert wire.handed_back == [False]
