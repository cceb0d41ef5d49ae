"""ONNX models of the voices, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT = 1, 2  # names of tensors
_VALUE_NAME = 1  # of an input or output
_ANY_FLOATS = bytes([18, 4, 10, 2, 8, 1])  # its type: a tensor of float32 without a shape
_TENSOR_RAW_DATA, _TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION = 9, 13, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_EXTERNAL = 1

_MIN_WEIGHT_BYTES = 1024
_FOLDER = "session.model_external_initializers_file_folder_path"
_MAPPING_VERSION = (1, 22)


def open_session(
    model: bytes, outputs: Sequence[str], threads: int, file: Path | None = None, vectors: Collection[str] = ()
) -> Any:
    """Load a model for the CPU.

    Args:
        model: A serialized model whose nodes contain no graphs.
        outputs: The tensors to compute, inner ones included.
        threads: Threads of the network.
        file: The file of ``model``. The weights stay in it, mapped: the session takes less than half of the memory, and
            about 5 % more time. The numbers are the same.
        vectors: Inputs of one number that take one for each item instead, too.
    """
    import onnxruntime  # imported late: it takes 0.2 s and other engines do not need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to others
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # the arena never shrinks from its peak and is not faster here
    if file is not None and maps_weights():
        file = file.resolve()  # links may lead out of the folder, which is refused
        options.add_session_config_entry(_FOLDER, str(file.parent))
        options.add_session_config_entry("session.disable_prepacking", "1")  # packed weights are a copy in memory
        model = without_weights(model, file.name)
    return onnxruntime.InferenceSession(
        with_outputs(model, outputs, vectors), options, providers=["CPUExecutionProvider"]
    )


def maps_weights() -> bool:
    """Whether the installed ONNX Runtime maps the weights of a model that it gets as bytes."""
    import onnxruntime

    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) >= _MAPPING_VERSION


def with_outputs(model: bytes, outputs: Sequence[str], vectors: Collection[str] = ()) -> bytes:
    """Return a serialized model that computes ``outputs`` only, without the nodes that they do not need.

    ONNX Runtime computes every node, even if nothing reads its result. This needs no ONNX library, and the file on disk
    retains its known hash. Nodes are in topological order, and none may contain a graph, which could read any tensor.
    The inputs ``vectors`` are declared as float32 of any shape. Source: protobuf encoding; onnx.proto.
    """

    def rewrite(graph: memoryview, _: int) -> Iterator[memoryview | bytes]:
        needed = {name.encode() for name in outputs}
        kept: list[memoryview | bytes] = []
        for number, field, content, _ in reversed(list(_fields(graph))):
            if number == _GRAPH_NODE:
                tensors = [(kind, bytes(name)) for kind, _, name, _ in _fields(content)]
                if not any(kind == _NODE_OUTPUT and name in needed for kind, name in tensors):
                    continue
                needed.update(name for kind, name in tensors if kind == _NODE_INPUT)
            if number == _GRAPH_INPUT and (name := _name_of(content)) in vectors:
                kept.append(_field(_GRAPH_INPUT, _field(_VALUE_NAME, name.encode()) + _ANY_FLOATS))
            elif number != _GRAPH_OUTPUT:
                kept.append(field)
        yield from reversed(kept)
        yield from (_field(_GRAPH_OUTPUT, _field(_VALUE_NAME, name.encode())) for name in outputs)

    return _with_graph(model, rewrite)


def without_weights(model: bytes, file: str) -> bytes:
    """Return a serialized model whose large weights are references into its own file, named ``file``."""

    def rewrite(graph: memoryview, offset: int) -> Iterator[memoryview | bytes]:
        for number, field, content, at in _fields(graph, offset):
            yield _field(number, _without_data(content, at, file)) if number == _GRAPH_INITIALIZER else field

    return _with_graph(model, rewrite)


def _with_graph(model: bytes, rewrite: Callable[[memoryview, int], Iterable[memoryview | bytes]]) -> bytes:
    """Return a serialized model whose graph has the fields that ``rewrite`` makes of it and its offset in ``model``."""
    return b"".join(
        _field(number, b"".join(rewrite(content, at))) if number == _MODEL_GRAPH else field
        for number, field, content, at in _fields(memoryview(model))
    )


def _without_data(tensor: memoryview, offset: int, file: str) -> bytes:
    parts: list[memoryview | bytes] = []
    location: memoryview | bytes = b""
    for number, field, content, at in _fields(tensor, offset):
        if number == _TENSOR_RAW_DATA and len(content) >= _MIN_WEIGHT_BYTES:
            for key, value in (("location", file), ("offset", f"{at}"), ("length", f"{len(content)}")):
                entry = _field(_ENTRY_KEY, key.encode()) + _field(_ENTRY_VALUE, value.encode())
                parts.append(_field(_TENSOR_EXTERNAL_DATA, entry))
            location = bytes([_TENSOR_DATA_LOCATION << 3, _EXTERNAL])
        elif number == _TENSOR_DATA_LOCATION:
            location = location or field
        else:
            parts.append(field)
    return b"".join((*parts, location))


def _fields(message: memoryview, offset: int = 0) -> Iterator[tuple[int, memoryview, memoryview, int]]:
    """Yield the fields of a message that has none of fixed width: number, encoding, content, and where that begins.

    Args:
        message: The encoding.
        offset: Where it begins.
    """
    end = 0
    while end < len(message):
        begin = end
        tag, end = _read_varint(message, begin)
        value, end = _read_varint(message, end)
        content = end
        if tag & 7:  # not a number but the length of what follows
            end += value
        yield tag >> 3, message[begin:end], message[content:end], offset + content


def _name_of(value: memoryview) -> str:
    return next(bytes(content).decode() for number, _, content, _ in _fields(value) if number == _VALUE_NAME)


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
