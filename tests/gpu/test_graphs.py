"""CUDA graphs: every computation is replayed, with the numbers of an eager call, and a refused capture is contained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import segments
from tests.fakes.graph_runner import FakeGraphRunner
from tests.gpu.engines import device_engine, draw_ids, forced, relative_difference, relative_error, seeded, speak_crowd
from tests.unit.cosyvoice.bundles import FAMILIES
from tests.unit.streaming.engines import bundle
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.settings import CompileMode
from tts_worker.engine.cosyvoice.execution.streams import CudaStream, streams_for
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.engine.cosyvoice.token_runner import FirstTokens
from tts_worker.features.acceleration import compiling, kernels
from tts_worker.features.acceleration.compiling import TorchCompiler
from tts_worker.features.acceleration.graphs import CudaGraphRunner
from tts_worker.types import Boundary, Done, SynthesisParams

pytestmark = pytest.mark.gpu

COMPUTATIONS = {"prefill", "decode", "flow", "null", "vocoder"}
SPEEDS = (0.5, 0.77, 1.0, 1.3, 2.0)
COMPILE_S = 40.0
"""Less than the budget of an engine, which is more than ``scripts/gpu-half-hour`` gives to a test."""


def eager_calls(subject: CosyVoiceEngine) -> dict[str, int]:
    """Calls without a graph, by computation and shape. Every computation has replayed one."""
    counts = subject.report().computations
    assert {each.name for each in counts if each.replays} == COMPUTATIONS
    keys = subject.components.eager_keys
    assert sum(keys.values()) == sum(each.eager_calls for each in counts)
    return keys


def recorded_mel(subject: CosyVoiceEngine, patch: pytest.MonkeyPatch) -> Tensor:
    """Return the mel of one utterance.

    In bfloat16, samples cannot be compared: the pitch differs in the last bit and phases drift apart.
    """
    made: list[Tensor] = []
    advance = subject.components.pool.advance

    def record(*args: object) -> Tensor:
        mel = advance(*args)  # type: ignore[arg-type]
        made.append(mel.float().cpu().clone())  # a graph reuses its output buffer
        return mel

    with patch.context() as patched:
        patched.setattr(subject.components.pool, "advance", record)
        speak_crowd(subject, [seeded(0)])
    return torch.cat(made, dim=1)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_graph_audio_matches_eager_audio(
    family: str, half: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = 8 if device.type == "cuda" else 2
    eager, captured = (device_engine(family, device, half=half, graphs=graphs, crowd=crowd) for graphs in (False, True))
    assert captured.info.degraded == ()
    params = [SynthesisParams(("prompted", "plain")[n % 2], seed=n, speed=SPEEDS[n % 5]) for n in range(crowd)]
    for one, other in zip(*(speak_crowd(subject, params) for subject in (eager, captured)), strict=True):
        assert [type(end) for end in other.ends] == [Done]
        assert one.words == other.words
        if not half:
            assert relative_difference(one.pcm, other.pcm) < 0.005
    expected = recorded_mel(eager, monkeypatch)
    assert relative_error(recorded_mel(captured, monkeypatch), expected) < (0.05 if half else 1e-4)
    assert eager_calls(captured) == {}


def test_every_prefill_length_is_replayed(device: torch.device) -> None:
    """Padded to a captured shape, in one piece or several, any length draws the ids of its exact length."""
    networks = load_networks(bundle("cosyvoice3"), device, half=False)
    lengths = [*range(3, 10), 63, 64, 65, 127, 128, 129, 192, 193, 256, 257, 383, 384, 385, 500]
    exact = draw_ids(networks, device, lengths, steps=8)
    stream = streams_for(device).tokens
    runner = CudaGraphRunner(stream.cuda_stream) if isinstance(stream, CudaStream) else FakeGraphRunner()
    assert draw_ids(networks, device, lengths, steps=8, stream=stream, runner=runner) == exact
    assert runner.refused == {}
    assert dict(runner.eager_keys) == {}
    assert {each.name for each in runner.computations if each.replays} == {"prefill", "decode"}


@pytest.mark.parametrize("family", FAMILIES)
def test_first_chunk_needs_no_host(family: str, cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the prefill to the audio in one submission, across two streams, with the same audio."""
    sentence = segments(("Hello world and you, that it is of the world.", Boundary.END))
    outputs = []
    for on_device in (False, True):
        subject = device_engine(family, cuda, first_chunk_on_device=on_device)
        render = subject.audio.render_first_chunks
        calls: list[int] = []

        def counted(
            tokens: FirstTokens,
            render: Callable[[FirstTokens], None] = render,
            calls: list[int] = calls,
        ) -> None:
            calls.append(len(tokens.members))
            render(tokens)

        monkeypatch.setattr(subject.audio, "render_first_chunks", counted)
        outputs += [speak_crowd(subject, [seeded(n)], sentence)[0] for n in range(3)]
        assert calls == [1] * 3 * on_device
        assert eager_calls(subject) == {}
    for usual, at_once in zip(outputs[:3], outputs[3:], strict=True):
        assert at_once.words == usual.words
        assert relative_difference(usual.pcm, at_once.pcm) < 0.005


@pytest.mark.parametrize("half", [False, True])
def test_compiled_steps_have_the_numbers_of_eager_ones(
    half: bool, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every compiled computation was compared with the eager one, in float32 the drawn id, too."""
    monkeypatch.setattr(compiling, "TorchCompiler", partial(TorchCompiler, budget_s=COMPILE_S))
    modes = (CompileMode.OFF, CompileMode.ON)
    eager, compiled = (device_engine("cosyvoice3", cuda, half=half, kernels=False, compile=mode) for mode in modes)
    compiler = compiled.components.compiler
    assert compiler is not None
    assert compiler.faults == {}
    assert compiler.shapes["decode"] > 0  # flow and vocoder follow while there is time
    assert compiled.info.degraded == ()
    one, other = (speak_crowd(subject, [seeded(0)])[0] for subject in (eager, compiled))
    assert one.words == other.words
    assert half or relative_difference(one.pcm, other.pcm) < 0.005
    assert eager_calls(compiled) == {}


def test_every_kernel_passes_its_check(cuda: torch.device) -> None:
    assert kernels.triton_problem() == ""
    for family in FAMILIES:
        for half in (False, True):
            subject = device_engine(family, cuda, half=half, graphs=False)
            assert kernels.are_enabled()
            assert subject.components.kernel_faults == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_long_segment_is_replayed(family: str, device: torch.device) -> None:
    """One audio segment of 26 s: contexts and page tables grow through all their sizes."""
    clauses = 12 if device.type == "cuda" else 4
    text = segments(*[("Hello, world and you, ", Boundary.WORD)] * (clauses - 1), ("it is.", Boundary.END))
    sizes: dict[str, Any] = {"max_segment_s": 60, "lm_tokens": 1024, "script": forced(family, 55)}
    outputs = []
    for graphs in (False, True):
        subject = device_engine(family, device, graphs=graphs, **sizes)
        outputs += speak_crowd(subject, [seeded(0)], text)
    assert outputs[0].samples == outputs[1].samples == clauses * 55 * 960
    assert outputs[0].words == outputs[1].words
    assert eager_calls(subject) == {}


def test_refused_capture_leaves_the_others(cuda: torch.device) -> None:
    """A capture that runs out of memory must not end the captures after it."""
    stream = torch.cuda.Stream(cuda)
    runner = CudaGraphRunner(stream)
    calls = 0

    def too_much(x: Tensor) -> tuple[Tensor]:
        nonlocal calls
        calls += 1
        if calls > 1:  # the eager call before the capture succeeds
            torch.empty(1 << 44, dtype=torch.uint8, device=cuda)
        return (x + 1,)

    with torch.cuda.stream(stream):
        x = torch.ones(4, device=cuda)
        runner.capture(("before",), lambda x: (x * 2,), (x,))
        runner.capture(("refused",), too_much, (x,))
        runner.capture(("after",), lambda x: (x * 3,), (x,))
        assert list(runner.refused) == [("refused",)]
        assert "memory" in runner.refused["refused",]
        calls = -10
        results = {key: runner.run((key,), too_much, (x,))[0].tolist() for key in ("before", "refused", "after")}
    assert results == {"before": [2.0] * 4, "refused": [2.0] * 4, "after": [3.0] * 4}
    counts = {each.name: (each.captured, each.refused, each.replays, each.eager_calls) for each in runner.computations}
    assert counts == {"after": (1, 0, 1, 0), "before": (1, 0, 1, 0), "refused": (0, 1, 0, 1)}


def test_forbidden_capture_leaves_the_device_usable(cuda: torch.device) -> None:
    """A capture that reads a value becomes invalid. The stream, the allocator and other captures must not notice."""
    stream = torch.cuda.Stream(cuda)
    runner = CudaGraphRunner(stream)
    with torch.cuda.stream(stream):
        x = torch.ones(4, device=cuda)
        runner.capture(("before",), lambda x: (x * 2,), (x,))
        runner.capture(("forbidden",), lambda x: (x * x.sum().item(),), (x,))
        runner.capture(("after",), lambda x: (x * 3,), (x,))
        assert list(runner.refused) == [("forbidden",)]
        generator = torch.Generator(cuda).manual_seed(0)
        assert torch.randn(4, generator=generator, device=cuda).isfinite().all()
        kept = runner.run(("before",), lambda x: (x,), (x,))[0]
        for _ in range(3):  # memory comes and goes as before
            torch.empty(1 << 28, dtype=torch.uint8, device=cuda)
            torch.cuda.empty_cache()
        assert runner.run(("after",), lambda x: (x,), (x,))[0].tolist() == [3.0] * 4
        assert kept.tolist() == [2.0] * 4
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 44, dtype=torch.uint8, device=cuda)


def test_replays_are_timed_by_the_device(cuda: torch.device) -> None:
    stream = torch.cuda.Stream(cuda)
    runner = CudaGraphRunner(stream)
    x = torch.ones(4096, 4096, device=cuda)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        runner.capture(("product",), lambda x: (x @ x,), (x,))
        with runner.timing() as times:
            for _ in range(3):
                runner.run(("product",), lambda x: (x @ x,), (x,))
    assert [key for key, ms in times.items() if len(ms) == 3] == [("product",)]
    # 137 billion operations in float32: 0.1 ms would be a petaflop.
    assert all(0.1 < ms < 1000 for ms in times["product",])
