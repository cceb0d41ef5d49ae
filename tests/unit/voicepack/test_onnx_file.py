"""ONNX stand-ins are real models for onnx and onnxruntime, and a file that is not whole is told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.voicepack.onnx_file import check_onnx, speaker_encoder, speech_tokenizer


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def tokenizer_model() -> bytes:
    return speech_tokenizer((floats(1, 128, 4) * 300).tobytes(), 128, 6561)


def test_random_speaker_encoder_has_the_campplus_interface() -> None:
    model = speaker_encoder(floats(80, 192).tobytes(), 80, 192)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model)
    features = floats(2, 50, 80)

    out = session.run(None, {session.get_inputs()[0].name: features})[0]

    assert np.allclose(out, np.abs(features).mean(axis=1) @ floats(80, 192), atol=1e-4)


@settings(deadline=None, max_examples=15)
@given(frames=st.integers(1, 400))
def test_random_speech_tokenizer_has_the_real_interface(frames: int) -> None:
    session = onnxruntime.InferenceSession(tokenizer_model())
    names = [value.name for value in session.get_inputs()]
    length = np.array([frames], dtype=np.int32)

    ids = session.run(None, dict(zip(names, (floats(1, 128, frames), length), strict=True)))[0]

    assert ids.dtype == np.int32
    assert ids.shape == (1, -(-frames // 4))
    assert bool(((ids >= 0) & (ids < 6561)).all())
    assert frames < 40 or len(np.unique(ids)) > frames // 8


def test_random_speech_tokenizer_is_valid_onnx(tmp_path: Path) -> None:
    onnx.checker.check_model(tokenizer_model())
    (tmp_path / "x.onnx").write_bytes(tokenizer_model())

    assert check_onnx(tmp_path / "x.onnx") is None


def test_models_of_the_onnx_library_pass_the_check(tmp_path: Path) -> None:
    model = onnx.load_from_string(tokenizer_model())
    model.doc_string = "a text " * 50
    onnx.save(model, str(tmp_path / "x.onnx"))

    assert check_onnx(tmp_path / "x.onnx") is None


@settings(deadline=None, max_examples=60)
@given(share=st.floats(0, 0.99))
def test_truncated_onnx_file_is_detected(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    file = tmp_path_factory.mktemp("onnx") / "x.onnx"
    file.write_bytes(tokenizer_model()[: int(len(tokenizer_model()) * share)])

    assert check_onnx(file) is not None


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"not a model", b"PK\x03\x04" * 10, b"\xff" * 50, b"\x08\x08", b"\x0a\x02hi"]
)
def test_non_onnx_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(raw)

    assert "ONNX" in (check_onnx(tmp_path / "x.onnx") or "")
    assert check_onnx(tmp_path / "y.onnx") == "is missing"
