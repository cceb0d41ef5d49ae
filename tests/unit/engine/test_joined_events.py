"""Events of several steps leave together only where no listener waits for them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.engine.shell import AHEAD_SAMPLES
from tts_worker.engine.tone import ToneEngine, ToneSettings
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Boundary,
    Cancel,
    Credit,
    Event,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

CHUNK = SAMPLE_RATE_HZ // 10
WINDOW = 15 * CHUNK
TEXT = "sing" * 200
MAX_HELD_S = 0.02


class _Listener:
    def __init__(self, index: int) -> None:
        self.key = UtteranceKey("s", index)
        self.granted = WINDOW
        self.received = 0
        self.taken = 0


class _Driver:
    """Steps an engine whose clock advances by ``step_s`` per step, and checks what leaves."""

    def __init__(self, listeners: int, step_s: float) -> None:
        self.engine = ToneEngine(ToneSettings(chunk_samples=CHUNK))
        self.listeners = {_key(index): _Listener(index) for index in range(listeners)}
        self.returns = 0
        self._step_s = step_s
        self._now_s = 0.0
        for key in self.listeners:
            self.engine.handle(Open(key, SynthesisParams("tone"), WINDOW))
            segment = Segment(0, (Span(TEXT, 0, len(TEXT)),), 0, len(TEXT), Boundary.FORCED)
            self.engine.handle(Text(key, segment))

    def grant(self, key: UtteranceKey, samples: int) -> None:
        self.listeners[key].taken += samples
        self.listeners[key].granted += samples
        self.engine.handle(Credit(key, samples))

    def step(self) -> list[Event]:
        self._now_s += self._step_s
        events = list(self.engine.step(self._now_s))
        self.returns += bool(events)
        for event in events:
            assert isinstance(event, Audio)
            listener = self.listeners[event.key]
            assert event.meta.start_sample == listener.received
            listener.received += event.samples
        return events

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
        assert all(listener.received == listener.granted for listener in self.listeners.values())


def _key(index: int) -> UtteranceKey:
    return UtteranceKey("s", index)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=8), st.floats(0.0001, 0.03))
def test_only_chunks_well_ahead_wait_and_not_for_long(credits: list[tuple[int, int]], step_s: float) -> None:
    driver = _Driver(3, step_s)
    driver.run()
    for index, chunks in credits:
        driver.grant(_key(index), chunks * CHUNK)
    silent_s = 0.0
    while driver.engine.has_work:
        waiting = {key for key, each in driver.listeners.items() if each.received - each.taken < AHEAD_SAMPLES - CHUNK}
        rendered = {key: sequence.output.rendered_samples for key, sequence in driver.engine.sequences.items()}
        events = driver.step()
        silent_s = 0.0 if events else silent_s + step_s
        assert silent_s <= MAX_HELD_S + step_s
        for key in waiting:
            if driver.engine.sequences[key].output.rendered_samples > rendered[key]:
                assert key in {event.key for event in events}
    driver.run()


def test_events_of_several_listeners_leave_together() -> None:
    driver = _Driver(8, 0.0005)
    driver.run()
    before = driver.returns
    for key in driver.listeners:
        driver.grant(key, 3 * CHUNK)
    driver.run()
    assert driver.returns - before == 1


def test_cancel_drops_the_waiting_chunks() -> None:
    driver = _Driver(2, 0.0005)
    driver.run()
    for key in driver.listeners:
        driver.grant(key, 3 * CHUNK)
    assert driver.step() == []
    for key in driver.listeners:
        driver.engine.handle(Cancel(key))
    while driver.engine.has_work:
        assert driver.step() == []
