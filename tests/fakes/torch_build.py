"""A build of PyTorch, as far as ``doctor`` looks at it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch


def fake_torch(cuda: str | None, *, device: bool = False, captures: bool = True) -> Any:
    class Counter:
        def __iadd__(self, _: int) -> Counter:
            return self

        def tolist(self) -> list[float]:
            return [1.0]

    def graph(_: object, *, capture_error_mode: str) -> contextlib.AbstractContextManager[None]:
        if not captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        return contextlib.nullcontext()

    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        device=torch.device,
        zeros=lambda *_, **__: Counter(),
        cuda=SimpleNamespace(
            is_available=lambda: device,
            device_count=lambda: 1,
            get_device_name=lambda _: "NVIDIA Test 5000",
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: None),
            graph=graph,
            device=lambda _: contextlib.nullcontext(),
        ),
    )
