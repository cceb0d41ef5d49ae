"""``torch.compile``: every network is one graph, and is used only with the numbers of the eager one."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.fakes.graph_runner import FakeGraphRunner
from tests.unit.cosyvoice.networks import ONE_FAMILY, apart, networks, noise
from tests.unit.streaming.engines import networks as shallow_networks
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.audio.vocoder_windows import VocoderWindows, WindowInput
from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, EagerRunner
from tts_worker.engine.cosyvoice.execution.settings import CompileMode
from tts_worker.engine.cosyvoice.execution.streams import HostStream
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, DecodeRow
from tts_worker.features.acceleration import kernels
from tts_worker.features.acceleration.compiling import TorchCompiler, compiler_for


@pytest.fixture(autouse=True)
def no_programs() -> None:
    """Forget the programs of other tests: PyTorch limits their number per function."""
    torch._dynamo.reset()


@pytest.mark.parametrize("family", ["cosyvoice3", pytest.param("cosyvoice2", marks=pytest.mark.long)])
def test_decode_step_traces_without_a_break(family: str) -> None:
    runner = EagerRunner(fixed_shapes=True)
    decoder = Decoder(networks(family), slots=2, max_tokens=128, stream=HostStream(), runner=runner)
    rows = [DecodeRow(slot, networks(family).config.lm.eos_id, 0, 9) for slot in (decoder.acquire(), decoder.acquire())]
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's compiler
        (plan,) = decoder._plan_draws(rows, 1)
        step = decoder._decode_step(128)
        state = (decoder._remaining, decoder._draws.recent, decoder._draws.steps, decoder.pool.lengths)
        before = [each.clone() for each in state]
        expected = step(plan)[0]
        after = [each.clone() for each in state]
        for each, value in zip(state, before, strict=True):
            each.copy_(value)
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        assert torch.equal(compiled(plan)[0], expected)
        assert all(map(torch.equal, state, after))


@pytest.mark.parametrize("family", ["cosyvoice3", pytest.param("cosyvoice2", marks=pytest.mark.long)])
def test_compiled_step_has_the_numbers_of_the_eager_one(family: str) -> None:
    """Through AOTAutograd, as Inductor gets it; generating code for it takes half a minute."""
    compiler = TorchCompiler("aot_eager")
    drawn = []
    for is_compiled in (False, True):
        runner = FakeGraphRunner()
        decoder = Decoder(networks(family), slots=2, max_tokens=128, stream=HostStream(), runner=runner)
        decoder.capture(2)
        if is_compiled:
            runner.clear()
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch's compiler
                step = decoder.compile_step(2, 128, compiler)
                (plan,) = decoder._plan_draws([DecodeRow(slot, 0, 0, 0) for slot in range(2)], 1)
                runner.capture(("decode", 2, 128), step, (plan,))
        slots = [decoder.acquire(), decoder.acquire()]
        rows = [DecodeRow(slot, networks(family).config.lm.eos_id, 0, 9) for slot in slots]
        fed = [decoder.start(slot, 7 + slot, [(Kind.SPEECH, 5 + slot)] * 9) for slot in slots]
        drawn.append([*decoder.prefill(rows, fed).wait().tolist(), *decoder.burst(rows, 8).wait().tolist()])
        assert {each.name: each.replays for each in runner.computations}["decode"] == 8
    assert drawn[0] == drawn[1]
    assert compiler.faults == {}
    assert compiler.shapes == {"decode": 1}


def flow_pool(family: str, runner: FakeGraphRunner) -> FlowPool:
    flow = shallow_networks(family).flow  # tracing takes as long as there are layers
    return FlowPool(flow, slots=2, pages=8, max_chunks=2, runner=runner, page_bucket=2)


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_solver_steps_share_a_program_of_the_estimator(family: str) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    mels = []
    for compiler in (None, TorchCompiler(backend)):
        runner = FakeGraphRunner()
        pool = flow_pool(family, runner)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch's compiler
            pool.capture(1, [1], compiler)
            assert len(graphs) == (0 if compiler is None else 2)
        state = pool.open()
        flow = networks(family).config.flow
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, flow.vocab, (1, 28), generator=generator)
        spk = torch.randn(1, flow.mel, generator=generator)
        cond = torch.randn(1, 50, flow.mel, generator=generator)
        mels.append(torch.cat([pool.advance([state], tokens, [known], spk, cond) for known in (28, 20)], dim=1))
        assert {each.name: (each.replays, each.eager_calls) for each in runner.computations}["flow"] == (2, 0)
    assert compiler.faults == {}
    assert compiler.shapes == {"flow": 2}, "one branch and two"
    assert len(graphs) == 2
    assert apart(mels[1], mels[0]) < 1e-4


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_window_of_the_vocoder_is_compiled(family: str) -> None:
    hift = shallow_networks(family).hift
    compiler = TorchCompiler("eager")
    outputs = []
    for each in (None, compiler):
        runner = FakeGraphRunner()
        windows = VocoderWindows(hift, HostStream(), runner, [20], torch.device("cpu"))
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch's compiler
            windows.capture(1, each)
            outputs.append(
                windows.run([WindowInput(None, 7, noise(1, networks(family).config.mel.bins, 20), True)])[0].float()
            )
        assert {each.name: (each.replays, each.eager_calls) for each in runner.computations}["vocoder"] == (1, 0)
    assert compiler.faults == {}
    assert compiler.shapes == {"vocoder": 1 if hift.dims.causal else 2}
    assert float(outputs[0].abs().max()) > 100
    assert apart(outputs[1], outputs[0]) <= 0.02 * float(outputs[0].abs().max())


def prepared(compiler: TorchCompiler, compute: Compute, state: Tensor) -> bool:
    """Return whether ``compute`` is compiled, and check that its state is unchanged."""
    before = state.clone()
    with torch.inference_mode():
        used = compiler.compile(("decode", 1), compute, (torch.ones(3),), (state,))
    assert torch.equal(state, before)
    return used is not compute


def wrong(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
    """A back end of ``torch.compile`` whose programs return other numbers."""
    return lambda *args: tuple(out + 1e-3 for out in graph(*args))


def test_other_numbers_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    state = torch.zeros(3)

    def compute(x: Tensor) -> tuple[Tensor]:
        state.add_(x)
        return (state * 2,)

    assert prepared(TorchCompiler("eager"), compute, state)
    compiler = TorchCompiler(wrong)
    assert not any(prepared(compiler, compute, state) for _ in range(2))
    assert list(compiler.faults) == ["decode"]
    assert caplog.text.count("decode is not compiled: it differs") == 1


def test_what_cannot_be_traced_is_not_compiled() -> None:
    def compute(x: Tensor) -> tuple[Tensor]:
        return (x * float(str(x.sum().item())),)

    compiler = TorchCompiler("eager")
    assert not prepared(compiler, compute, torch.zeros(1))
    assert list(compiler.faults) == ["decode"]


def test_compiling_ends_with_its_time() -> None:
    state = torch.zeros(3)
    ticks = iter((0.0, 50.0, 50.0, 130.0))
    compiler = TorchCompiler("eager", budget_s=100.0, clock=lambda: next(ticks))
    assert [prepared(compiler, lambda x: (x * 2,), state) for _ in range(3)] == [True, True, False]
    assert compiler.faults == {}


@pytest.mark.parametrize(
    ("mode", "kernels_enabled", "compiles"),
    [
        (CompileMode.AUTO, False, True),
        (CompileMode.AUTO, True, False),
        (CompileMode.ON, True, True),
        (CompileMode.OFF, False, False),
    ],
)
def test_only_cuda_without_kernels_compiles_by_default(
    mode: CompileMode, kernels_enabled: bool, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "are_enabled", lambda: kernels_enabled)
    monkeypatch.setattr(kernels, "triton_problem", str)
    assert (compiler_for(mode, torch.device("cuda")) is not None) == compiles
    assert compiler_for(mode, torch.device("cpu")) is None
