"""Other ways to run the networks on a device: the reference's numbers, ONNX Runtime, TensorRT, and attention.

What needs a package that a bare PyTorch image lacks is skipped there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.contract.engine_contract import EngineOutput
from tests.gpu.engines import device_engine, forced, relative_difference, relative_error, seeded, speak_crowd
from tests.gpu.test_graphs import eager_calls, recorded_mel
from tests.gpu.test_numbers import MAX_ERROR, exact_mel, streamed_mel
from tests.unit.cosyvoice.bundles import FAMILIES, GOLDEN, tiny
from tests.unit.streaming.engines import voice
from tools.bench.gpu_flashinfer import flashinfer_library
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.onnx_providers import CUDA
from tts_worker.engine.cosyvoice.execution.plan import Backend
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine, load_networks
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.kv_cache import PagedLibrary, PageShape
from tts_worker.engine.cosyvoice.ops.audio import paged_attention
from tts_worker.engine.cosyvoice.ops.language_model import slot_attention
from tts_worker.features.acceleration.accelerator import use_kernels
from tts_worker.features.acceleration.kernels import relative_difference as relative_difference_of
from tts_worker.features.acceleration.kernels.audio_cases import attention_arguments

pytestmark = pytest.mark.gpu

CROWD = 2


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_device_has_the_numbers_of_the_reference(family: str, half: bool, device: torch.device) -> None:
    """As ``python -m tools.parity --device cuda`` on the numbers that the reference computed."""
    pytest.importorskip("soundfile", reason="ships with the CPU voice")
    pytest.importorskip("onnxruntime", reason="needs the package onnxruntime or onnxruntime-gpu")
    from tools.parity.runner import run_parity

    report = run_parity(tiny(family), GOLDEN[family], device=device.type, half=half)

    assert report.passed, [(check.file, check.name, check.error) for check in report.checks]


def spoken(options: LoadOptions) -> tuple[list[EngineOutput], Backend]:
    """Speak as a small crowd. Returns the audio and the back end that computed it."""
    voices = {"prompted": voice(options.bundle.name.removesuffix("-tiny"))}
    family = options.bundle.name.removesuffix("-tiny")
    subject = load_engine(options, forced(family, 40), voices)
    try:
        subject.warm_up()
        assert subject.info.degraded == ()
        return speak_crowd(subject, [seeded(n) for n in range(CROWD)]), subject.components.backend.active
    finally:
        subject.close()


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A family, and a folder with the graphs of its tiny bundle: those of the unit tests have fewer layers."""
    pytest.importorskip("onnx", reason="needs the extra 'export'")
    from tts_worker.features.acceleration.onnx_graphs import export_onnx

    family = request.param
    folder = tmp_path_factory.mktemp("graphs")
    export_onnx(load_networks(Bundle.open(tiny(family)), torch.device("cpu"), half=False), folder, ("flow", "hift"))
    return family, folder


@pytest.fixture
def options(exported: tuple[str, Path], device: torch.device, tmp_path: Path) -> LoadOptions:
    """An engine of the tiny size, and the graphs of its networks."""
    family, folder = exported
    return LoadOptions(
        tiny(family),
        device=device.type,
        half=False,
        memory_gb=0.2,
        max_utterances=CROWD,
        render_batch=CROWD,
        max_segment_s=8,
        graphs_dir=folder,
        plan_cache=tmp_path,
    )


def assert_back_end_speaks_like_pytorch(options: LoadOptions, backend: Backend) -> None:
    expected, _ = spoken(options)
    outputs, active = spoken(replace(options, backend=backend.value))
    assert active is backend
    for exact, output in zip(expected, outputs, strict=True):
        assert output.words == exact.words
        assert relative_difference(exact.pcm, output.pcm) < 0.02


def test_onnxruntime_speaks_like_pytorch(options: LoadOptions) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime or onnxruntime-gpu")
    if options.device == "cuda" and CUDA not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA provider")
    assert_back_end_speaks_like_pytorch(options, Backend.ONNXRUNTIME)


@pytest.mark.usefixtures("cuda")
def test_tensorrt_speaks_like_pytorch(options: LoadOptions) -> None:
    """Built, then loaded from its cache."""
    pytest.importorskip("tensorrt", reason="needs the extra 'tensorrt'")
    for _ in range(2):
        assert_back_end_speaks_like_pytorch(options, Backend.TENSORRT)
    assert options.plan_cache is not None
    assert any(options.plan_cache.iterdir())


@pytest.mark.parametrize("mode", ["kernels", "flashinfer", "gather"])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_has_the_numbers_of_the_cpu(
    family: str,
    mode: str,
    cuda: torch.device,
    large_bundle: Callable[[str], Bundle],
    exact_networks: Callable[[str], Networks],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the official size in bfloat16, over the pages of five chunks, one of which is partial."""
    if mode == "flashinfer":
        pytest.importorskip("flashinfer", reason="needs flashinfer-python")
    for operator in (paged_attention, slot_attention):
        monkeypatch.setattr(operator, "is_excluded", False)  # for the other tests
    flow = load_networks(large_bundle(family), cuda, half=True)
    library = library_of(flow, mode)
    use_kernels(flow, cuda, StreamingConfig(gathers=mode == "gather"))

    mel = streamed_mel(flow, cuda, library)

    assert relative_error(mel, exact_mel(family, exact_networks)) < MAX_ERROR[True]


def library_of(loaded: Networks, mode: str) -> Callable[[PageShape], PagedLibrary] | None:
    assert isinstance(loaded.flow, Flow)
    if mode != "flashinfer":
        return None
    library, missing = flashinfer_library(loaded.flow, False)
    assert missing == ()
    return library


@torch.inference_mode()
def test_attention_reads_more_memory_than_32_bits_count(cuda: torch.device) -> None:
    """The pages of an engine fill the device: their values have 64-bit numbers, other than in the kernel's check."""
    if torch.cuda.mem_get_info(cuda)[1] < 24e9:
        pytest.skip("needs 24 GB of memory")
    (qkv, rotations, store, table, fresh, start, total), tolerance = attention_arguments(
        16, 64, 50, 1, torch.bfloat16, cuda
    )
    rest = start, total
    memory = torch.empty(2, 22, 16, 19, 110, 50, 64, dtype=torch.bfloat16, device=cuda)
    assert memory.stride(0) > 2**31
    layer = memory[:, 21, :, 17:19]
    first = memory.shape[4] - store.shape[3]
    layer[:, :, :, first:] = store
    expected = paged_attention.composition(qkv.clone(), rotations, store, table, fresh, *rest)

    got = paged_attention.launch(qkv.clone(), rotations, layer, table + first, fresh + first, *rest)

    assert relative_difference_of(got, expected) <= tolerance
    assert relative_difference_of(layer[:, :, :, first:], store) <= tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_flashinfer_is_captured(family: str, cuda: torch.device) -> None:
    """A graph is replayed with another plan for every pass."""
    pytest.importorskip("flashinfer", reason="needs flashinfer-python")
    mels = []
    for graphs in (False, True):
        subject = device_engine(family, cuda, half=True, graphs=graphs, crowd=2, library=flashinfer_library)
        assert subject.info.degraded == ()
        with pytest.MonkeyPatch.context() as patch:
            mels.append(recorded_mel(subject, patch))
        if graphs:
            assert eager_calls(subject) == {}
    assert relative_error(mels[1], mels[0]) < MAX_ERROR[True]
