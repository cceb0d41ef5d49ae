"""ONNX models of the voices, run on the CPU."""

from __future__ import annotations

from typing import Any


def open_session(model: bytes, threads: int) -> Any:
    """Load a model for the CPU, on that many threads."""
    import onnxruntime  # imported late: it takes 0.2 s and other engines do not need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to others
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # the arena never shrinks from its peak and is not faster here
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def extra_output(tensor: str) -> bytes:
    """Build bytes that, appended to a serialized ONNX model, add ``tensor`` to the outputs of its graph.

    Protobuf merges a message field that occurs twice and concatenates repeated fields, so a second ``ModelProto.graph``
    with a single output extends the first. This needs no ONNX library, and the file on disk retains its known hash.
    Source: protobuf encoding, "Last One Wins"; onnx.proto.
    """
    name = tensor.encode()
    value_info = _field(1, name)  # ValueInfoProto.name
    graph = _field(12, value_info)  # GraphProto.output
    return _field(7, graph)  # ModelProto.graph


def _field(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited protobuf field with a one-byte length."""
    if len(payload) > 127:
        raise ValueError("the payload must be at most 127 bytes")
    return bytes([number << 3 | 2, len(payload)]) + payload
