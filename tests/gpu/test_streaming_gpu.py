"""The streaming engine on a CUDA device: what the CPU can only rehearse (tests/unit/streaming/test_device.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import FAMILIES, PROMPTED, bundle, engine, hear, settings, speak
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.graphs import GraphRunner
from tts_worker.engine.streaming.load import load_networks
from tts_worker.engine.streaming.streams import CudaStream
from tts_worker.types import Boundary, Cancel, Done, EndText, Open, SynthesisParams, Text, UtteranceKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; there is none here"),
]

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("world and you.", Boundary.SENTENCE), (" it is.", Boundary.END))


def on_device(family: str, *, half: bool, graphs: bool, crowd: int = 8) -> CosyVoiceEngine:
    eos = bundle(family).config.lm.eos_id
    loaded = load_networks(bundle(family), torch.device("cuda"), half=half)
    config = settings(
        max_utterances=crowd,
        pages=8 * crowd + 20,
        graphs=graphs,
        checked=False,
        decode_batch=crowd,
        render_batch=8,
        lm_tokens=512,
        max_passage_s=6,
    )
    subject = engine(family, config, loaded=loaded, script=lambda key, run: [*range(100 + run, 160 + run), eos])
    subject.warm_up()
    return subject


def seeded(n: int) -> SynthesisParams:
    return replace(PROMPTED, seed=n)


def crowd_says(subject: CosyVoiceEngine, crowd: int) -> list[EngineOutput]:
    keys = [UtteranceKey("s", n) for n in range(crowd)]
    heard: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, seeded(key.generation), PLENTY_SAMPLES))
        for segment in TEXT:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    hear(subject, heard)
    return [heard[key] for key in keys]


def levels_apart(a: bytes, b: bytes) -> float:
    """Root mean square of the difference over that of the sound."""
    one, other = (np.frombuffer(pcm, "<i2").astype(float) for pcm in (a, b))
    assert len(one) == len(other)
    return float(np.sqrt(np.square(one - other).mean() / np.square(one).mean()))


def mel_of(subject: CosyVoiceEngine, patch: pytest.MonkeyPatch) -> torch.Tensor:
    """What the flow makes of one call. In half precision the pitch differs in a last bit and phases drift apart:
    samples say nothing any more."""
    made = []
    advance = subject.components.pool.advance

    def keep(*given: Any) -> torch.Tensor:
        mel = advance(*given)
        made.append(mel.float().cpu().clone())  # a recording writes there again
        return mel

    patch.setattr(subject.components.pool, "advance", keep)
    crowd_says(subject, 1)
    return torch.cat(made, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_device_says_what_the_cpu_says(family: str) -> None:
    eos = bundle(family).config.lm.eos_id
    expected = speak(engine(family, script=lambda key, run: [*range(100 + run, 160 + run), eos]), TEXT, seeded(0))
    (heard,) = crowd_says(on_device(family, half=False, graphs=False), 1)
    assert heard.words == expected.words
    assert levels_apart(expected.pcm, heard.pcm) < 0.02
    assert not torch.backends.cudnn.allow_tf32, "convolutions in full float32"


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_say_what_plain_calls_say(family: str, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, recorded = (on_device(family, half=half, graphs=graphs) for graphs in (False, True))
    tokens, sound = recorded.components.runners
    assert isinstance(tokens, GraphRunner)
    assert isinstance(sound, GraphRunner)
    for one, other in zip(crowd_says(plain, 8), crowd_says(recorded, 8), strict=True):
        assert [type(end) for end in other.ends] == [Done]
        assert one.words == other.words
        if not half:
            assert levels_apart(one.pcm, other.pcm) < 0.02
    expected = mel_of(plain, monkeypatch)
    mel = mel_of(recorded, monkeypatch)
    assert float((mel - expected).square().mean().sqrt()) < (0.1 if half else 1e-3) * float(expected.std())
    assert tokens.eager_calls == 0
    assert sound.replays > 2 * sound.eager_calls


def test_sixty_four_at_once_equal_their_solo_runs() -> None:
    subject = on_device("cosyvoice3", half=False, graphs=True, crowd=64)
    together = crowd_says(subject, 64)
    for n in range(0, 64, 9):
        alone = speak(subject, TEXT, seeded(n), UtteranceKey("alone", n))
        assert levels_apart(together[n].pcm, alone.pcm) < 0.02


def test_a_cancel_in_flight_frees_everything_and_memory_does_not_grow() -> None:
    subject = on_device("cosyvoice3", half=True, graphs=True)
    assert isinstance(subject.components.streams.tokens, CudaStream)
    speak(subject, TEXT)
    pool = subject.components.pool
    decoder = subject.components.decoder
    free = (pool.free_pages, pool.free_slots, decoder.free_slots)
    before = torch.cuda.memory_allocated()
    for turn in range(200):
        key = UtteranceKey("s", turn)
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, TEXT[0]))
        for _ in range(turn % 17):
            subject.step(0.0)
        subject.handle(Cancel(key))
    hear(subject, {})
    torch.cuda.synchronize()
    assert (pool.free_pages, pool.free_slots, decoder.free_slots) == free
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
