"""Prefills in a few fixed shapes: the ids of exact lengths, every length captured, and many starts in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.graph_runner import FakeGraphRunner
from tests.unit.cosyvoice.networks import ONE_FAMILY, networks
from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, EagerRunner, GraphRunner, Key, Tensors
from tts_worker.engine.cosyvoice.execution.streams import HostStream
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.ops.language_model import IDLE
from tts_worker.engine.cosyvoice.tokens.decoder import (
    CONTEXT_BUCKET,
    PREFILL_BUCKETS,
    PREFILL_CONTEXT,
    PREFILL_INPUTS,
    Decoder,
    DecodeRow,
)

MAX_TOKENS = 1100


def decoder(family: str, runner: GraphRunner, slots: int = 3, max_tokens: int = MAX_TOKENS) -> Decoder:
    return Decoder(networks(family), slots=slots, max_tokens=max_tokens, stream=HostStream(), runner=runner)


def inputs(text: int, speech: int) -> list[Item]:
    """Return the inputs of a run: text, then the speech that it continues."""
    items: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, 3 + i % 40) for i in range(text)), (Kind.TASK, 0)]
    return [*items, *((Kind.SPEECH, 7 + 3 * i) for i in range(speech))]


def draw(
    subject: Decoder, runs: Sequence[list[Item]], steps: int = 3, prefix: int = 0, seed: int = 0
) -> list[list[int]]:
    """Draw the first id and a burst for runs that start at the same time, after a common prefix."""
    shared = subject.prefix(runs[0][:prefix]) if prefix else None
    slots = [subject.acquire() for _ in runs]
    rows = [DecodeRow(slot, subject._dims.eos_id, 10**6, steps + 1) for slot in slots]
    fed = [subject.start(slot, n, items, shared) for n, (slot, items) in enumerate(zip(slots, runs, strict=True), seed)]
    drawn = [[token] for token in subject.prefill(rows, fed).wait()[0].tolist()]
    columns = subject.burst(rows, steps).wait().T.tolist()
    for slot, ids, column in zip(slots, drawn, columns, strict=True):
        ids += subject.record_burst(slot, column, ids[-1])
    for slot in slots:
        subject.release(slot)
    return drawn


lengths = st.tuples(st.integers(1, 60), st.sampled_from([0, 3, 70, 180, 330, 390, 900]))


@pytest.mark.parametrize("family", ONE_FAMILY)
@settings(deadline=None, max_examples=8)
@given(runs=st.lists(lengths, min_size=1, max_size=3))
def test_a_crowd_of_starts_equals_each_alone(family: str, runs: list[tuple[int, int]]) -> None:
    """Padded prefills of any lengths, in one piece or several, draw the ids of exact lengths."""
    items = [inputs(text, speech) for text, speech in runs]
    alone = decoder(family, EagerRunner())
    exact = [draw(alone, [one], seed=n)[0] for n, one in enumerate(items)]
    assert draw(decoder(family, FakeGraphRunner()), items) == exact


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_padded_prefix_gives_the_same_ids(family: str) -> None:
    items = [inputs(430, 20), inputs(430, 21)]
    exact = draw(decoder(family, EagerRunner()), items, prefix=420)
    assert draw(decoder(family, FakeGraphRunner()), items, prefix=420) == exact
    assert draw(decoder(family, EagerRunner()), items) == exact, "a prefix changes nothing"


class RecordingRunner(FakeGraphRunner):
    """Records the keys of all runs."""

    def __init__(self) -> None:
        super().__init__()
        self.run_keys: list[Key] = []

    def run(self, key: Key, compute: Compute, inputs: Tensors) -> Tensors:
        self.run_keys.append(key)
        return super().run(key, compute, inputs)


def test_every_prefill_length_is_captured() -> None:
    runner = RecordingRunner()
    subject = decoder("cosyvoice3", runner, max_tokens=520)
    subject.capture(2)
    assert sum(each.captured for each in runner.computations) <= 2 * len(PREFILL_BUCKETS) * 2 + 2 * 3
    assert not runner.refused
    for length in (1, 8, 9, 64, 65, 150, 200, 384, 385, 500):
        draw(subject, [inputs(1, length - 1)], prefix=2)
        draw(subject, [inputs(1, length - 1), inputs(5, 3)])
    assert runner.eager_calls == 0
    assert {key[2] for key in runner.run_keys if key[0] == "prefill"} == set(PREFILL_BUCKETS)


def test_replays_of_one_shape_keep_their_ids() -> None:
    """Sixteen starts take two passes of one shape, whose graph writes its ids to the same memory."""
    runs = [inputs(100 + n, 0) for n in range(16)]
    alone = decoder("cosyvoice3", EagerRunner())
    exact = [draw(alone, [run], seed=n)[0] for n, run in enumerate(runs)]
    runner = RecordingRunner()
    subject = decoder("cosyvoice3", runner, slots=16, max_tokens=160)
    subject.capture(16)

    assert draw(subject, runs) == exact
    assert runner.eager_calls == 0
    assert [key[1:3] for key in runner.run_keys if key[0] == "prefill"] == [(8, 128)] * 2


def test_contexts_hold_all_positions_of_a_pass() -> None:
    """Also where the inputs, or the last step of a burst, exceed a context by one position."""
    for length in (*range(CONTEXT_BUCKET - 8, CONTEXT_BUCKET + 2), *range(PREFILL_CONTEXT - 1, PREFILL_CONTEXT + 2)):
        runner = RecordingRunner()
        draw(decoder("cosyvoice3", runner), [inputs(1, length - 3)], steps=8)
        least = {"prefill": length, "decode": length + 8}
        contexts = {str(key[0]): key[-1] for key in runner.run_keys}  # of the last pass, which reads the most
        assert set(contexts) == set(least)
        assert all(contexts[name] >= least[name] for name in least), (length, contexts)  # type: ignore[operator]


@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_first_id_counts_for_the_burst_behind_it(fixed_shapes: bool) -> None:
    """Drawn without the host in between: after the end, or the last draw of the budget, nothing is drawn."""
    subject = decoder("cosyvoice3", EagerRunner(fixed_shapes=fixed_shapes))
    eos = subject._dims.eos_id
    slots = [subject.acquire() for _ in range(3)]
    rows = [
        DecodeRow(slots[0], eos, 0, 99, [eos]),
        DecodeRow(slots[1], eos, 0, 2, [5, 6, 7, 8]),
        DecodeRow(slots[2], eos, 0, 99, [5, 6, 7, 8]),
    ]
    fed = [subject.start(slot, 0, inputs(3, 0)) for slot in slots]

    _, copy, _ = subject.prefill_and_burst(rows, fed, 4)

    assert copy.wait().T.tolist() == [[eos, IDLE, IDLE, IDLE], [5, 6, IDLE, IDLE], [5, 6, 7, 8]]


def test_new_utterances_share_prefills() -> None:
    """Many starts take as few passes as their inputs allow, in any order."""
    runner = RecordingRunner()
    subject = decoder("cosyvoice3", runner, slots=12, max_tokens=300)
    draw(subject, [inputs(5 + n, 100 if n % 2 else 4) for n in range(12)])
    passes = [key for key in runner.run_keys if key[0] == "prefill"]
    assert [key[1:3] for key in passes] == [(8, 128), (4, 64)]
    assert all(rows * span <= PREFILL_INPUTS for _, rows, span, _ in passes)  # type: ignore[operator]
