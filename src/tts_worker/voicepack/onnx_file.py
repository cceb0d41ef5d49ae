"""ONNX files without the onnx package: a completeness check, and a writer for the small models of random bundles.

An ONNX file is one protobuf message (https://onnx.ai/onnx/repo-docs/IR.html); only a few field numbers of
``onnx.proto`` are needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

MAX_FIELDS = 1000


def check_onnx(path: Path) -> str | None:
    """Check that the outermost message is complete and has a graph; reads a few bytes only.

    Returns:
        The problem, or None.
    """
    if not path.is_file():
        return "is missing"
    size_bytes = path.stat().st_size
    graph = False
    fields = 0
    with path.open("rb") as file:
        while file.tell() < size_bytes and fields < MAX_FIELDS:
            fields += 1
            tag = _read_varint(file)
            if tag is None or tag >> 3 == 0:
                return "is not an ONNX file"
            if tag & 7 == 2:
                length = _read_varint(file)
                if length is None or file.tell() + length > size_bytes:
                    return "is truncated" if fields > 1 else "is not an ONNX file, or is truncated"
                graph = graph or tag >> 3 == 7
                file.seek(length, 1)
            elif tag & 7 == 0:
                if _read_varint(file) is None:
                    return "is truncated"
            else:
                return "is not an ONNX file"
    return None if graph else "is not an ONNX file, or is truncated"


def _read_varint(file: BinaryIO) -> int | None:
    """Read a protobuf varint; None at the end of the file or if it is longer than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


# TensorProto.DataType
FLOAT = 1
INT32 = 6
INT64 = 7


def speaker_encoder(weights: bytes, mel_bins: int, size: int) -> bytes:
    """Build a model with the signature of CAM++: float ``[B, T, mel_bins]`` -> float ``[B, size]``.

    It multiplies the mean absolute value over time by the weights.

    Args:
        weights: float32 ``[mel_bins, size]``, row-major.
        mel_bins: Input bands.
        size: Embedding size.
    """
    nodes = [
        _node("Abs", ["input"], ["deviation"]),
        _node("ReduceMean", ["deviation"], ["mean"], _ints("axes", [1]), _int("keepdims", 0)),
        _node("MatMul", ["mean", "weights"], ["output"]),
    ]
    return _model(
        nodes,
        [_tensor("weights", FLOAT, [mel_bins, size], weights)],
        [_value("input", FLOAT, ["B", "T", mel_bins])],
        [_value("output", FLOAT, ["B", size])],
    )


def speech_tokenizer(weights: bytes, mel_bins: int, codes: int) -> bytes:
    """Build a model with the signature of the speech tokenizer.

    Inputs are float ``[1, mel_bins, T]`` and int32 ``[1]``; the output is int32 ids ``[1, ceil(T / 4)]`` in
    ``[0, codes)``.

    Args:
        weights: float32 ``[1, mel_bins, 4]``.
        mel_bins: Input bands.
        codes: Number of ids.
    """
    nodes = [
        _node("Conv", ["feats", "weights"], ["score"], _ints("strides", [4]), _ints("pads", [1, 2])),
        _node("Abs", ["score"], ["size"]),
        _node("Cast", ["size"], ["whole"], _int("to", INT32)),
        _node("Mod", ["whole", "codes"], ["id"]),
        _node("Squeeze", ["id", "axis"], ["indices"]),
    ]
    return _model(
        nodes,
        [
            _tensor("weights", FLOAT, [1, mel_bins, 4], weights),
            _tensor("codes", INT32, [1], codes.to_bytes(4, "little")),
            _tensor("axis", INT64, [1], (1).to_bytes(8, "little")),
        ],
        [_value("feats", FLOAT, [1, mel_bins, "T"]), _value("feats_length", INT32, [1])],
        [_value("indices", INT32, [1, "N"])],
    )


def _model(nodes: list[bytes], initializers: list[bytes], inputs: list[bytes], outputs: list[bytes]) -> bytes:
    parts = [(1, nodes), (2, [b"stand_in"]), (5, initializers), (11, inputs), (12, outputs)]
    graph = b"".join(_field(number, item) for number, items in parts for item in items)
    opset = _field(1, b"") + _number(2, 13)
    return _number(1, 8) + _field(2, b"tts-worker") + _field(7, graph) + _field(8, opset)


def _node(op: str, inputs: list[str], outputs: list[str], *attributes: bytes) -> bytes:
    names = [_field(1, name.encode()) for name in inputs] + [_field(2, name.encode()) for name in outputs]
    return b"".join([*names, _field(4, op.encode()), *(_field(5, attribute) for attribute in attributes)])


def _int(name: str, value: int) -> bytes:
    return _field(1, name.encode()) + _number(3, value) + _number(20, 2)


def _ints(name: str, values: list[int]) -> bytes:
    return _field(1, name.encode()) + b"".join(_number(8, value) for value in values) + _number(20, 7)


def _tensor(name: str, dtype: int, shape: list[int], raw: bytes) -> bytes:
    dims = b"".join(_number(1, size) for size in shape)
    return dims + _number(2, dtype) + _field(8, name.encode()) + _field(9, raw)


def _value(name: str, dtype: int, shape: list[int | str]) -> bytes:
    dims = (_number(1, size) if isinstance(size, int) else _field(2, size.encode()) for size in shape)
    kind = _number(1, dtype) + _field(2, b"".join(_field(1, dim) for dim in dims))
    return _field(1, name.encode()) + _field(2, _field(1, kind))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
