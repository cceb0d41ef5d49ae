"""Loading: the choices for CUDA, and what an old PyTorch gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.unit.cosyvoice.bundles import tiny
from tts_worker.engine.cosyvoice.bundle import networks
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks, configure_cuda
from tts_worker.engine.cosyvoice.loader import check_torch
from tts_worker.errors import ConfigError


@pytest.fixture
def restored_backends() -> Iterator[None]:
    tf32, cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cuda.cudnn_sdp_enabled()
    products = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.enable_cudnn_sdp(cudnn)


@pytest.mark.usefixtures("restored_backends")
def test_cuda_attention_never_plans_shapes() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    configure_cuda()

    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert not torch.backends.cudnn.allow_tf32


def test_networks_configure_cuda_before_they_load(monkeypatch: pytest.MonkeyPatch) -> None:
    class Configured(Exception):
        pass

    def configure() -> None:
        raise Configured

    monkeypatch.setattr(networks, "configure_cuda", configure)
    with pytest.raises(Configured):
        Networks.load(Bundle.open(tiny("cosyvoice3")), device="cuda")


@pytest.mark.usefixtures("restored_backends")
def test_float32_products_are_exact_whatever_the_image_sets() -> None:
    """NVIDIA's images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which PyTorch reads as the precision "high"."""
    torch.set_float32_matmul_precision("high")
    configure_cuda()

    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_old_pytorch_is_refused_with_a_command() -> None:
    for version in ("2.9.0", "2.10.1+cu130", "3.0.0a0+git1"):
        check_torch(version)
    with pytest.raises(ConfigError, match=r"torch 2\.8\.0 is too old for CosyVoice: pip install 'torch>=2\.9'"):
        check_torch("2.8.0")
