"""Exports the flow estimator and the vocoder as ONNX graphs, and runs them with ONNX Runtime instead of PyTorch.

Unlike the published estimator graph, this one takes the attention mask, the keys and values of the past and the context
of every convolution, and returns the new ones, so that it can stream. The time is passed as the table computed by
``Flow.prepare``: the modulation weights (42 % of CosyVoice3's estimator) are not in the graph.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.kv_cache import Memory, NoPast, PagedView
from tts_worker.engine.cosyvoice.models.flow import Flow
from tts_worker.engine.cosyvoice.models.hift import Hift
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.errors import BundleError, MissingExtra

ESTIMATOR = "flow.estimator.onnx"
VOCODER = "hift.decode.onnx"
VOCODER_CHUNK = "hift.decode.chunk.onnx"
GRAPHS_DIR = "onnx"  # default directory inside a model directory
OPSET = 17
WEIGHTS_KEY = "tts_worker.weights"
SAMPLED_VALUES = 64
ESTIMATOR_INPUTS = ["x", "mu", "spk", "cond", "table", "start", "mask", "keys", "values", "context"]
ESTIMATOR_OUTPUTS = ["velocity", "new_keys", "new_values", "new_context"]


class TensorMemory:
    """A past in plain tensors that collects the new entries in ``new``.

    ``keys, values [layers, N, heads, L, dim]``; ``context [N, S]`` holds all convolution contexts, flattened, in the
    order of their sites.
    """

    def __init__(self, tails: list[tuple[int, int]], keys: Tensor, values: Tensor, context: Tensor) -> None:
        self._tails = tails
        self._keys = keys
        self._values = values
        self._contexts = torch.split(context, [channels * width for channels, width in tails], dim=1)
        self.new: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])

    def left(self, site: int, x: Tensor) -> Tensor:
        channels, width = self._tails[site]
        x = torch.cat([self._contexts[site].reshape(-1, channels, width), x], dim=2)
        self.new[2].append(x[:, :, -width:].flatten(1))
        return x

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        k, v = kv.unbind()
        self.new[0].append(k)
        self.new[1].append(v)
        return torch.cat([self._keys[site], k], dim=2), torch.cat([self._values[site], v], dim=2)


class EstimatorGraph(nn.Module):
    """The estimator with its past as plain tensors (see ``TensorMemory``); every row is a separate utterance."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.estimator = flow.estimator
        self.tails = flow.estimator.sites.tails

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        table: Tensor,
        start: Tensor,
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
        context: Tensor,
    ) -> tuple[Tensor, ...]:
        memory = TensorMemory(self.tails, keys, values, context)
        # The UNet ignores positions; adding zero times the input keeps it in the graph of either family.
        velocity = self.estimator(x, mu, spk, cond, table, start, mask, memory) + 0 * start[:, None, None]
        return velocity, torch.stack(memory.new[0]), torch.stack(memory.new[1]), torch.cat(memory.new[2], dim=1)


class VocoderGraph(nn.Module):
    """``mel [B, mel, T]`` and ``source [B, 1, n]`` to audio; ``final`` as in ``Hift.decode``."""

    def __init__(self, hift: Hift, final: bool) -> None:
        super().__init__()
        self.hift = hift
        self.final = final

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        return self.hift.decode(mel, source, self.final)


def no_past(flow: Flow, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and context of utterances before their first chunk."""
    shape = flow.dims.unet or flow.dims.dit
    assert shape is not None
    empty = torch.zeros(flow.estimator.sites.attentions, rows, shape.heads, 0, shape.head_dim)
    return empty, empty, torch.zeros(rows, sum(channels * width for channels, width in flow.estimator.sites.tails))


def export_onnx(networks: Networks, target: Path) -> list[Path]:
    """Write the float32 graphs into the directory ``target`` and return their paths.

    Raises:
        MissingExtra: onnx is not installed.
        BundleError: A graph does not pass ONNX's checker.
    """
    target.mkdir(parents=True, exist_ok=True)
    flow = networks.flow
    hift = networks.hift
    config = networks.config
    rows = 2
    frames = 2 * flow.chunk_frames
    mel = config.flow.mel
    keys, _, context = no_past(flow, rows)
    half = keys.new_zeros(*keys.shape[:3], flow.chunk_frames, keys.shape[4])
    x = torch.zeros(rows, frames, mel)
    spk = torch.zeros(rows, mel)
    mask = torch.ones(rows, 1, frames, frames + flow.chunk_frames, dtype=torch.bool)
    start = torch.full([rows], flow.chunk_frames)
    example = (x, x, spk, x, flow.time_tables[:1].cpu(), start, mask, half, half, context)
    axes = {name: {0: "rows", 1: "frames"} for name in ("x", "mu", "cond", "velocity")}
    axes |= {name: {0: "rows"} for name in ("spk", "start", "context", "new_context")}
    axes |= {name: {1: "rows", 3: "past_frames"} for name in ("keys", "values")}
    axes |= {name: {1: "rows", 3: "frames"} for name in ("new_keys", "new_values")}
    axes |= {"mask": {0: "rows", 2: "frames", 3: "all_frames"}}
    written = [_write(EstimatorGraph(flow), example, target / ESTIMATOR, ESTIMATOR_INPUTS, ESTIMATOR_OUTPUTS, axes)]
    vocoder_example = (torch.zeros(1, mel, 20), torch.zeros(1, 1, 20 * config.hift.frame_samples))
    axes = {"mel": {0: "rows", 2: "frames"}, "source": {0: "rows", 2: "samples"}, "audio": {0: "rows", 1: "out"}}
    for name, final in _vocoders(networks).items():
        written.append(
            _write(VocoderGraph(hift, final), vocoder_example, target / name, ["mel", "source"], ["audio"], axes)
        )
    return written


def _write(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic_axes: dict[str, Any],
) -> Path:
    try:
        import onnx
    except ImportError:
        raise MissingExtra("writing ONNX graphs", "export") from None
    partial = path.with_name(f".{path.name}.part")
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns about shapes that are constant on purpose
            torch.onnx.export(
                graph.eval(),
                example,
                str(partial),
                input_names=inputs,
                output_names=outputs,
                dynamic_axes=dynamic_axes,
                opset_version=OPSET,
                dynamo=False,
            )
        model = onnx.load(str(partial))
        onnx.helper.set_model_props(model, {WEIGHTS_KEY: fingerprint(graph)})
        onnx.save(model, str(partial))
        onnx.checker.check_model(str(partial), full_check=True)
        partial.replace(path)
    except onnx.checker.ValidationError as problem:
        raise BundleError(f"{path.name}: the exported graph is not valid: {problem!s:.200}") from None
    finally:
        partial.unlink(missing_ok=True)
    return path


def fingerprint(graph: nn.Module) -> str:
    """Identify the weights of a graph: a hash of names, shapes and sampled values of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(graph.state_dict().items()):
        some = tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLED_VALUES)].float().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + some.contiguous().numpy().tobytes())
    return digest.hexdigest()


def open_session(path: Path, graph: nn.Module, threads: int = 1) -> Any:
    """Open the ONNX Runtime session that replaces ``graph``.

    Raises:
        MissingExtra: ONNX Runtime is not installed.
        BundleError: The file is missing, damaged or was exported from other weights; names it.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("running ONNX graphs", "cosyvoice") from None
    if not path.is_file():
        raise BundleError(f"{path}: is missing; create it with: tts-worker export onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime's errors share no public base
        raise BundleError(f"{path}: onnxruntime cannot load it ({type(problem).__name__})") from None
    if session.get_modelmeta().custom_metadata_map.get(WEIGHTS_KEY) != fingerprint(graph):
        raise BundleError(f"{path}: was exported from other weights; run again: tts-worker export onnx")
    return session


class OnnxEstimator(nn.Module):
    """Replaces the estimator of a flow, for whole sequences and for chunks over the paged past of a stream."""

    def __init__(self, flow: Flow, session: Any) -> None:
        super().__init__()
        self.sites = flow.estimator.sites
        self._flow = [flow]
        self._session = session

    def tables(self, t: Tensor) -> Tensor:
        raise BundleError("the time tables must be computed by PyTorch before the ONNX back end is installed")

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        table: Tensor,
        start: Tensor,
        mask: Tensor | None,
        past: Memory,
    ) -> Tensor:
        branches = x.shape[0] // start.shape[0]
        frames = x.shape[1]
        if isinstance(past, PagedView):
            *cached, columns = past.plain()
        elif isinstance(past, NoPast):
            cached = list(no_past(self._flow[0], x.shape[0]))
            columns = None
        else:
            raise BundleError("the ONNX back end of the flow does not support this memory: set backend to torch")
        if mask is None:  # every key is visible
            mask = torch.ones(start.shape[0], 1, frames, cached[0].shape[3] + frames, dtype=torch.bool, device=x.device)
        elif mask.dtype != torch.bool:
            mask = mask[: start.shape[0]] == 0
        if columns is not None:
            mask = mask.gather(3, columns[:, None, None].expand(-1, -1, frames, -1))
        inputs = (x, mu, spk, cond, table, start.repeat(branches), mask.repeat(branches, 1, 1, 1), *cached)
        values = [_array(tensor, name) for name, tensor in zip(ESTIMATOR_INPUTS, inputs, strict=True)]
        out = self._session.run(None, dict(zip(ESTIMATOR_INPUTS, values, strict=True)))
        velocity, *new = (torch.from_numpy(np.asarray(array)).to(x) for array in out)
        if isinstance(past, PagedView):
            past.store(*new)
        return velocity


def _array(tensor: Tensor, name: str) -> Any:
    """Convert an input to what the float32 graph takes."""
    tensor = tensor if name in ("start", "mask") else tensor.float()
    return tensor.contiguous().cpu().numpy()


def run_on_onnx(networks: Networks, folder: Path, threads: int = 1) -> Networks:
    """Run the flow estimator and the vocoder decoder of ``networks`` from the graphs in ``folder`` (in place)."""
    flow = networks.flow
    hift = networks.hift
    flow.decoder.estimator = OnnxEstimator(flow, open_session(folder / ESTIMATOR, EstimatorGraph(flow), threads))
    sessions = {
        final: open_session(folder / name, VocoderGraph(hift, final), threads)
        for name, final in _vocoders(networks).items()
    }

    def decode(mel: Tensor, source: Tensor, final: bool = True) -> Tensor:
        session = sessions.get(final, sessions[True])
        out = session.run(None, {"mel": mel.contiguous().cpu().numpy(), "source": source.contiguous().cpu().numpy()})
        return torch.from_numpy(np.asarray(out[0])).to(mel)

    hift.decode = decode  # type: ignore[method-assign, assignment]
    return networks


@torch.inference_mode()
def compare_onnx(networks: Networks, folder: Path) -> dict[str, float]:
    """Compare each graph in ``folder`` with PyTorch on one random input.

    Returns:
        Largest absolute difference by file name.

    Raises:
        BundleError: ONNX Runtime cannot run a graph.
        MissingExtra: ONNX Runtime is not installed.
    """
    flow = networks.flow
    hift = networks.hift
    frames = networks.flow.chunk_frames
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    mel = networks.config.flow.mel
    keys, values, context = no_past(flow, 2)
    keys, values = (noise(*t.shape[:3], frames, t.shape[4]) for t in (keys, values))
    estimator_inputs = (
        noise(2, frames, mel),
        noise(2, frames, mel),
        noise(2, mel),
        noise(2, frames, mel),
        flow.time_tables[:1].cpu(),
        torch.full([2], frames),
        torch.ones(2, 1, frames, 2 * frames, dtype=torch.bool),
        keys,
        values,
        torch.randn(context.shape, generator=generator),
    )
    graphs: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {ESTIMATOR: (EstimatorGraph(flow), estimator_inputs)}
    vocoder_inputs = (noise(1, mel, frames), noise(1, 1, frames * networks.config.hift.frame_samples) * 0.1)
    for name, final in _vocoders(networks).items():
        graphs[name] = (VocoderGraph(hift, final), vocoder_inputs)
    differences = {}
    for name, (graph, inputs) in graphs.items():
        session = open_session(folder / name, graph)
        names = [value.name for value in session.get_inputs()]
        expected = graph(*inputs)
        actual = session.run(None, {key: t.numpy() for key, t in zip(names, inputs, strict=True)})
        pairs = zip(expected if isinstance(expected, tuple) else (expected,), actual, strict=True)
        differences[name] = max(float((a - torch.from_numpy(b)).abs().max()) for a, b in pairs)
    return differences


def _vocoders(networks: Networks) -> dict[str, bool]:
    """Vocoder graphs by name, and whether each is for the final chunk; only the causal vocoder needs two."""
    return {VOCODER: True, VOCODER_CHUNK: False} if networks.config.hift.causal else {VOCODER: True}
