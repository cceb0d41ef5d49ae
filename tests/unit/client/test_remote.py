"""``RemoteSession`` against a worker's real session machine, over a simulated wire with arbitrary delays."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.behavior.recording_client import RecordingClient
from tests.fakes.clock import in_virtual_time
from tests.fakes.dialogue import PARAMS, DialogueWorker
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, ErrorCode, IllegalCommand
from tts_worker.protocol.json_codec import dumps, parse_client_message, parse_worker_message
from tts_worker.protocol.messages import (
    ClientMessage,
    PausedMessage,
    RejectedMessage,
    ResumedMessage,
    StartedMessage,
    StopMessage,
)
from tts_worker.types import (
    Acknowledged,
    Alignment,
    ControlName,
    Outcome,
    PcmFrame,
    State,
    UtteranceKey,
)


@dataclass
class Wire:
    """Encoded messages of both directions, delivered one at a time; also the ``Link`` of the client."""

    up: deque[str] = field(default_factory=deque)
    down: deque[str | bytes] = field(default_factory=deque)
    released: list[bool] = field(default_factory=list)

    def send(self, message: ClientMessage) -> None:
        self.up.append(dumps(message))

    def release(self, *, healthy: bool) -> None:
        self.released.append(healthy)


class SimulatedWorker(DialogueWorker):
    """The worker at the other end of a wire."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.wire = wire

    def deliver(self) -> None:
        """Receive the next message of the client."""
        self.receive(parse_client_message(self.wire.up.popleft()))

    def send(self) -> bool:
        item = self.poll()
        if item is not None:
            self.wire.down.append(item if isinstance(item, bytes) else dumps(item))
        return item is not None


def deliver(wire: Wire, session: RemoteSession) -> None:
    raw = wire.down.popleft()
    message = raw if isinstance(raw, bytes) else parse_worker_message(raw)
    assert message is not None
    session.receive(message)


def remote(wire: Wire, audio_timeout_s: float = 60.0) -> RemoteSession:
    return RemoteSession(wire, RemoteConfig("near", "", PARAMS, audio_timeout_s, read_ahead_s=1.0))


ACTIONS = st.sampled_from(
    ["speak"] * 3
    + ["end", "flush", "pause", "resume", "stop", "played", "late", "late_stop", "fail"]
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
        self.stops: deque[Acknowledged] = deque()  # not acknowledged yet
        self.reported: set[UtteranceKey] = set()  # utterances of which a position was reported while they played
        self.alignment: Alignment | None = None  # in the worker's report

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
        elif name in ("stop", "played", "late", "late_stop"):
            self.report_position(name, size)
        elif name == "fail":
            if size > 6:
                self.worker.work(100, fail=True)
        elif name in ("flush", "pause", "resume"):
            {"flush": session.flush, "pause": session.pause, "resume": session.resume}[name]()
        else:
            for _ in range(1 + size):
                self.move(name)

    def report_position(self, name: str, size: int) -> None:
        """Report how much the caller has played; if it is late, of any utterance."""
        session = self.session
        key = [None, *self.texts][-size % (1 + len(self.texts))] if name.startswith("late") else None
        samples = None if name == "stop" and size % 2 else size * 40
        if session._live and samples is not None and key in (None, session._live[0].key):
            self.reported.add(session._live[0].key)
        if name.endswith("stop"):
            self.stops.append(session.stop("stop", samples, key))
        else:
            session.played(samples or 0, key)

    def move(self, name: str) -> None:
        """Run one step of the wire, the worker or the reader."""
        if name == "up" and self.wire.up:
            self.worker.deliver()
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
        if isinstance(item, Acknowledged) and item.command is ControlName.STOP:
            assert item is self.stops.popleft(), "every STOP is acknowledged, in order"
            assert not item.applied or item.key in self.recorder.ends, "the report comes first"
        return True

    def receive_all(self, *, fails: bool, played_samples: int | None = None) -> None:
        """Receive all audio of an utterance and its report, which says that it ``fails``; take the first frame only.

        ``played_samples`` is reported before the report arrives, and too late for the worker.
        """
        while self.wire.up:
            self.worker.deliver()
        while self.worker.machine.state is not State.IDLE:
            self.worker.work(500)
            while self.worker.send():
                pass
        report = self.wire.down.pop()
        self.alignment = Alignment(json.loads(report)["alignment"])
        if fails:
            error = {"code": "synthesis_failed", "message": "failed", "retryable": True}
            report = json.dumps({**json.loads(report), **error, "type": "error", "reason": "synthesis_failed"})
        while self.wire.down:
            deliver(self.wire, self.session)
        while not any(self.recorder.pcm.values()):  # an error before the first audio would drop it
            self.take()
        if played_samples is not None:
            self.session.played(played_samples)
        self.wire.down.append(report)
        deliver(self.wire, self.session)

    def settle(self) -> None:
        """Deliver everything in flight."""
        quiet = 0
        while quiet < 3:
            before = (len(self.recorder.log), len(self.wire.up), self.worker.machine.sent_samples)
            while self.wire.up:
                self.worker.deliver()
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
        assert not self.stops, "every STOP is acknowledged"
        for key, ended in self.recorder.ends.items():
            receipt = ended.receipt
            assert receipt.text_spoken + receipt.text_remaining == self.texts[key]
            assert (receipt.samples_played is not None) == (key in self.reported)
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
        stopped = {utterance.key for utterance in scenario.session._by_context.values() if utterance.stop_reason}
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
@given(fails=st.booleans(), taken=st.lists(st.integers(1, 5), max_size=5))
def test_report_has_what_was_played_since_it_arrived(fails: bool, taken: list[int]) -> None:
    async def run() -> None:
        scenario = Scenario()
        key = scenario.session.speak("one two three four five six seven ")
        scenario.session.end_text()
        scenario.receive_all(fails=fails)
        position: int | None = None
        for frames in taken:
            for _ in range(frames):
                scenario.take()
            if key not in scenario.recorder.ends:
                position = len(scenario.recorder.pcm[key]) // 2
                scenario.session.played(position)
        while scenario.take():
            pass
        report = scenario.recorder.ends[key].receipt
        assert report.samples_played == position
        assert report.text_spoken + report.text_remaining == "one two three four five six seven "
        if fails and position is not None:
            assert all(2 * position >= word.start_sample + word.end_sample for word in report.words)
            assert report.text_spoken.split() == [word.text for word in report.words]

    asyncio.run(run())


async def test_failure_claims_no_more_than_was_played_before() -> None:
    scenario = Scenario()
    key = scenario.session.speak("one two three four five six seven ")
    scenario.session.end_text()
    scenario.receive_all(fails=True, played_samples=1)
    while scenario.take():
        pass
    report = scenario.recorder.ends[key].receipt
    assert (report.samples_played, report.text_spoken, report.words) == (1, "", ())


@pytest.mark.parametrize("ends", ["stop", "loss"])
async def test_alignment_is_that_of_the_worker_once_it_has_reported(ends: str) -> None:
    scenario = Scenario()
    key = scenario.session.speak("one two three four five six seven ")
    scenario.session.end_text()
    scenario.receive_all(fails=False)
    if ends == "stop":
        scenario.act("stop", 1)
    else:
        scenario.session.on_lost(ConnectionLost("cut").info)
    while scenario.take():
        pass
    report = scenario.recorder.ends[key].receipt
    assert report.alignment is scenario.alignment


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


async def test_position_that_the_worker_receives_late_is_ignored() -> None:
    scenario = Scenario()
    session, worker, wire = scenario.session, scenario.worker, scenario.wire
    for text in ("one ", "two three "):
        scenario.texts[session.speak(text)] = text
        session.end_text()
    while wire.up:
        worker.deliver()
    first, second = scenario.texts
    while worker.machine.current.generation < 2 or worker.machine.sent_samples < 300:
        worker.work(500)
        worker.send()
    while not scenario.recorder.pcm[first]:  # it plays here, and has ended there
        deliver(wire, session)
        scenario.take()
    session.played(100)
    worker.deliver()
    while wire.down:
        deliver(wire, session)
    while scenario.take():
        pass
    worker.machine.stop_all("pause_timeout")
    scenario.settle()
    report = scenario.recorder.ends[second].receipt
    assert (report.samples_sent, report.samples_played, report.text_spoken) == (300, None, "two")


async def test_position_for_an_older_worker_names_no_utterance() -> None:
    wire = Wire()
    session = remote(wire)
    session.speak("one ")
    session.receive(StartedMessage(voice="voice", context="1"))  # over gRPC it did not tell the number
    session.receive(bytes(200))
    session.played(50)
    session.stop()
    assert [json.loads(raw) for raw in list(wire.up)[1:]] == [
        {"type": "played", "samples": 50},
        {"type": "stop", "played_samples": 0, "reason": "stop"},
    ]


async def test_rejection_marks_the_link_unhealthy() -> None:
    wire = Wire()
    session = remote(wire)
    recorder = RecordingClient(session)
    key = session.speak("too much")
    session.receive(RejectedMessage.of(ConnectionLost("no").info))
    ended = await recorder.wait_ended(key)
    assert ended.outcome is Outcome.ERROR
    session.close()
    assert wire.released == [False]


@in_virtual_time
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
    session.receive(PausedMessage())
    session.receive(ResumedMessage())
    ended = await recorder.wait_ended(key)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert isinstance(parse_client_message(wire.up[-1]), StopMessage), "the worker is stopped"
    session.close()
    assert wire.released == [False]
