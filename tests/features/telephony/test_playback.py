"""Positions of a call from its marks: never more than was played, and after a pause exactly the rest again."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.features.telephony.playback import MARK_TIMEOUT_S, CallPlayback
from tts_worker.types import ChunkMeta, PcmFrame, UtteranceKey

RATE = 1_000
FRAME = 20
KEY = UtteranceKey("s", 1)


def frame_at(index: int) -> PcmFrame:
    return PcmFrame(KEY, index, index * FRAME, bytes(FRAME), ChunkMeta(0, 0, 0, 0, 0.0), FRAME)


class Network:
    """A call behind a network: messages of both directions arrive when the script says so."""

    def __init__(self) -> None:
        self.playback = CallPlayback(RATE)
        self.up: deque[tuple[str, int]] = deque()
        self.down: deque[str] = deque()
        self.buffer: deque[tuple[str, int]] = deque()
        self.heard: list[int] = []
        self.confirmed = 0
        self.sent = 0
        self.now_s = 0.0
        self.marks = 0

    def send(self, frame: PcmFrame) -> None:
        self.marks += 1
        self.playback.send(frame, self.marks, self.now_s)
        self.up.append(("frame", frame.index))
        self.up.append(("mark", self.marks))

    def do(self, action: tuple[str, int]) -> None:
        name, count = action
        for _ in range(count):
            getattr(self, f"_{name}")()

    def _speak(self) -> None:
        if not self.playback.is_held:
            self.send(frame_at(self.sent))
            self.sent += 1

    def _arrive(self) -> None:
        if self.up:
            kind, value = self.up.popleft()
            if kind == "clear":
                self.down.extend(str(mark) for held, mark in self.buffer if held == "mark")
                self.buffer.clear()
            else:
                self.buffer.append((kind, value))

    def _play(self) -> None:
        while self.buffer and self.buffer[0][0] == "mark":
            self.down.append(str(self.buffer.popleft()[1]))
        if self.buffer:
            self.heard.append(self.buffer.popleft()[1])
            self.now_s += FRAME / RATE

    def _return(self) -> None:
        if self.down and (frame := self.playback.confirm(self.down.popleft())) is not None:
            self.confirmed = frame.index + 1
            assert self.confirmed <= max(self.heard, default=-1) + 1, "confirmed more than was heard"

    def _pause(self) -> None:
        if not self.playback.is_held and self.playback.hold():
            self.up.append(("clear", 0))

    def _resume(self) -> None:
        if self.playback.is_held:
            frames = self.playback.release()
            assert [frame.index for frame in frames] == list(range(self.confirmed, self.sent)), "not the rest"
            for frame in frames:
                self.send(frame)


actions = st.tuples(st.sampled_from(["speak", "arrive", "play", "return", "pause", "resume"]), st.integers(1, 4))


@settings(max_examples=100)
@given(st.lists(actions, max_size=60))
def test_positions_never_exceed_what_was_heard(script: list[tuple[str, int]]) -> None:
    network = Network()
    for action in script:
        network.do(action)
    network.do(("resume", 1))
    for name in ("arrive", "play", "play", "return"):
        network.do((name, 500))
    assert network.confirmed == network.sent
    assert network.playback.unplayed_samples == 0
    # Everything is heard in order; a pause repeats only what was not confirmed yet.
    heard = 0
    for index in network.heard:
        assert index <= heard, "a frame is missing"
        heard = max(heard, index + 1)
    assert heard == network.sent


def test_mark_of_a_cleared_frame_confirms_nothing() -> None:
    playback = CallPlayback(RATE)
    for index in range(3):
        playback.send(frame_at(index), 1 + index, 0.0)
    assert playback.confirm("1") == frame_at(0)
    assert playback.drop()
    assert [playback.confirm(mark) for mark in "123"] == [None] * 3
    assert not playback.drop(), "nothing is left to clear"


def test_foreign_marks_are_ignored() -> None:
    playback = CallPlayback(RATE)
    playback.send(frame_at(0), 1, 0.0)
    assert [playback.confirm(name) for name in ("", "x", "-1", "2", "9" * 5_000, "\u0661")] == [None] * 6
    assert playback.confirm("1") == frame_at(0)


def test_clock_confirms_when_marks_do_not_come() -> None:
    playback = CallPlayback(RATE)
    for index in range(3):
        playback.send(frame_at(index), 1 + index, 0.0)
    assert playback.overdue_at_s == FRAME / RATE + MARK_TIMEOUT_S
    assert playback.confirm_overdue(MARK_TIMEOUT_S) is None
    assert playback.confirm_overdue(FRAME / RATE + MARK_TIMEOUT_S) == frame_at(2)
    playback.send(frame_at(3), 4, 10.0)
    assert playback.overdue_at_s == 10.0 + FRAME / RATE, "later frames follow the clock"
    assert playback.confirm("4") == frame_at(3)
    assert playback.has_marks
