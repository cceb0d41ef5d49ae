"""A stand-in for the package ``tensorrt`` whose engines return their inputs, on the memory of tensors on the CPU.

Fact: a constructor of its bindings that gets no object from the library, as without a usable driver, raises TypeError
(https://github.com/NVIDIA/TensorRT/issues/2913).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from types import SimpleNamespace

import pytest
import torch


class FakeTrt:
    """Records what ``NvidiaTensorRt`` asks of the package.

    Args:
        broken: The call or the constructor that fails; ``values`` runs without a result.
        version: Version of the package.
    """

    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=3)
    BuilderFlag = SimpleNamespace(TF32="tf32")

    def __init__(self, broken: str = "", version: str = "10.9.0") -> None:
        self.__version__ = version
        self.broken = broken
        self.calls: list[tuple[object, ...]] = []
        self.Logger = type("Logger", (), {"WARNING": 2, "__init__": lambda *_: self._construct("Logger")})

    def _call(self, *call: object) -> bool:
        self.calls.append(call)
        return call[0] != self.broken

    def _construct(self, name: str) -> None:
        if name == self.broken:
            raise TypeError("pybind11::init(): factory function\nreturned nullptr")

    def Builder(self, _: object) -> SimpleNamespace:
        self._construct("Builder")
        config = SimpleNamespace(
            clear_flag=lambda flag: self._call("clear", flag), add_optimization_profile=lambda _: self._call("profile")
        )
        return SimpleNamespace(
            create_network=lambda flags: self._call("network", flags),
            create_builder_config=lambda: config,
            create_optimization_profile=lambda: SimpleNamespace(
                set_shape=lambda name, *bounds: self._call("shape", name, bounds)
            ),
            build_serialized_network=lambda *_: b"plan" if self._call("build") else None,
        )

    def OnnxParser(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(
            parse_from_file=lambda path: self._call("parse", path),
            num_errors=1,
            get_error=lambda _: SimpleNamespace(desc=lambda: "an unknown operator"),
        )

    def Runtime(self, _: object) -> SimpleNamespace:
        self._construct("Runtime")
        shapes: dict[str, tuple[int, ...]] = {}
        addresses: dict[str, int] = {}

        def set_input_shape(name: str, shape: tuple[int, ...]) -> bool:
            shapes[name] = shape
            return self._call("input", name, shape)

        def set_tensor_address(name: str, address: int) -> None:
            addresses[name] = address
            self._call("address", name, address)

        def execute(stream: int) -> bool:
            if self.broken != "values":
                ((name, shape),) = shapes.items()
                (output,) = addresses.keys() - shapes.keys()
                ctypes.memmove(addresses[output], addresses[name], 4 * math.prod(shape))  # float32
            return self._call("execute", stream)

        context = SimpleNamespace(
            set_input_shape=set_input_shape, set_tensor_address=set_tensor_address, execute_async_v3=execute
        )
        engine = SimpleNamespace(create_execution_context=lambda: context)
        return SimpleNamespace(deserialize_cuda_engine=lambda _: engine if self._call("deserialize") else None)


def use_cpu_as_cuda(patch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's CPU stand for a CUDA device, as far as the back end of TensorRT asks for one."""
    arange = torch.arange
    patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    patch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    patch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Test 5000")
    patch.setattr(torch, "arange", lambda *given, device, **options: arange(*given, **options))
