"""The models of the CPU voices compute only what the engine reads."""

from __future__ import annotations

from pathlib import Path

import hibari
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tts_worker.engine.cpu.hibari.model import OUTPUTS
from tts_worker.engine.cpu.phrases.onnx_session import open_session, with_outputs


def chain(*, doc: str = "") -> bytes:
    """``x`` -> ``a`` -> ``b`` -> ``y``, and ``a`` -> ``left`` and ``right``; all three ends are outputs."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Abs", ["b"], ["y"]),
        helper.make_node("Split", ["a"], ["left", "right"], num_outputs=2),
    ]
    x, *outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in ("x", "y", "left", "right")
    )
    model = helper.make_model(
        helper.make_graph(nodes, "chain", [x], outputs, doc_string=doc),
        ir_version=9,
        opset_imports=[helper.make_opsetid("", 18)],
    )
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("outputs", "operators"),
    [
        (("y",), ["Relu", "Neg", "Abs"]),
        (("b",), ["Relu", "Neg"]),
        (("right",), ["Relu", "Split"]),
        (("a", "y"), ["Relu", "Neg", "Abs"]),
    ],
)
def test_unused_nodes_are_dropped(outputs: tuple[str, ...], operators: list[str]) -> None:
    graph = onnx.load_from_string(with_outputs(chain(), outputs)).graph
    assert [node.op_type for node in graph.node] == operators
    assert tuple(output.name for output in graph.output) == outputs


@given(st.integers(0, 1 << 15))
def test_other_fields_are_unchanged(length: int) -> None:
    original, changed = (
        onnx.load_from_string(data) for data in (chain(doc="x" * length), with_outputs(chain(doc="x" * length), ("b",)))
    )
    for model in (original, changed):
        del model.graph.node[:]
        del model.graph.output[:]
    assert original == changed


def test_inner_tensor_can_be_computed() -> None:
    (value,) = open_session(chain(), ("b",), 1).run(("b",), {"x": np.array([-1, 2], np.float32)})
    assert value.tolist() == [0, -2]


def test_hibari_computes_no_declared_spectra() -> None:
    """They are a transposed copy of an inner tensor, which is what the vocoder reads."""
    data = (Path(hibari.__file__).parent / "assets" / "hibari.onnx").read_bytes()
    graph = onnx.load_from_string(with_outputs(data, OUTPUTS)).graph
    assert tuple(output.name for output in graph.output) == OUTPUTS
    assert not [node.name for node in graph.node if "lh" in node.output or "/head/Add_output_0" in node.input]
