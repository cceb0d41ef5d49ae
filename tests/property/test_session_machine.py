"""Invariants of the session machine under random interleavings of commands, engine events and polls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.engine import ManualEngine, pcm_of
from tests.fakes.text import WordText
from tts_worker.errors import ErrorCode, ErrorInfo, SessionClosed, TTSWorkerError
from tts_worker.session.machine import MachineConfig, SessionMachine
from tts_worker.types import (
    Acknowledged,
    Audio,
    ChunkMeta,
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

CONFIG = MachineConfig(
    window_samples=900,
    credit_quantum_samples=200,
    frame_samples=160,
    max_text_chars=400,
    max_queued_utterances=3,
    read_chars=7,
)

texts = st.text(alphabet="ab c", max_size=12)
actions = st.one_of(
    st.tuples(st.just("speak"), texts),
    st.tuples(st.just("end")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("flush_words")),
    st.tuples(st.just("read")),
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("stop"), st.none() | st.integers(0, 2_000)),
    st.tuples(st.just("emit"), st.integers(0, 3), st.integers(1, 700)),
    st.tuples(st.just("emit"), st.integers(0, 3), st.integers(1, 700)),
    st.tuples(st.just("fail"), st.integers(0, 3)),
    st.tuples(st.just("stale"), st.integers(1, 5)),
    st.tuples(st.just("poll"), st.integers(1, 8)),
    st.tuples(st.just("poll"), st.integers(1, 8)),
    st.tuples(st.just("played"), st.integers(0, 700)),
)
late_positions = st.tuples(st.sampled_from(["played"] * 4 + ["stop"]), st.integers(0, 2_000), st.integers(0, 6))
"""A command that reports a position in the utterance of a generation."""


@dataclass
class Received:
    """What the client received of one utterance."""

    pcm: bytes = b""
    frames: int = 0
    words: list[int] = field(default_factory=list)
    ended: Ended | None = None


class Driver:
    """Drives both sides of a machine and checks the invariants after every step."""

    def __init__(self, config: MachineConfig = CONFIG) -> None:
        self.config = config
        self.machine = SessionMachine("s", SynthesisParams("v"), lambda params: WordText(), config)
        self.engine = ManualEngine()
        self.text_in: dict[UtteranceKey, str] = {}
        self.received: dict[UtteranceKey, Received] = {}
        self.retired: set[UtteranceKey] = set()
        self.failed: set[UtteranceKey] = set()
        self.acknowledged: deque[Acknowledged] = deque()  # results of commands, not emitted yet
        self.pauses = 0

    def do(self, action: tuple) -> None:
        before = self.machine.state
        try:
            self._apply(action)
        except TTSWorkerError:
            assert self.machine.state is before, "an illegal command changed the state"
        self.engine.take(self.machine.take_commands())

    def _apply(self, action: tuple) -> None:
        match action:
            case ("speak", text):
                key = self.machine.speak(text)
                self.text_in[key] = self.text_in.get(key, "") + text
                self.received.setdefault(key, Received())
                self.machine.read_more()
            case ("end",):
                self.machine.end_text()
                self.machine.read_more()
            case ("flush",):
                self.machine.flush()
                self.machine.read_more()
            case ("flush_words",):
                self.machine.flush_words()
            case ("read",):
                self.machine.read_more()
            case ("pause",):
                self.acknowledged.append(self.machine.pause())
                assert self.machine.state in (State.PAUSED, State.IDLE)
            case ("resume",):
                self.acknowledged.append(self.machine.resume())
                assert self.machine.state in (State.SPEAKING, State.IDLE)
            case ("stop", *position):
                self.retire()
                self.acknowledged.append(self.machine.stop("test", *position))
                assert self.machine.state is State.IDLE
            case _:
                self._apply_engine_or_client(action)

    def _apply_engine_or_client(self, action: tuple) -> None:
        match action:
            case ("emit", index, samples):
                self.emit(index, samples)
            case ("fail", index):
                self.fail(index)
            case ("stale", generation):
                self.stale(generation)
            case ("played", *position):
                self.machine.played(*position)
            case ("poll", count):
                for _ in range(count):
                    self.poll()
            case _:
                raise AssertionError(action)

    def retire(self) -> None:
        self.retired |= {utterance.key for utterance in self.machine._utterances}

    def emit(self, index: int, samples: int) -> None:
        live = self.engine.live()
        if live:
            event = self.engine.emit(live[index % len(live)], samples)
            if event is not None:
                self.machine.on_engine(event)

    def fail(self, index: int) -> None:
        live = [k for k in self.engine.live() if not self.engine.utterances[k].is_held]
        if live:
            key = live[index % len(live)]
            self.engine.utterances[key].is_done = True
            self.failed.add(key)
            self.machine.on_engine(Failed(key, ErrorInfo(ErrorCode.SYNTHESIS_FAILED, "no", True)))

    def stale(self, generation: int) -> None:
        """Deliver audio of a retired utterance, as an engine does before it processes the Cancel."""
        key = UtteranceKey("s", generation)
        if key in self.retired:
            self.machine.on_engine(Audio(key, b"\x01\x02" * 50, ChunkMeta(0, 0, 0, 0, 0.0)))

    def poll(self) -> bool:
        paused = self.machine.state is State.PAUSED
        item = self.machine.poll()
        if item is None:
            return False
        if isinstance(item, Acknowledged):
            assert item is self.acknowledged.popleft(), "the result of a command is emitted, in order"
            assert [self.received[ended.key].ended for ended in item.ended] == list(item.ended), "after its reports"
            assert not item.ended or (item.applied and item.key == item.ended[0].key)
            return True
        received = self.received[item.key]
        if isinstance(item, PcmFrame):
            assert not paused, "a frame was sent while paused"
            assert item.key not in self.retired, "a frame of a retired utterance was sent"
            assert received.ended is None, "a frame after the end"
            assert item.index == received.frames
            assert item.start_sample == len(received.pcm) // 2, "missing or repeated samples"
            assert 0 < item.samples <= (self.config.frame_samples or 10**9)
            for timing in self.engine.utterances[item.key].words:
                if timing.start_sample < item.start_sample + item.samples:
                    assert timing.start_sample in received.words, "a word later than its audio"
            received.frames += 1
            received.pcm += item.pcm
        elif isinstance(item, Words):
            assert item.key not in self.retired
            for word in item.words:
                assert word.text == self.text_in[item.key][word.start_char : word.end_char]
                assert not received.words or word.start_sample >= received.words[-1]
                received.words.append(word.start_sample)
        elif isinstance(item, Ended):
            assert received.ended is None, "two terminal events"
            received.ended = item
            self.check_receipt(item, received)
        else:
            assert isinstance(item, Started)
        return True

    def check_receipt(self, item: Ended, received: Received) -> None:
        receipt = item.receipt
        assert receipt.text_spoken + receipt.text_remaining == self.text_in[item.key]
        assert receipt.samples_sent == len(received.pcm) // 2
        assert receipt.samples_sent <= receipt.samples_generated
        assert receipt.samples_played is None or receipt.samples_played <= receipt.samples_sent
        assert all(w.end_char <= len(receipt.text_spoken) for w in receipt.words)
        if item.outcome is Outcome.DONE:
            generated = self.engine.utterances[item.key].generated if item.key in self.engine.utterances else 0
            assert receipt.samples_sent == generated, "ended before all audio was sent"
            assert receipt.text_remaining == ""
            if self.config.reports_playback:
                assert receipt.samples_played == receipt.samples_sent, "ended before all audio was played"
        if item.outcome is Outcome.ERROR:
            assert item.key in self.failed
            assert item.error is not None
        assert item.outcome is not Outcome.STOPPED or item.key in self.retired
        assert self.machine.current != item.key

    def drain(self) -> None:
        """Run until all utterances have ended."""
        if self.machine.state is State.PAUSED:
            self.do(("resume",))
        if self.machine.writing is not None:
            self.do(("end",))
        for _ in range(10_000):
            progress = self.machine.has_unread_text
            self.machine.read_more()
            progress |= self.poll()
            self.machine.played(self.machine.sent_samples)
            self.engine.take(self.machine.take_commands())
            for key in self.engine.live():
                event = self.engine.emit(key, 500)
                if event is not None:
                    self.machine.on_engine(event)
                    progress = True
            self.engine.take(self.machine.take_commands())
            if not progress:
                return
        raise AssertionError("the session did not drain")

    def check_credit(self) -> None:
        for key, state in self.engine.utterances.items():
            received = self.received[key]
            assert state.granted - state.emitted == state.credit
            if key not in self.failed:
                assert state.emitted - len(received.pcm) // 2 <= self.config.window_samples, "the window is exceeded"


@settings(deadline=None, max_examples=400)
@given(st.lists(actions, max_size=60), st.sampled_from([160, None]), st.booleans())
def test_invariants_hold_for_random_interleavings(
    script: list[tuple], frame_samples: int | None, reports_playback: bool
) -> None:
    changes = {"frame_samples": frame_samples, "reports_playback": reports_playback}
    driver = Driver(MachineConfig(**{**_fields(CONFIG), **changes}))
    for action in script:
        driver.do(action)
        driver.check_credit()
    driver.drain()
    driver.check_credit()
    assert driver.machine.state is State.IDLE
    assert not driver.engine.live(), "an utterance remains on the engine"
    for key, received in driver.received.items():
        assert received.ended is not None, f"{key} never ended"
        assert received.pcm == pcm_of(key, 0, len(received.pcm) // 2), "samples were changed, lost or repeated"


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(actions, st.none() | late_positions), max_size=40), st.booleans())
def test_positions_of_other_utterances_change_no_report(
    script: list[tuple[tuple, tuple[str, int, int] | None]], reports_playback: bool
) -> None:
    def run(*, are_reported: bool) -> dict[UtteranceKey, Received]:
        driver = Driver(MachineConfig(**{**_fields(CONFIG), "reports_playback": reports_playback}))
        for action, late in script:
            driver.do(action)
            if late is not None:
                command, samples, generation = late
                key = UtteranceKey("s", generation)
                if are_reported and key != driver.machine.current:
                    driver.do((command, samples, key))
                elif command == "stop":
                    driver.do(("stop", None))
        driver.drain()
        return driver.received

    assert run(are_reported=True) == run(are_reported=False)


@settings(deadline=None, max_examples=100)
@given(st.lists(actions, max_size=40))
def test_close_ends_all_utterances_and_frees_the_engine(script: list[tuple]) -> None:
    driver = Driver()
    for action in script:
        driver.do(action)
    driver.retire()
    driver.machine.close()
    driver.machine.close()
    driver.engine.take(driver.machine.take_commands())
    while driver.poll():
        pass
    assert not driver.engine.live()
    assert all(received.ended is not None for received in driver.received.values())
    before = len(driver.engine.log)
    for call in (driver.machine.pause, driver.machine.resume, driver.machine.stop, driver.machine.end_text):
        with pytest.raises(SessionClosed):
            call()
    assert driver.machine.state is State.CLOSED
    assert len(driver.engine.log) == before
    assert not driver.machine.take_commands()


@settings(deadline=None, max_examples=150)
@given(
    st.text(alphabet="ab c", min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8),
)
def test_pauses_do_not_change_the_audio(text: str, pauses: list[tuple[int, int]]) -> None:
    def run(pauses: list[tuple[int, int]]) -> bytes:
        driver = Driver()
        key = driver.machine.speak(text)
        driver.text_in[key] = text
        driver.received[key] = Received()
        driver.machine.end_text()
        driver.machine.read_more()
        driver.engine.take(driver.machine.take_commands())
        for polls, steps in pauses:
            for _ in range(polls):
                driver.do(("emit", 0, 130))
                driver.do(("poll", 1))
            driver.do(("pause",))
            emitted = {k: p.emitted for k, p in driver.engine.utterances.items()}
            for _ in range(steps):
                driver.do(("emit", 0, 130))
                driver.do(("poll", 1))
            assert emitted == {k: p.emitted for k, p in driver.engine.utterances.items()}, "audio while paused"
            driver.do(("resume",))
        driver.drain()
        return driver.received[key].pcm

    assert run(pauses) == run([])


def _fields(config: MachineConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in MachineConfig.__dataclass_fields__}
