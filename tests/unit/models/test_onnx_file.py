"""A file that is not a whole ONNX model is told apart, and its metadata is read without the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tts_worker.models.bundles.onnx_file import check_onnx, read_metadata


def model(metadata: dict[str, str] | None = None) -> onnx.ModelProto:
    weights = onnx.numpy_helper.from_array(np.arange(600, dtype=np.float32).reshape(2, 300), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 300])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    made = helper.make_model(graph)
    if metadata:
        helper.set_model_props(made, metadata)
    return made


def test_models_of_the_onnx_library_pass_the_check(tmp_path: Path) -> None:
    made = model()
    made.doc_string = "a text " * 50
    onnx.save(made, str(tmp_path / "x.onnx"))

    assert check_onnx(tmp_path / "x.onnx") is None


@settings(deadline=None, max_examples=60)
@given(share=st.floats(0, 0.99))
def test_truncated_onnx_file_is_detected(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    file = tmp_path_factory.mktemp("onnx") / "x.onnx"
    raw = model().SerializeToString()
    cut = int(len(raw) * share)
    file.write_bytes(raw[:cut])

    assert (check_onnx(file) is None) == (_holds_graph(raw[:cut]))


def _holds_graph(raw: bytes) -> bool:
    """Whether the cut happened to be between two fields after the graph."""
    try:
        return bool(onnx.load_from_string(raw).graph.node)
    except Exception:
        return False


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"not a model", b"PK\x03\x04" * 10, b"\xff" * 50, b"\x08\x08", b"\x0a\x02hi"]
)
def test_non_onnx_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(raw)

    assert "ONNX" in (check_onnx(tmp_path / "x.onnx") or "")
    assert check_onnx(tmp_path / "y.onnx") == "is missing"
    assert read_metadata(tmp_path / "x.onnx") == read_metadata(tmp_path / "y.onnx") == {}


@settings(deadline=None, max_examples=30)
@given(metadata=st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=200), max_size=4))
def test_metadata_is_what_the_onnx_library_wrote(
    tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, str]
) -> None:
    file = tmp_path_factory.mktemp("onnx") / "x.onnx"
    onnx.save(model(metadata), str(file))

    assert read_metadata(file) == metadata
