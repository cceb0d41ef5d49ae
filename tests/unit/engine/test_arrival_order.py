"""A burst of utterances starts in order of arrival. The names of the sessions would give another order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineCase, EngineDriver, segments
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel
from tts_worker.engine.tone import ToneEngine
from tts_worker.types import Audio, Boundary, Done, SynthesisParams, UtteranceKey

SENTENCE = "This takes a few seconds to say, and all of them say it at the same time."
LONG = segments(*[(SENTENCE, Boundary.SENTENCE)] * 3, (SENTENCE, Boundary.END))


def first_audio_order(case: EngineCase, keys: Sequence[UtteranceKey], opened_before: int = 0) -> list[UtteranceKey]:
    """Let all texts arrive between two steps; return the order of first audio, before which no utterance may end."""
    driver = EngineDriver(case)
    for key in keys[:opened_before]:
        driver.open(key, credit_samples=PLENTY_SAMPLES)
    if opened_before:
        driver.step()
    for key in keys[opened_before:]:
        driver.open(key, credit_samples=PLENTY_SAMPLES)
    for key in keys:
        driver.send_text(key)
    started: list[UtteranceKey] = []
    while len(started) < len(keys):
        for event in driver.step():
            if isinstance(event, Audio) and event.key not in started:
                started.append(event.key)
            assert not isinstance(event, Done) or len(started) == len(keys)
    return started


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 200), unique=True, min_size=1, max_size=40))
def test_tone_engine_starts_in_order_of_arrival(numbers: list[int]) -> None:
    keys = [UtteranceKey(f"s-{number}", 1) for number in numbers]
    case = EngineCase(ToneEngine, SynthesisParams("tone"), LONG, ())
    assert first_audio_order(case, keys) == keys


def test_cpu_voice_starts_in_order_of_arrival(hibari_model: HibariModel) -> None:
    keys = [UtteranceKey(f"s-{number}", 1) for number in (3, 20, 1, 100, 10, 2, 30, 4, 11, 200, 5, 12)]
    case = EngineCase(lambda: HibariEngine(hibari_model), SynthesisParams(VOICE), LONG, ())
    assert first_audio_order(case, keys) == keys


def test_order_of_arrival_survives_a_step_without_text(hibari_model: HibariModel) -> None:
    """A step between the openings passes over the utterances that wait for text; they keep their places."""
    keys = [UtteranceKey(f"s-{number}", 1) for number in (3, 20, 1, 100)]
    case = EngineCase(lambda: HibariEngine(hibari_model), SynthesisParams(VOICE), LONG, ())
    assert first_audio_order(case, keys, opened_before=3) == keys
