"""An utterance whose speech tokens are given: voice conversion, without the language model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import KEY, ONE_FAMILY, PROMPTED, engine, networks, run_until_idle, settings
from tests.unit.streaming.test_engine import assert_pcm_close, build_request
from tests.unit.streaming.test_faults import FailingRunner
from tools.reference.pipeline import OfflinePipeline
from tts_worker.audio.pcm import to_pcm
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner, GraphRunner
from tts_worker.errors import ErrorCode
from tts_worker.types import Boundary, Cancel, Credit, Done, EndText, Failed, Open, Speech, Text, UtteranceKey

TOKENS = tuple(i * 97 % 6561 for i in range(70))

OTHER = UtteranceKey("other", 1)

families = pytest.mark.parametrize("family", ONE_FAMILY)


def convert(subject: CosyVoiceEngine, *portions: tuple[int, ...]) -> EngineOutput:
    """Render portions of speech tokens; the engine works between them, as if each came from a live caller."""
    outputs = {KEY: EngineOutput()}
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES, paced=False))
    for tokens in portions or (TOKENS,):
        subject.handle(Speech(KEY, tokens))
        run_until_idle(subject, outputs)
    subject.handle(EndText(KEY))
    run_until_idle(subject, outputs)
    return outputs[KEY]


@families
def test_speech_tokens_are_rendered_as_given(family: str) -> None:
    subject = engine(family)
    request = build_request(family, "", settings().first_tokens)
    chunks = OfflinePipeline(networks(family)).render(request, TOKENS, seed=PROMPTED.seed, stream=True)

    output = convert(subject)

    assert output.ends == [Done(KEY)]
    assert_pcm_close(output.pcm, to_pcm(torch.cat([chunk.samples for chunk in chunks]).numpy()))
    assert subject.timings.prefill_ms == subject.timings.decode_ms == 0  # without the language model


def test_speech_tokens_do_not_depend_on_credit() -> None:
    expected = convert(engine("cosyvoice3")).pcm
    subject = engine("cosyvoice3")
    subject.handle(Open(KEY, PROMPTED, 1_000))
    subject.handle(Speech(KEY, TOKENS))
    subject.handle(EndText(KEY))
    outputs = {KEY: EngineOutput()}
    while not outputs[KEY].ends:
        before = outputs[KEY].samples
        run_until_idle(subject, outputs)
        subject.handle(Credit(KEY, max(1_000, outputs[KEY].samples - before)))

    assert outputs[KEY].pcm == expected


@settings_of_hypothesis(max_examples=6, deadline=None)
@given(cuts=st.sets(st.integers(1, len(TOKENS) - 1), max_size=5))
def test_portions_of_speech_equal_one(cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), len(TOKENS)]
    portions = [TOKENS[start:end] for start, end in pairwise(bounds)]
    assert convert(engine("cosyvoice3"), *portions).pcm == convert(engine("cosyvoice3")).pcm


def test_long_speech_is_rendered_in_audio_segments() -> None:
    limit = settings().max_segment_s * 25
    output = convert(engine("cosyvoice3"), (5,) * limit, (7,) * 10, (9,) * (limit - 5))
    assert output.ends == [Done(KEY)]
    assert output.samples == (2 * limit + 5) * 960


def test_text_and_speech_exclude_each_other() -> None:
    subject = engine("cosyvoice3")
    subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(KEY, segments(("Hello", Boundary.END))[0]))
    subject.handle(Speech(KEY, TOKENS))
    outputs = {KEY: EngineOutput()}
    run_until_idle(subject, outputs)
    (end,) = outputs[KEY].ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.INVALID_REQUEST
    assert not subject.sequences


@pytest.mark.parametrize("tokens", [(6561,), (-1,)])
def test_unusable_speech_tokens_are_rejected(tokens: tuple[int, ...]) -> None:
    (end,) = convert(engine("cosyvoice3"), tokens).ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_cancelled_conversion_frees_everything(steps: int) -> None:
    subject = engine("cosyvoice3")
    free = subject.components.pool.free_slots
    for _ in range(2):
        subject.handle(Open(KEY, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Speech(KEY, TOKENS))
        for _ in range(steps):
            subject.step(0.0)
        subject.handle(Cancel(KEY))
        run_until_idle(subject, {})
    prompt_slots = subject.components.voice_cache.prepared_voices
    assert subject.components.pool.free_slots == free - prompt_slots
    assert not subject.sequences


def convert_two(audio: GraphRunner) -> dict[UtteranceKey, EngineOutput]:
    """Convert two sources at once."""
    subject = engine("cosyvoice2", settings(render_batch=4), graph_runners=(EagerRunner(), audio))
    for key in (KEY, OTHER):
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Speech(key, TOKENS))
        subject.handle(EndText(key))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    assert not subject.sequences
    return outputs


def test_transient_fault_ends_no_conversion() -> None:
    expected = convert_two(EagerRunner())
    failing = FailingRunner(torch.OutOfMemoryError("out of memory"), 5)
    outputs = convert_two(failing)
    assert failing.failed
    for key in (KEY, OTHER):
        assert outputs[key].ends == [Done(key)]
        assert_pcm_close(outputs[key].pcm, expected[key].pcm)


def test_persistent_fault_ends_one_conversion() -> None:
    outputs = convert_two(FailingRunner(ValueError("numbers"), 5, times=2))  # fails the batch, then its first member
    ends = [end for key in (KEY, OTHER) for end in outputs[key].ends]
    assert sorted(type(end).__name__ for end in ends) == ["Done", "Failed"]
