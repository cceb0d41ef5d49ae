"""The device of the GPU tests, and their weights. Needs PyTorch, numpy, tokenizers, PyYAML and safetensors only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported late: without PyTorch the other tests need this file, too
    import torch

    from tts_worker.engine.cosyvoice.bundle.directory import Bundle
    from tts_worker.engine.cosyvoice.bundle.networks import Networks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-cpu", action="store_true", help="run what does not need CUDA on the CPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what computes on the CPU at the official size, for most of a minute, behind what needs the device only."""
    items.sort(key=lambda item: "exact_networks" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device under test: CUDA, or the CPU with ``--on-cpu``."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if request.config.getoption("on_cpu", default=False):
        torch.set_num_threads(1)  # with tiny tensors, synchronizing threads costs more than computing
        return torch.device("cpu")
    pytest.skip("needs a CUDA device; there is none here (--on-cpu runs some tests on the CPU)")


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The device of a test that a CPU cannot run."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; there is none here")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def large_bundle(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """Random weights by family: of the official size on CUDA, of the tiny size on the CPU.

    Those that are in the folder GPU_BUNDLES already, as ``FAMILY-SIZE``, are not written again.
    """
    from tools.random_bundle.writer import write_random_bundle
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle

    size = "full" if device.type == "cuda" else "tiny"
    bundles: dict[str, Bundle] = {}

    def load(family: str) -> Bundle:
        if family not in bundles:
            written = Path(os.environ.get("GPU_BUNDLES", ""), f"{family}-{size}")
            path = tmp_path_factory.mktemp("bundles") / family
            has_weights = (written / "hift.pt").is_file()
            bundles[family] = Bundle.open(written) if has_weights else write_random_bundle(path, family, size)
        return bundles[family]

    return load


@pytest.fixture(scope="session")
def exact_networks(large_bundle: Callable[[str], Bundle]) -> Callable[[str], Networks]:
    """The networks of ``large_bundle`` on the CPU in float32, loaded once: that takes most of a minute."""
    import torch

    from tts_worker.engine.cosyvoice.loader import load_networks

    networks: dict[str, Networks] = {}

    def load(family: str) -> Networks:
        if family not in networks:
            networks[family] = load_networks(large_bundle(family), torch.device("cpu"), half=False)
        return networks[family]

    return load


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    """Return the memory of a finished test to the device, and let the next one check the kernels again."""
    yield
    import gc

    import torch

    from tts_worker.features.acceleration import kernels

    kernels.forget_faults()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
