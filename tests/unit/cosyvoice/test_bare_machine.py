"""A machine with PyTorch, tokenizers, PyYAML and safetensors runs the networks.

It also writes its own weights; nothing else is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib, pkgutil, sys, warnings

import tts_worker.engine.cosyvoice as package
for module in pkgutil.walk_packages(package.__path__, "tts_worker.engine.cosyvoice."):
    if not module.name.endswith("_triton"):  # imported by the first launch on CUDA
        importlib.import_module(module.name)
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tools.random_bundle.writer import write_random_bundle

bundle = write_random_bundle(sys.argv[1], "cosyvoice3", "tiny", prompt_models=False)
print(bundle.validate().ok, len(bundle.load_weights("flow")), len(TextTokenizer.from_bundle(bundle).encode("hello")))
print(*(name for name in sys.argv[2:] if name in sys.modules))

for name in sys.argv[2:]:
    sys.modules[name] = None  # importing it fails
warnings.resetwarnings()
import pytest

sys.exit(pytest.main(["-c", "tests/gpu/pytest.ini", "tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""
NOT_INSTALLED = """
import sys, pytest

sys.path = [path for path in sys.path if not path.endswith("src")]  # where a clone is installed for development
sys.exit(pytest.main(["-c", "tests/gpu/pytest.ini", "tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""
NOT_THERE = (
    "ruamel pydantic onnx onnxruntime soundfile soxr wetext fastapi transformers torchaudio "
    "hyperpyyaml rich prometheus_client triton hypothesis pytest_asyncio pytest_timeout uvicorn anyio httpx grpc"
)


def test_engine_and_gpu_tests_need_only_pytorch(tmp_path: Path) -> None:
    """A bundle is written, checked and read; then the tests for a GPU are collected."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path / "x"), *NOT_THERE.split()]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    root = Path(__file__).parents[3]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)

    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    results, loaded, *collected = done.stdout.splitlines()
    assert loaded == ""
    is_valid, tensors, tokens = results.split()
    assert is_valid == "True"
    assert int(tensors) > 50
    assert int(tokens) >= 1
    assert sum("::test_" in line for line in collected) > 10


def test_gpu_tests_find_the_package_of_a_clone() -> None:
    """It need not be installed. Whatever a lease leaves of its time goes to what only the device can tell."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    names = [line.split("::")[1].split("[")[0] for line in done.stdout.splitlines() if "::" in line]
    assert {*names[-6:]} == {"test_attention_has_the_numbers_of_the_cpu", "test_networks_match_the_cpu"}
