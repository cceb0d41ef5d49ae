"""The parts of the networks that are exported as ONNX graphs, and the files they are written to.

A graph keeps no state: keys and values of the past, convolution contexts and masks are inputs, the new ones outputs, so
that it can stream (unlike the published estimator). The solver's time tables are an input as well: the modulation
weights (42 % of CosyVoice3's estimator) are not in the graph.

A ``GraphSpec`` describes the shape of every input and output once, with names for the sizes that may change. From it
follow the dynamic axes of the file, the example inputs, the shapes of outputs, and TensorRT's optimization profiles.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.flow_encoder import Layer
from tts_worker.engine.cosyvoice.networks.hift import Hift
from tts_worker.errors import BundleError, MissingExtra
from tts_worker.models.bundles.onnx_file import check_onnx, read_metadata

ENCODER = "flow.encoder.onnx"
ESTIMATOR = "flow.estimator.onnx"
VOCODER = "hift.decode.onnx"
VOCODER_CHUNK = "hift.decode.chunk.onnx"
OPSET = 17
WEIGHTS_KEY = "tts_worker.weights"

Sizes = Mapping[str, int]
"""Sizes by name, for one call."""
Shape = tuple["int | str", ...]
"""Shape of a tensor; a name stands for a size that may change from call to call."""


@dataclass(frozen=True)
class GraphSpec:
    """One exported graph.

    Attributes:
        file: Name of the ONNX file.
        part: Weight file the graph belongs to (``flow`` or ``hift``).
        module: The graph as a PyTorch module: tensors to a tuple of tensors.
        inputs: Shapes of the inputs by name, in the order of the module's arguments.
        outputs: Shapes of the outputs by name, in order.
        derive: Completes the sizes of the inputs by those that only outputs have.
        example: Random inputs for some sizes of inputs.
        sizes: Sizes to export and compare with, of the inputs.
    """

    file: str
    part: str
    module: nn.Module
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    derive: Callable[[Sizes], Sizes]
    example: Callable[[Sizes, torch.Generator], tuple[Tensor, ...]]
    sizes: Sizes

    def sizes_of(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """Return the sizes of inputs, by name."""
        found: dict[str, int] = {}
        for shape, tensor in zip(self.inputs.values(), tensors, strict=True):
            found.update({name: size for name, size in zip(shape, tensor.shape, strict=True) if isinstance(name, str)})
        return found

    def output_shapes(self, sizes: Sizes) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs for inputs of ``sizes``."""
        known = self.derive(sizes)
        return [tuple(known[d] if isinstance(d, str) else d for d in shape) for shape in self.outputs.values()]

    @property
    def tolerates_tf32(self) -> bool:
        """Whether products may round their inputs to ten bits; the phases of the vocoder do not tolerate it."""
        return self.part == "flow"

    @property
    def dynamic_axes(self) -> dict[str, dict[int, str]]:
        return {
            name: {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}
            for name, shape in (*self.inputs.items(), *self.outputs.items())
        }


class TensorMemory:
    """A past in plain tensors that collects the new entries in ``new_keys``, ``new_values`` and ``new_context``.

    ``keys, values [layers, N, heads, L, dim]``; ``context [N, S]`` holds all convolution contexts, flattened, in the
    order of their sites.
    """

    def __init__(self, tails: list[tuple[int, int]], context: Tensor, *keys_values: Tensor) -> None:
        self._tails = tails
        self._past = keys_values
        self._contexts = torch.split(context, context_widths(tails), dim=1)
        self._new_keys: list[Tensor] = []
        self._new_values: list[Tensor] = []
        self._new_contexts: list[Tensor] = []

    def left(self, site: int, x: Tensor) -> Tensor:
        channels, width = self._tails[site]
        x = torch.cat([self._contexts[site].reshape(-1, channels, width), x], dim=2)
        self._new_contexts.append(x[:, :, -width:].flatten(1))
        return x

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        k, v = kv.unbind()
        self._new_keys.append(k)
        self._new_values.append(v)
        keys, values = self._past
        return torch.cat([keys[site], k], dim=2), torch.cat([values[site], v], dim=2)

    @property
    def new_keys(self) -> Tensor:
        return torch.stack(self._new_keys)

    @property
    def new_values(self) -> Tensor:
        return torch.stack(self._new_values)

    @property
    def new_context(self) -> Tensor:
        return torch.cat(self._new_contexts, dim=1)


def context_widths(tails: list[tuple[int, int]]) -> list[int]:
    """Sizes of the flattened contexts of each convolution."""
    return [channels * width for channels, width in tails]


class EstimatorGraph(nn.Module):
    """The estimator with its past as plain tensors; every row is a separate utterance."""

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
        memory = TensorMemory(self.tails, context, keys, values)
        # The UNet ignores positions; adding zero times the input keeps it in the graph of either family.
        velocity = self.estimator(x, mu, spk, cond, table, start, mask, memory) + 0 * start[:, None, None]
        return velocity, memory.new_keys, memory.new_values, memory.new_context


class LookaheadGraph(nn.Module):
    """CosyVoice3's token condition: embedding and look-ahead layer."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = [flow]  # not a submodule: the estimator does not belong to this graph
        self.input_embedding = flow.input_embedding
        self.pre_lookahead_layer = flow.pre_lookahead_layer

    def forward(self, tokens: Tensor, known: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        flow = self.flow[0]
        memory = TensorMemory(flow.front_sites.tails, context)
        return Flow.mu(flow, tokens, known, known, known, 0, True, memory), memory.new_context


class EncoderGraph(nn.Module):
    """CosyVoice2's token condition: embedding, conformer encoder and projection.

    ``end [B, T]`` limits what a query sees: the keys whose position is below. ``positions [B, L]`` are those of the
    past tokens, then of the new ones. The position vectors are computed in the graph, so that no length is too long.
    """

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.input_embedding = flow.input_embedding
        self.encoder = flow.encoder
        self.encoder_proj = flow.encoder_proj

    def forward(
        self,
        tokens: Tensor,
        known: Tensor,
        start: Tensor,
        end: Tensor,
        positions: Tensor,
        token_keys: Tensor,
        token_values: Tensor,
        token_context: Tensor,
        frame_keys: Tensor,
        frame_values: Tensor,
        frame_context: Tensor,
    ) -> tuple[Tensor, ...]:
        encoder = self.encoder
        up = encoder.dims.upsample
        past = TensorMemory(encoder.token_sites.tails, token_context, token_keys, token_values)
        frame_past = TensorMemory(encoder.frame_sites.tails, frame_context, frame_keys, frame_values)
        x = self.input_embedding(tokens)
        exists = torch.arange(x.shape[1], device=x.device) < known[:, None]
        x = encoder.embed(x).masked_fill(~exists[:, :, None], 0.0)
        x = encoder.pre_lookahead_layer(x, past)
        x = _attend(encoder.encoders, x, start, end, positions, past)
        x = encoder.up_embed(encoder.up_layer(x, frame_past))
        frames = (positions * up)[:, :, None] + torch.arange(up, device=x.device)
        end = (end * up)[:, :, None].expand(-1, -1, up).flatten(1)
        x = _attend(encoder.up_encoders, x, start * up, end, frames.flatten(1), frame_past)
        mu = self.encoder_proj(encoder.after_norm(x))
        new = [y for memory in (past, frame_past) for y in (memory.new_keys, memory.new_values, memory.new_context)]
        return (mu, *new)


def _attend(
    layers: nn.ModuleList, x: Tensor, start: Tensor, end: Tensor, positions: Tensor, memory: TensorMemory
) -> Tensor:
    """Run layers of relative attention with explicit positions of the keys.

    The layers are written out: those of ``networks/flow_encoder.py`` slice a table of a fixed length.
    """
    span = x.shape[1]
    context = positions.shape[1]
    mask = (positions[:, None] < end[:, :, None])[:, None]  # [B, 1, T, L]
    bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
    query = start[:, None] + torch.arange(span, device=x.device)  # [B, T]
    distance = query[:, :, None] - positions[:, None]  # [B, T, L]
    column = (context - 1 - distance)[:, None].masked_fill(~mask, 0)
    sinusoids = _sinusoids(context, span, x)
    for layer in cast("Iterable[Layer]", layers):
        attention = layer.self_attn
        y = layer.norm_mha(x)
        parts = [linear(y) for linear in (attention.linear_q, attention.linear_k, attention.linear_v)]
        q, k, v = (part.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for part in parts)  # [B, H, T, d]
        keys, values = memory.keys_values(attention.site, torch.stack([k, v]))  # [B, H, L, d]
        by_place = attention.linear_pos(sinusoids).unflatten(-1, (attention.heads, -1)).permute(1, 2, 0)
        scores = ((q + attention.pos_bias_v[:, None]) @ by_place).gather(-1, column.expand(-1, attention.heads, -1, -1))
        scores = (scores + (q + attention.pos_bias_u[:, None]) @ keys.transpose(-1, -2)) * q.shape[-1] ** -0.5
        out = (scores + bias).softmax(-1) @ values
        x = x + attention.linear_out(out.transpose(1, 2).flatten(2))
        x = x + layer.feed_forward(layer.norm_ff(x))
    return x


def _sinusoids(context: int, span: int, like: Tensor) -> Tensor:
    """Position vectors of the distances ``context - 1 .. -(span - 1)``, as ``relative_sinusoids``."""
    dim = like.shape[-1]
    distance = torch.arange(context - 1, -span, -1, dtype=torch.float32, device=like.device)[:, None]
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32, device=like.device) * -(math.log(10000.0) / dim))
    return torch.stack([(distance * rates).sin(), (distance * rates).cos()], dim=-1).flatten(1)


class VocoderGraph(nn.Module):
    """``mel [B, mel, T]`` and ``source [B, 1, n]`` to audio; ``final`` as in ``Hift.decode``."""

    def __init__(self, hift: Hift, final: bool) -> None:
        super().__init__()
        self.hift = hift
        self.final = final

    def forward(self, mel: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        return (Hift.decode(self.hift, mel, source, self.final),)


# -- the graphs of a model --------------------------------------------------------------------------------------------


def graph_specs(networks: Networks) -> dict[str, GraphSpec]:
    """Return the graphs of a model by file name. Only the causal vocoder needs one for chunks within an utterance."""
    specs = [_encoder_spec(networks), _estimator_spec(networks), *_vocoder_specs(networks)]
    return {spec.file: spec for spec in specs}


def random_values(generator: torch.Generator, *shape: int) -> Tensor:
    """Normally distributed values for an example."""
    return torch.randn(shape, generator=generator)


def _estimator_spec(networks: Networks) -> GraphSpec:
    flow = networks.chunked_flow
    dims = flow.dims.unet or flow.dims.dit
    assert dims is not None
    mel = flow.dims.mel
    layers = flow.estimator.sites.attentions
    context = sum(context_widths(flow.estimator.sites.tails))
    table_shape = tuple(flow.time_tables.shape[1:])

    def example(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        rows, frames, past = sizes["rows"], sizes["frames"], sizes["past_frames"]
        x, mu, cond = (random_values(generator, rows, frames, mel) for _ in range(3))
        mask = torch.ones(rows, 1, frames, past + frames, dtype=torch.bool)
        mask[-1, :, :, : past // 2] = False  # as for a younger utterance in the batch
        keys, values = (random_values(generator, layers, rows, dims.heads, past, dims.head_dim) for _ in range(2))
        spk = random_values(generator, rows, mel)
        start = torch.full([rows], past)
        table = flow.time_tables[:1].float().cpu()
        return x, mu, spk, cond, table, start, mask, keys, values, random_values(generator, rows, context)

    keys: Shape = (layers, "rows", dims.heads, "past_frames", dims.head_dim)
    new_keys: Shape = (layers, "rows", dims.heads, "frames", dims.head_dim)
    frames: Shape = ("rows", "frames", mel)
    return GraphSpec(
        ESTIMATOR,
        "flow",
        EstimatorGraph(flow),
        inputs={
            "x": frames,
            "mu": frames,
            "spk": ("rows", mel),
            "cond": frames,
            "table": (1, *table_shape),
            "start": ("rows",),
            "mask": ("rows", 1, "frames", "all_frames"),
            "keys": keys,
            "values": keys,
            "context": ("rows", context),
        },
        outputs={"velocity": frames, "new_keys": new_keys, "new_values": new_keys, "new_context": ("rows", context)},
        derive=lambda sizes: sizes,
        example=example,
        sizes={"rows": 2, "frames": 2 * flow.chunk_frames, "past_frames": flow.chunk_frames},
    )


def _encoder_spec(networks: Networks) -> GraphSpec:
    return (
        _conformer_spec(networks.chunked_flow)
        if networks.chunked_flow.dims.encoder is not None
        else _lookahead_spec(networks.chunked_flow)
    )


def _lookahead_spec(flow: Flow) -> GraphSpec:
    dims = flow.dims
    context = sum(context_widths(flow.front_sites.tails))

    def example(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        rows, tokens = sizes["rows"], sizes["tokens_ahead"]
        ids = torch.randint(0, dims.vocab, (rows, tokens), generator=generator)
        known = torch.full([rows], tokens)
        known[-1] -= 1
        return ids, known, random_values(generator, rows, context)

    return GraphSpec(
        ENCODER,
        "flow",
        LookaheadGraph(flow),
        inputs={"tokens": ("rows", "tokens_ahead"), "known": ("rows",), "context": ("rows", context)},
        outputs={"mu": ("rows", "frames", dims.mel), "new_context": ("rows", context)},
        derive=lambda sizes: {
            **sizes,
            "frames": (sizes["tokens_ahead"] - dims.lookahead_tokens) * dims.frames_per_token,
        },
        example=example,
        sizes={"rows": 2, "tokens_ahead": dims.chunk_tokens + dims.lookahead_tokens},
    )


def _conformer_spec(flow: Flow) -> GraphSpec:
    dims = flow.dims
    encoder = dims.encoder
    assert encoder is not None
    head_dim = encoder.output_size // encoder.heads
    contexts = [sum(context_widths(sites.tails)) for sites in (flow.encoder.token_sites, flow.encoder.frame_sites)]

    def keys(layers: int, length: str) -> Shape:
        return (layers, "rows", encoder.heads, length, head_dim)

    def derive(sizes: Sizes) -> Sizes:
        tokens = sizes["tokens_ahead"] - dims.lookahead_tokens
        return {**sizes, "tokens": tokens, "frames": tokens * dims.frames_per_token}

    def example(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        rows, past = sizes["rows"], sizes["past_tokens"]
        span = derive(sizes)["tokens"]
        ids = torch.randint(0, dims.vocab, (rows, sizes["tokens_ahead"]), generator=generator)
        known = torch.full([rows], sizes["tokens_ahead"])
        known[-1] -= 1
        start = torch.full([rows], past)
        end = start[:, None].expand(-1, span) + span
        positions = torch.arange(past + span).expand(rows, -1).contiguous()
        pasts = [
            random_values(generator, layers, rows, encoder.heads, past * up, head_dim)
            for layers, up in ((encoder.layers, 1), (encoder.up_layers, encoder.upsample))
            for _ in range(2)
        ]
        token_context, frame_context = (random_values(generator, rows, width) for width in contexts)
        return ids, known, start, end.contiguous(), positions, *pasts[:2], token_context, *pasts[2:], frame_context

    return GraphSpec(
        ENCODER,
        "flow",
        EncoderGraph(flow),
        inputs={
            "tokens": ("rows", "tokens_ahead"),
            "known": ("rows",),
            "start": ("rows",),
            "end": ("rows", "tokens"),
            "positions": ("rows", "all_tokens"),
            "token_keys": keys(encoder.layers, "past_tokens"),
            "token_values": keys(encoder.layers, "past_tokens"),
            "token_context": ("rows", contexts[0]),
            "frame_keys": keys(encoder.up_layers, "past_frames"),
            "frame_values": keys(encoder.up_layers, "past_frames"),
            "frame_context": ("rows", contexts[1]),
        },
        outputs={
            "mu": ("rows", "frames", dims.mel),
            "new_token_keys": keys(encoder.layers, "tokens"),
            "new_token_values": keys(encoder.layers, "tokens"),
            "new_token_context": ("rows", contexts[0]),
            "new_frame_keys": keys(encoder.up_layers, "frames"),
            "new_frame_values": keys(encoder.up_layers, "frames"),
            "new_frame_context": ("rows", contexts[1]),
        },
        derive=derive,
        example=example,
        sizes={
            "rows": 2,
            "tokens_ahead": dims.chunk_tokens + dims.lookahead_tokens,
            "past_tokens": 2 * dims.chunk_tokens,
        },
    )


def _vocoder_specs(networks: Networks) -> list[GraphSpec]:
    hift = networks.hift
    dims = hift.dims
    frame = dims.frame_samples
    channels = hift.m_source.channels

    def example(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        rows, frames = sizes["rows"], sizes["frames"]
        mel = random_values(generator, rows, dims.in_channels, frames)
        return mel, 0.1 * random_values(generator, rows, channels, frames * frame)

    def spec(file: str, final: bool) -> GraphSpec:
        ahead = 0 if final else dims.conv_pre_look_right + 1
        return GraphSpec(
            file,
            "hift",
            VocoderGraph(hift, final),
            inputs={"mel": ("rows", dims.in_channels, "frames"), "source": ("rows", channels, "samples")},
            outputs={"audio": ("rows", "audio_samples")},
            derive=lambda sizes: {**sizes, "audio_samples": (sizes["frames"] - ahead) * frame},
            example=example,
            sizes={"rows": 2, "frames": networks.chunked_flow.chunk_frames},
        )

    return [spec(VOCODER, True), spec(VOCODER_CHUNK, False)] if dims.causal else [spec(VOCODER, True)]


# -- files ------------------------------------------------------------------------------------------------------------


def check_file(path: Path, weights: str) -> None:
    """Check an exported graph before it is loaded.

    Args:
        path: The file.
        weights: Fingerprint of the weights that it must have been exported from.

    Raises:
        BundleError: The file is missing, incomplete or was exported from other weights; names it.
    """
    if not path.is_file():
        raise BundleError(f"{path}: is missing; create it with: tts-worker export onnx")
    if problem := check_onnx(path):
        raise BundleError(f"{path}: {problem}; run again: tts-worker export onnx")
    if read_metadata(path).get(WEIGHTS_KEY) != weights:
        raise BundleError(f"{path}: was exported from other weights; run again: tts-worker export onnx")


def export_onnx(networks: Networks, target: Path, parts: Iterable[str] = ("flow", "hift")) -> list[Path]:
    """Write the float32 graphs into the directory ``target`` and return their paths.

    Args:
        networks: Networks on the CPU, in float32.
        target: Directory, created if needed.
        parts: Weight files whose graphs to write.

    Raises:
        MissingExtra: onnx is not installed.
        BundleError: A graph does not pass ONNX's checker.
    """
    target.mkdir(parents=True, exist_ok=True)
    chosen = set(parts)
    return [
        write_graph(spec, target / spec.file, networks.fingerprints[spec.part])
        for spec in graph_specs(networks).values()
        if spec.part in chosen
    ]


def write_graph(spec: GraphSpec, path: Path, weights: str) -> Path:
    """Write one graph of the weights with this fingerprint. Raises as ``export_onnx``."""
    try:
        import onnx
    except ImportError:
        raise MissingExtra("writing ONNX graphs", "export") from None
    partial = path.with_name(f".{path.name}.part")
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer warns about shapes that are constant on purpose
            torch.onnx.export(
                spec.module.eval(),
                spec.example(spec.sizes, torch.Generator().manual_seed(0)),
                str(partial),
                input_names=list(spec.inputs),
                output_names=list(spec.outputs),
                dynamic_axes=spec.dynamic_axes,
                opset_version=OPSET,
                dynamo=False,
            )
        model = onnx.load(str(partial))
        onnx.helper.set_model_props(model, {WEIGHTS_KEY: weights})
        onnx.save(model, str(partial))
        onnx.checker.check_model(str(partial), full_check=True)
        partial.replace(path)
    except onnx.checker.ValidationError as problem:
        raise BundleError(f"{path.name}: the exported graph is not valid: {problem!s:.200}") from None
    except OSError as problem:
        raise BundleError(f"{path} cannot be written: {problem.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return path
