"""The streaming engine on a CUDA device. tests/unit/streaming/test_device.py simulates it on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.unit.streaming.engines import FAMILIES, PROMPTED, bundle, engine, run_until_idle, settings, synthesize
from tts_worker.engine.cosyvoice.backends.graphs import GraphRunner
from tts_worker.engine.cosyvoice.backends.streams import CudaStream
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.types import Boundary, Cancel, Done, EndText, Open, SynthesisParams, Text, UtteranceKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; there is none here"),
]

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("world and you.", Boundary.SENTENCE), (" it is.", Boundary.END))


def cuda_engine(family: str, *, half: bool, graphs: bool, crowd: int = 8) -> CosyVoiceEngine:
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
        max_segment_s=6,
    )
    subject = engine(family, config, loaded=loaded, script=lambda key, run: [*range(100 + run, 160 + run), eos])
    subject.warm_up()
    return subject


def seeded(n: int) -> SynthesisParams:
    return replace(PROMPTED, seed=n)


def synthesize_crowd(subject: CosyVoiceEngine, crowd: int) -> list[EngineOutput]:
    keys = [UtteranceKey("s", n) for n in range(crowd)]
    outputs: dict[UtteranceKey, EngineOutput] = {}
    for key in keys:
        subject.handle(Open(key, seeded(key.generation), PLENTY_SAMPLES))
        for segment in TEXT:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    run_until_idle(subject, outputs)
    return [outputs[key] for key in keys]


def relative_difference(a: bytes, b: bytes) -> float:
    """Return the RMS of the difference relative to the RMS of the first signal."""
    one, other = (np.frombuffer(pcm, "<i2").astype(float) for pcm in (a, b))
    assert len(one) == len(other)
    return float(np.sqrt(np.square(one - other).mean() / np.square(one).mean()))


def flow_output(subject: CosyVoiceEngine, patch: pytest.MonkeyPatch) -> torch.Tensor:
    """Return the mel of one utterance.

    In half precision, samples cannot be compared: the pitch differs in the last bit and phases drift apart.
    """
    made = []
    advance = subject.components.pool.advance

    def record_mel(*args: Any) -> torch.Tensor:
        mel = advance(*args)
        made.append(mel.float().cpu().clone())  # a graph reuses its output buffer
        return mel

    patch.setattr(subject.components.pool, "advance", record_mel)
    synthesize_crowd(subject, 1)
    return torch.cat(made, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_device_audio_matches_cpu(family: str) -> None:
    eos = bundle(family).config.lm.eos_id
    expected = synthesize(engine(family, script=lambda key, run: [*range(100 + run, 160 + run), eos]), TEXT, seeded(0))
    (output,) = synthesize_crowd(cuda_engine(family, half=False, graphs=False), 1)
    assert output.words == expected.words
    assert relative_difference(expected.pcm, output.pcm) < 0.02
    assert not torch.backends.cudnn.allow_tf32, "convolutions must use full float32"


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_graph_audio_matches_eager_audio(family: str, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, captured = (cuda_engine(family, half=half, graphs=graphs) for graphs in (False, True))
    tokens, audio = captured.components.runners
    assert isinstance(tokens, GraphRunner)
    assert isinstance(audio, GraphRunner)
    for one, other in zip(synthesize_crowd(plain, 8), synthesize_crowd(captured, 8), strict=True):
        assert [type(end) for end in other.ends] == [Done]
        assert one.words == other.words
        if not half:
            assert relative_difference(one.pcm, other.pcm) < 0.02
    expected = flow_output(plain, monkeypatch)
    mel = flow_output(captured, monkeypatch)
    assert float((mel - expected).square().mean().sqrt()) < (0.1 if half else 1e-3) * float(expected.std())
    assert tokens.eager_calls == 0
    assert audio.replays > 2 * audio.eager_calls


def test_batch_of_64_matches_single_runs() -> None:
    subject = cuda_engine("cosyvoice3", half=False, graphs=True, crowd=64)
    together = synthesize_crowd(subject, 64)
    for n in range(0, 64, 9):
        alone = synthesize(subject, TEXT, seeded(n), UtteranceKey("alone", n))
        assert relative_difference(together[n].pcm, alone.pcm) < 0.02


def test_cancel_in_flight_leaks_no_memory() -> None:
    subject = cuda_engine("cosyvoice3", half=True, graphs=True)
    assert isinstance(subject.components.streams.tokens, CudaStream)
    synthesize(subject, TEXT)
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
    run_until_idle(subject, {})
    torch.cuda.synchronize()
    assert (pool.free_pages, pool.free_slots, decoder.free_slots) == free
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
