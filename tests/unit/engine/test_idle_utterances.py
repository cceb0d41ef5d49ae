"""The cost of a step does not depend on the utterances that wait for their clients."""

from __future__ import annotations

from tts_worker.engine.scheduler import Need, Plan
from tts_worker.engine.shell import EngineSequence, EngineShell
from tts_worker.types import (
    Alignment,
    Credit,
    EngineInfo,
    Event,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    UtteranceKey,
)

CREDIT_SAMPLES = 480


class _Sequence(EngineSequence):
    """Endless silence; counts how often it is looked at."""

    looks = 0
    looks_for_audio = 0

    def add_text(self, segment: Segment) -> None:
        raise AssertionError("the test sends no text")

    @property
    def needs(self) -> Need:
        self.looks += 1
        return Need.RENDER if self.output.credit_samples > self.output.waiting_samples else Need.NONE

    @property
    def has_pending_speech(self) -> bool:
        return True

    @property
    def is_complete(self) -> bool:
        self.looks_for_audio += 1
        return False


class _Engine(EngineShell[_Sequence]):
    SKIPS_IDLE_SEQUENCES = True
    emits_from_us = 0

    def __init__(self) -> None:
        super().__init__(
            EngineInfo("silence", voices=("v",), languages=("mul",), alignment=Alignment.NONE, max_utterances=100)
        )

    def defers(self, sequence: _Sequence, now_us: int) -> bool:
        return now_us < self.emits_from_us

    def open_sequence(self, command: Open) -> _Sequence:
        return _Sequence(command)

    def submit(self, plan: Plan) -> None:
        if plan.audio is not None:
            self.sequences[plan.audio.members[0]].output.render(bytes(2 * CREDIT_SAMPLES))


def _key(index: int) -> UtteranceKey:
    return UtteranceKey("s", index)


def _engine_without_credit(utterances: int) -> _Engine:
    engine = _Engine()
    for index in range(utterances):
        engine.handle(Open(_key(index), SynthesisParams("v"), CREDIT_SAMPLES))
    _run(engine)
    return engine


def _run(engine: _Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work:
        events += engine.step(0.0)
    return events


def test_steps_pass_over_utterances_without_credit() -> None:
    engine = _engine_without_credit(50)
    before = [engine.sequences[_key(index)].looks for index in range(50)]
    engine.handle(Credit(_key(7), CREDIT_SAMPLES))
    assert [event.key for event in _run(engine)] == [_key(7)]
    looked_at = [index for index in range(50) if engine.sequences[_key(index)].looks > before[index]]
    assert looked_at == [7]


def test_steps_look_for_audio_where_it_may_be() -> None:
    """Most of many calls wait for the network; that they have no audio to emit is known."""
    engine = _Engine()
    for index in range(50):
        engine.handle(Open(_key(index), SynthesisParams("v"), CREDIT_SAMPLES))
    engine.step(0.0)
    before = [engine.sequences[_key(index)].looks_for_audio for index in range(50)]
    (audio,) = engine.step(0.0)
    looked_at = [index for index in range(50) if engine.sequences[_key(index)].looks_for_audio > before[index]]
    assert looked_at == [audio.key.generation]


def test_audio_that_waits_is_emitted_later() -> None:
    engine = _Engine()
    engine.emits_from_us = 2_000_000
    engine.handle(Open(_key(0), SynthesisParams("v"), CREDIT_SAMPLES))
    assert [list(engine.step(now_s)) for now_s in (0.0, 1.0)] == [[], []]
    assert engine.has_work
    (audio,) = engine.step(2.0)
    assert audio.key == _key(0)


def test_credit_of_a_held_utterance_counts_at_release() -> None:
    engine = _engine_without_credit(2)
    engine.handle(Hold(_key(0)))
    engine.handle(Credit(_key(0), CREDIT_SAMPLES))
    assert not engine.has_work
    engine.handle(Release(_key(0)))
    assert [event.key for event in _run(engine)] == [_key(0)]
