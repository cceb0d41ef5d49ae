"""ONNX models of the voices, run on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 11, 12
_NODE_INPUT, _NODE_OUTPUT = 1, 2  # names of tensors
_VALUE_NAME = 1  # of an input or output
_ANY_FLOATS = bytes([18, 4, 10, 2, 8, 1])  # its type: a tensor of float32 without a shape


def open_session(model: bytes, outputs: Sequence[str], threads: int, vectors: Collection[str] = ()) -> Any:
    """Load a model for the CPU.

    Args:
        model: A serialized model whose nodes contain no graphs.
        outputs: The tensors to compute, inner ones included.
        threads: Threads of the network.
        vectors: Inputs of one number that take one for each item instead, too.
    """
    import onnxruntime  # imported late: it takes 0.2 s and other engines do not need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to others
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # the arena never shrinks from its peak and is not faster here
    return onnxruntime.InferenceSession(
        with_outputs(model, outputs, vectors), options, providers=["CPUExecutionProvider"]
    )


def with_outputs(model: bytes, outputs: Sequence[str], vectors: Collection[str] = ()) -> bytes:
    """Return a serialized model that computes ``outputs`` only, without the nodes that they do not need.

    ONNX Runtime computes every node, even if nothing reads its result. This needs no ONNX library, and the file on disk
    retains its known hash. Nodes are in topological order, and none may contain a graph, which could read any tensor.
    The inputs ``vectors`` are declared as float32 of any shape. Source: protobuf encoding; onnx.proto.
    """

    return b"".join(
        _field(number, b"".join(_with_outputs(content, outputs, vectors))) if number == _MODEL_GRAPH else field
        for number, field, content in _fields(memoryview(model))
    )


def _with_outputs(graph: memoryview, outputs: Sequence[str], vectors: Collection[str]) -> Iterator[memoryview | bytes]:
    needed = {name.encode() for name in outputs}
    kept: list[memoryview | bytes] = []
    for number, field, content in reversed(list(_fields(graph))):
        if number == _GRAPH_NODE:
            tensors = [(kind, bytes(name)) for kind, _, name in _fields(content)]
            if not any(kind == _NODE_OUTPUT and name in needed for kind, name in tensors):
                continue
            needed.update(name for kind, name in tensors if kind == _NODE_INPUT)
        if number == _GRAPH_INPUT and (name := _name_of(content)) in vectors:
            kept.append(_field(_GRAPH_INPUT, _field(_VALUE_NAME, name.encode()) + _ANY_FLOATS))
        elif number != _GRAPH_OUTPUT:
            kept.append(field)
    yield from reversed(kept)
    yield from (_field(_GRAPH_OUTPUT, _field(_VALUE_NAME, name.encode())) for name in outputs)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the fields of a message that has none of fixed width: number, encoding, and content."""
    end = 0
    while end < len(message):
        begin = end
        tag, end = _read_varint(message, begin)
        value, end = _read_varint(message, end)
        content = end
        if tag & 7:  # not a number but the length of what follows
            end += value
        yield tag >> 3, message[begin:end], message[content:end]


def _name_of(value: memoryview) -> str:
    return next(bytes(content).decode() for number, _, content in _fields(value) if number == _VALUE_NAME)


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return a number and the position behind it."""
    value = shift = 0
    while message[position] > 127:
        value |= (message[position] & 127) << shift
        shift += 7
        position += 1
    return value | message[position] << shift, position + 1


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes; ``number`` is below 16."""
    length = bytearray()
    rest = len(content)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + content
