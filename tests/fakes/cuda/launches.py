"""The official networks as tensors without values that claim to be on CUDA: counts kernel launches without a device.

A tensor of the device "meta" has a shape and no values, so the networks have their official sizes, and whatever needs a
value on the host raises. ``FakeCudaRunner`` counts the launches of every computation that a CUDA graph would capture.
The networks have few of their equal layers: ``at_full_depth`` adds the launches of the others.

    with fake_cuda():
        networks = fake_networks("cosyvoice3", layers=2)
        runner = FakeCudaRunner()
        ...                                 # run the engine's parts on FakeCudaStream() and runner
    runner.counts[key].launches
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.fakes.cuda import claimed_cuda
from tests.unit.cosyvoice.networks import full_config, shallow_config, tiny_bundle
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.bundle import networks
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.bundle.weights import expected_shapes
from tts_worker.engine.cosyvoice.execution.graph_runner import Compute, Tensors
from tts_worker.engine.cosyvoice.execution.streams import HostStream, PendingCopy
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.engine.cosyvoice.networks import kv_cache

T = TypeVar("T")

META = torch.device("meta")

_NO_LAUNCH = frozenset(
    {
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "_unsafe_view",
        "_reshape_alias",
        "scalar_tensor",  # a scalar is an argument of the kernel that uses it
    }
)
_LAUNCHES = {"convolution": 2, "constant_pad_nd": 2, "masked_fill": 2, "scatter": 2, "topk": 3, "index_fill": 2}
"""Launches of operators that take more than one kernel; a copy comes first where the operator is not in place."""
_READS_ROWS = frozenset({"index", "index_select", "embedding", "gather"})
"""Operators that read as many values of their first input as they return, not all of it."""
_WRITES_ROWS = frozenset({"index_put_", "index_copy_", "index_add_", "scatter_"})
"""Operators that write as many values to their first input as their last input holds."""
_ACCESSED_IN_PART = frozenset({("rotate_and_store", "cache"), ("begin_step", "table")})
"""Arguments of fused operators of which a call reads or writes only some rows."""


@dataclass(frozen=True)
class _Shape:
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> _Shape:
        return cls(tuple(tensor.shape), tensor.dtype)

    def empty(self) -> Tensor:
        return torch.empty(self.sizes, dtype=self.dtype, device=META)


_result_shapes: dict[Hashable, Any] = {}


def once_per_shapes(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return fake results of ``compute``, which is called once for arguments of equal shapes."""
    leaves = tree_leaves((args, kwargs))
    key = compute, tuple(_Shape.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    if key in _result_shapes:
        return tree_map(_Shape.empty, _result_shapes[key])
    out = compute(*args, **kwargs)
    _result_shapes[key] = tree_map(_Shape.of, out)
    return out


class HostAccess(AssertionError):
    """A captured computation exchanges data with the host."""


class LaunchCounter(TorchDispatchMode):
    """Counts the kernels that CUDA would launch for what is computed, and the bytes that they move.

    Views are free, and fused operators count as what they launch. Composite operators are decomposed, except attention
    and RMS norm, which CUDA computes in one kernel (``FusedFunctions``).

    Attributes:
        launches: Kernel launches.
        operators: Launches by operator.
        bytes_moved: Bytes read and written by operator, without what fused operators access in part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self.operators: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        namespace, name = func._schema.name.split("::")
        if namespace == ops.NAMESPACE:
            out = self._results(func, args, kwargs)
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=True))
            launches = 2 if name == "slot_attention" and given["splits"] > 1 else 1
            moved = [arg for known, arg in given.items() if (name, known) not in _ACCESSED_IN_PART]
            self.add(name, launches, moved, out)
            return out
        if namespace == "aten":
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if not (func.is_view or namespace == "prim" or name in _NO_LAUNCH):
            self.add(name, _LAUNCHES.get(name, 1), (args, kwargs), out)
        return out

    @staticmethod
    def _results(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        with torch._C.DisableTorchFunction():  # what the composition calls is not counted
            return once_per_shapes(func, *args, **kwargs)

    def add(self, name: str, launches: int, inputs: object, outputs: object) -> None:
        """Count an operator."""
        read = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        written = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
        if not written:
            return
        self.launches += launches
        self.operators[name] += launches
        if name in _WRITES_ROWS:
            written, read = read[-1:], read[1:]
        elif name in _READS_ROWS:
            read = [*read[1:], *written]
        self.bytes_moved[name] += sum(tensor.nbytes for tensor in [*read, *written])


class FusedFunctions(TorchFunctionMode):
    """Replaces functions that CUDA computes in one kernel, and refuses those that exchange data with the host."""

    _HOST = frozenset(
        {torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.new_tensor, Tensor.cpu, Tensor.numpy, Tensor.tolist}
    )

    def __init__(self, counter: LaunchCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        # All of a computation is on one device, so that a copy to any device could be one to the host.
        names_device = any(isinstance(each, str | torch.device) for each in (*args, *kwargs.values()))
        if func in self._HOST or (func is Tensor.to and names_device):
            raise HostAccess(f"{func.__name__} in a captured computation: a graph does not repeat it")
        if func is F.scaled_dot_product_attention:
            query = args[0]
            return self._fused("attention", query.transpose(1, 2), (args, kwargs)).transpose(1, 2)
        if func in (F.rms_norm, torch.rms_norm):
            return self._fused("rms_norm", args[0], (args, kwargs))
        return func(*args, **kwargs)

    def _fused(self, name: str, like: Tensor, inputs: object) -> Tensor:
        out = torch.empty_like(like)  # keeps the order of the dimensions in memory, as the kernels do
        self._counter.add(name, 1, inputs, out)
        return out


def count(compute: Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T, LaunchCounter]:
    """Return what ``compute`` returns, and its counts.

    Raises:
        HostAccess: It exchanges data with the host. Reading a value, which there is not, raises an error of PyTorch.
    """
    counter = LaunchCounter()
    with counter, FusedFunctions(counter):
        return compute(*args, **kwargs), counter


class FakeCudaRunner:
    """A ``GraphRunner`` that counts the launches of each key, as if it captured every computation."""

    fixed_shapes = True

    def __init__(self) -> None:
        self.counts: dict[Hashable, LaunchCounter] = {}

    def run(self, key: Hashable, compute: Compute, inputs: Tensors) -> Tensors:
        compute(*inputs)  # as before a capture: creates what is cached for good
        outputs, self.counts[key] = count(compute, *inputs)
        return outputs

    def capture(self, key: Hashable, compute: Compute, inputs: Tensors) -> None:
        self.run(key, compute, inputs)

    def clear(self) -> None:
        self.counts.clear()


class _FakeCopy:
    """A copy whose values do not exist."""

    ready = True

    def wait(self) -> Tensor:
        raise HostAccess("the tensor has no values")


class FakeCudaStream(HostStream):
    """A stream of tensors without values."""

    def to_device(self, rows: Sequence[Sequence[int]] | Sequence[int]) -> Tensor:
        width = [len(row) for row in rows if isinstance(row, Sequence)][:1]
        return torch.empty([len(rows), *width], dtype=torch.long)

    def to_host(self, tensor: Tensor) -> PendingCopy:
        return _FakeCopy()


@contextmanager
def fake_cuda(*, fused: bool = True) -> Iterator[None]:
    """Create tensors without values that claim to be on CUDA inside the context.

    Their ``device`` is "meta". PyTorch's fake tensors, which name CUDA, compute in Python and take several times as
    long.

    Args:
        fused: Use fused operators (``acceleration.kernels``).
    """

    def allocate(shape: list[int], dtype: torch.dtype, device: object, checked: bool) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    with ExitStack() as stack:
        stack.enter_context(claimed_cuda(fused=fused))
        stack.enter_context(patch.object(kv_cache, "_allocate", allocate))  # maps memory itself on a CPU
        stack.enter_context(patch.object(Networks, "check", lambda self: None))  # reads values
        stack.enter_context(patch.object(networks, "fingerprint", lambda weights: ""))  # reads values, too
        stack.enter_context(META)
        stack.enter_context(torch.no_grad())
        yield


class _FakeBundle:
    """A bundle of weights without values."""

    def __init__(self, config: CosyVoiceConfig) -> None:
        self.config = config

    def load_weights(self, part: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        return {key: torch.empty(shape, dtype=dtype) for key, shape in expected_shapes(self.config, part).items()}


def _with_layers(config: CosyVoiceConfig, layers: int) -> CosyVoiceConfig:
    """Return the configuration with so many layers in the language model and in the middle of the estimator."""
    flow = config.chunked_flow
    if flow.encoder is not None and flow.unet is not None:
        encoder = replace(flow.encoder, layers=1, up_layers=1)
        flow = replace(flow, encoder=encoder, unet=replace(flow.unet, mid_blocks=layers))
    if flow.dit is not None:
        flow = replace(flow, dit=replace(flow.dit, depth=layers))
    return replace(config, lm=replace(config.qwen, layers=layers), flow=flow)


def at_full_depth(one: int, two: int, depth: int) -> int:
    """Return the launches of ``depth`` equal layers, of what launches ``one`` with one and ``two`` with two of them."""
    assert 0 < one < two
    return one + (depth - 1) * (two - one)


@lru_cache
def fake_networks(family: str, *, layers: int | None = None, half: bool = True) -> Networks:
    """Return the networks with one solver step to save time. Call it inside ``fake_cuda``.

    Shared: tests must not change them.

    Args:
        family: Family of the model.
        layers: Equal layers of the official networks, or None for the tiny ones, for tests that count no launches.
        half: Whether language model and estimator are in bfloat16.
    """
    config = shallow_config(tiny_bundle(family).config) if layers is None else _with_layers(full_config(family), layers)
    bundle: Any = _FakeBundle(replace(config, flow=replace(config.flow, steps=1)))
    return load_networks(bundle, META, half=half)
