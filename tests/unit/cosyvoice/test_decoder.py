"""Slots of the language model: what one sequence leaves behind does not reach the next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.streaming.engines import networks
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.streams import HostStream
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, DecodeRow

LONG: list[Item] = [(Kind.SOS, 0), *[(Kind.TEXT, 5)] * 10, (Kind.TASK, 0), *[(Kind.SPEECH, 7)] * 48]


def decoder(*, fixed_shapes: bool = True) -> Decoder:
    runner = EagerRunner(fixed_shapes=fixed_shapes)
    return Decoder(networks("cosyvoice3"), slots=2, max_tokens=512, stream=HostStream(), runner=runner)


def draw_two(subject: Decoder, slots: list[int], items: list[Item]) -> list[list[int]]:
    """Return the ids of a prefill and a burst in two slots."""
    eos = networks("cosyvoice3").config.lm.eos_id
    fed = [subject.start(slot, 1, items) for slot in slots]
    ids = subject.prefill([DecodeRow(slot, eos, 99, 100) for slot in slots], fed).wait().tolist()
    return ids + subject.burst([DecodeRow(slot, eos, 99, 100) for slot in slots], 4).wait().tolist()


def acquire_again(subject: Decoder, slot: int) -> None:
    subject.release(slot)
    assert subject.acquire() == slot


def keep(subject: Decoder, slot: int) -> None:
    """The same utterance begins another run."""


def recover(subject: Decoder, slot: int) -> None:
    subject.restore(slot, 1, [])


@pytest.mark.parametrize("fixed_shapes", [True, False])
@pytest.mark.parametrize("then", [acquire_again, keep, recover])
def test_nan_of_a_broken_sequence_does_not_spread(then: Callable[[Decoder, int], None], fixed_shapes: bool) -> None:
    subject = decoder(fixed_shapes=fixed_shapes)
    slots = [subject.acquire(), subject.acquire()]
    expected = draw_two(subject, slots, LONG[:20])

    subject = decoder(fixed_shapes=fixed_shapes)
    slots = [subject.acquire(), subject.acquire()]
    draw_two(subject, slots, LONG)
    broken = slots[1]
    subject.pool.data[:, :, broken, :, 30 : len(LONG) + 4] = float("nan")
    then(subject, broken)

    assert draw_two(subject, slots, LONG[:20]) == expected


def test_nan_of_a_broken_prefix_does_not_spread() -> None:
    subject = decoder()
    expected = subject.prefix(LONG[:20]).kv
    subject.prefix(LONG)
    subject.pool.data[:, :, subject._prefix_slot, :, : len(LONG)] = float("nan")

    assert subject.prefix(LONG[:20]).kv.equal(expected)
    assert subject.pool.data[:, :, subject._prefix_slot, :, 20:].isfinite().all()
