"""The life of a sequence: its phases and the operation that it needs in each."""

from __future__ import annotations

from itertools import product

import pytest

from tests.contract.engine_contract import PLENTY_SAMPLES
from tests.unit.streaming.engines import KEY, PROMPTED, engine, settings
from tts_worker.engine.cosyvoice.phases import SequencePhase
from tts_worker.engine.cosyvoice.sequence import CosyVoiceSequence
from tts_worker.engine.scheduler import Need
from tts_worker.types import Cancel, Credit, EndText, Open, Segment, Text

LEGAL = {
    (SequencePhase.WAITING_VOICE, SequencePhase.PREPARING),
    (SequencePhase.WAITING_VOICE, SequencePhase.SPEAKING),
    (SequencePhase.PREPARING, SequencePhase.SPEAKING),
    (SequencePhase.PREPARING, SequencePhase.WAITING_PAGES),
    (SequencePhase.SPEAKING, SequencePhase.WAITING_PAGES),
    (SequencePhase.WAITING_PAGES, SequencePhase.PREPARING),
    (SequencePhase.WAITING_PAGES, SequencePhase.SPEAKING),
    *((phase, SequencePhase.ENDED) for phase in SequencePhase if phase is not SequencePhase.ENDED),
}


@pytest.fixture(scope="module")
def sequence() -> CosyVoiceSequence:
    subject = engine("cosyvoice3")
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    return subject.sequences[KEY]


@pytest.mark.parametrize(("before", "after"), list(product(SequencePhase, SequencePhase)))
def test_illegal_phase_changes_raise_and_change_nothing(
    sequence: CosyVoiceSequence, before: SequencePhase, after: SequencePhase
) -> None:
    sequence.phase = before
    if (before, after) in LEGAL:
        sequence.enter(after)
        assert sequence.phase is after
    else:
        with pytest.raises(ValueError, match="cannot change"):
            sequence.enter(after)
        assert sequence.phase is before


def test_phases_and_needs_of_a_first_utterance() -> None:
    subject = engine("cosyvoice3", settings(smooth_start=False), script=lambda key, run: [*range(20), 6562])
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    sequence = subject.sequences[KEY]
    assert (sequence.phase, sequence.needs) == (SequencePhase.PREPARING, Need.NONE)
    subject.handle(Text(KEY, Segment.whole("Hello")))
    subject.handle(EndText(KEY))
    seen = [(sequence.phase, sequence.needs)]
    while not sequence.has_ended:
        subject.step(0.0)
        if seen[-1] != (sequence.phase, sequence.needs):
            seen.append((sequence.phase, sequence.needs))
    assert seen == [
        (SequencePhase.PREPARING, Need.PREPARE_VOICE),
        (SequencePhase.SPEAKING, Need.PREFILL),
        (SequencePhase.SPEAKING, Need.DECODE),
        (SequencePhase.SPEAKING, Need.RENDER),
        (SequencePhase.SPEAKING, Need.DECODE),
        (SequencePhase.SPEAKING, Need.RENDER),
        (SequencePhase.ENDED, Need.NONE),
    ]


def test_sequence_without_credit_needs_nothing() -> None:
    subject = engine("cosyvoice3")
    subject.handle(Open(KEY, PROMPTED, 0))
    subject.handle(Text(KEY, Segment.whole("Hello")))
    sequence = subject.sequences[KEY]
    assert (sequence.needs, sequence.joins) == (Need.NONE, Need.NONE)
    subject.handle(Credit(KEY, 480))
    assert sequence.needs is Need.PREPARE_VOICE
    subject.handle(Cancel(KEY))
    assert sequence.has_ended


def test_refused_sequence_waits_for_pages_and_proceeds() -> None:
    subject = engine("cosyvoice3", settings(pages=6), script=lambda key, run: [*range(100), 6562])
    waiting: list[CosyVoiceSequence] = []
    keys = [type(KEY)("s", n) for n in range(2)]
    for key in keys:
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, Segment.whole("Hello world and you, that it is of the world")))
        subject.handle(EndText(key))
    while subject.has_work:
        subject.step(0.0)
        waiting += [
            s for s in subject.sequences.values() if s.phase is SequencePhase.WAITING_PAGES and s not in waiting
        ]
    assert [sequence.key for sequence in waiting] == keys[1:]
    assert all(sequence.has_ended for sequence in waiting)
