"""A machine with PyTorch, tokenizers, PyYAML and safetensors runs the networks.

It also writes its own weights; nothing else is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib, pkgutil, sys

import tts_worker.engine.cosyvoice as package
for module in pkgutil.walk_packages(package.__path__, "tts_worker.engine.cosyvoice."):
    if not module.name.endswith("_triton"):  # imported by the first launch on CUDA
        importlib.import_module(module.name)
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.random_bundle import write_random_bundle

bundle = write_random_bundle(sys.argv[1], "cosyvoice3", "tiny", prompt_models=False)
print(bundle.validate().ok, len(bundle.load_weights("flow")), len(TextTokenizer.from_bundle(bundle).encode("hello")))
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""
NOT_THERE = (
    "ruamel pydantic onnx onnxruntime soundfile soxr wetext fastapi transformers torchaudio "
    "hyperpyyaml rich prometheus_client triton"
)


def test_bundle_needs_only_a_pytorch_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path / "x"), *NOT_THERE.split()]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    results, loaded = done.stdout.splitlines()
    assert loaded == ""
    is_valid, tensors, tokens = results.split()
    assert is_valid == "True"
    assert int(tensors) > 50
    assert int(tokens) >= 1


COLLECT = """
import sys

for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it fails
import pytest

sys.exit(pytest.main(["-c", "tests/gpu/pytest.ini", "tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


def test_gpu_tests_need_only_a_pytorch_machine() -> None:
    absent = [*NOT_THERE.split(), "hypothesis", "pytest_asyncio", "pytest_timeout", "uvicorn", "anyio", "httpx", "grpc"]
    command = [sys.executable, "-c", COLLECT, *absent]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    root = Path(__file__).parents[3]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)

    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("::test_") > 10
