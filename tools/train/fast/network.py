"""The network of the CPU engine (hibari.onnx of hibari-tts 0.2.1) as a torch module, for one voice or several.

It consists of two networks that share no weights: ``pn`` predicts durations, pitch and energy (prosody), ``m`` the
spectra for the vocoder. Modules and parameters have the names of the graph's tensors. The graph has most matrices as
int8 with one scale each, and multiplies them with int8 activations; the module computes with floats.

Voices share the matrices. What a voice has for itself is its vector: all weights with one dimension, which are the
biases of all layers and the scales of all normalizations and blocks (37 249 numbers). A graph of several voices takes
it as the input ``voice``, which costs nothing per frame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from tools.train.fast.teacher import FRAMES_PER_DURATION, SpokenPhrase
from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.hibari.model import FREE_PHASE, HARMONIC, VOICE_INPUT, Spectra, default_model_path
from tts_worker.engine.cpu.hibari.vocoder import BINS

PARTS = FREE_PHASE + 1
_SYMBOLS = 178
_PROSODY_WIDTH, _TEXT_WIDTH, _SPECTRA_WIDTH = 192, 128, 256
_HEADS = 2
_F0_SCALE, _ENERGY_SCALE = 100.0, 5.0
_INT8_MAX = 127
_VOICED_HZ = 60.0
_SIZES = "voice_sizes"
"""Tensor of a graph of several voices: lengths of the parts of a vector."""


class ConvBlock(nn.Module):
    """A ConvNeXt block: depthwise convolution over time, then two linear layers on each position, beside the input."""

    def __init__(self, width: int, inner: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.dw = nn.Conv1d(width, width, kernel, padding=kernel // 2 * dilation, groups=width, dilation=dilation)
        self.norm = nn.LayerNorm(width)
        self.pw1 = nn.Linear(width, inner)
        self.pw2 = nn.Linear(inner, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, C, T]``, ``mask [B, 1, T]``: 0 where there is padding."""
        y: Tensor = self.pw2(F.gelu(self.pw1(self.norm(self.dw(x * mask).transpose(1, 2)))))
        return x + (self.gamma * y).transpose(1, 2)


class SelfAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.in_proj(x).view(batch, length, 3, _HEADS, width // _HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None].bool())
        projected: Tensor = self.out_proj(y.transpose(1, 2).reshape(batch, length, width))
        return projected


class AttentionLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(width)
        self.linear1 = nn.Linear(width, 2 * width)
        self.linear2 = nn.Linear(2 * width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x), mask)
        y: Tensor = self.linear2(F.gelu(self.linear1(self.norm2(x))))
        return x + y


class TextEncoder(nn.Module):
    """Phoneme ids to vectors; the same attention layer is applied ``repeats`` times."""

    def __init__(self, width: int, repeats: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(_SYMBOLS, width)
        self.convs = nn.ModuleList(ConvBlock(width, 2 * width, 5) for _ in range(2))
        self.attn = AttentionLayer(width)
        self.norm = nn.LayerNorm(width)
        self._repeats = repeats

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """``ids [B, L]``, ``mask [B, 1, L]``; returns ``[B, C, L]``."""
        x = self.emb(ids).transpose(1, 2)
        for conv in self.convs:
            x = conv(x, mask)
        x = x.transpose(1, 2)
        for _ in range(self._repeats):
            x = self.attn(x, mask)
        encoded: Tensor = self.norm(x)
        return encoded.transpose(1, 2)


class Prosody(nn.Module):
    """Durations, pitch and energy."""

    def __init__(self) -> None:
        super().__init__()
        width = _PROSODY_WIDTH
        self.text = TextEncoder(width, 6)
        self.dur = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, 1, 1))
        self.pro_in = nn.Conv1d(width, width, 1)
        self.pro = nn.ModuleList(ConvBlock(width, 2 * width, 7, dilation) for dilation in (1, 2, 4, 8, 1, 2))
        self.pro_out = nn.Conv1d(width, 2 * FRAMES_PER_DURATION, 1)

    def encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded text ``[B, C, L]`` and the logarithm of one more than the durations ``[B, L]``."""
        x = self.text(ids, mask)
        return x, self.dur(x * mask)[:, 0]

    def curves(self, encoded: Tensor, durations: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return pitch in Hz and energy, ``[B, 2 T]``, for ``mask [B, 1, T]`` and durations ``[B, L]`` of sum T."""
        x = self.pro_in(spread(encoded, durations, mask.shape[2]))
        for block in self.pro:
            x = block(x, mask)
        both = self.pro_out(x).unflatten(1, (2, FRAMES_PER_DURATION)).transpose(2, 3).flatten(2)
        return _F0_SCALE * both[:, 0], _ENERGY_SCALE * both[:, 1]

    def forward(
        self, ids: Tensor, mask: Tensor, durations: Tensor, frame_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what ``encode`` and ``curves`` do, with the given durations: ``[B, L]``, ``[B, F]``, ``[B, F]``."""
        encoded, logs = self.encode(ids, mask)
        return logs, *self.curves(encoded, durations, frame_mask[:, :, ::FRAMES_PER_DURATION])


class SpectraNet(nn.Module):
    """Spectra for the vocoder from phonemes, durations, pitch and energy."""

    def __init__(self) -> None:
        super().__init__()
        self.text = TextEncoder(_TEXT_WIDTH, 4)
        self.dec_in = nn.Conv1d(_TEXT_WIDTH + 2, _SPECTRA_WIDTH, 7, padding=3)
        self.dec = nn.ModuleList(ConvBlock(_SPECTRA_WIDTH, 3 * _SPECTRA_WIDTH, 7) for _ in range(8))
        self.dec_norm = nn.LayerNorm(_SPECTRA_WIDTH)
        self.head = nn.Linear(_SPECTRA_WIDTH, PARTS * BINS)

    def forward(
        self, ids: Tensor, mask: Tensor, durations: Tensor, f0_hz: Tensor, energy: Tensor, frame_mask: Tensor
    ) -> Tensor:
        """Return ``[B, F, 5, 601]``, as ``Spectra.parts``.

        Args:
            ids: ``[B, L]``.
            mask: ``[B, 1, L]``.
            durations: ``[B, L]``.
            f0_hz: ``[B, F]``.
            energy: ``[B, F]``.
            frame_mask: ``[B, 1, F]``.
        """
        pairs = f0_hz.shape[1] // FRAMES_PER_DURATION
        text = spread(self.text(ids, mask), durations, pairs).repeat_interleave(FRAMES_PER_DURATION, 2)
        pitch = torch.log1p(F.relu(f0_hz))
        x = self.dec_in(torch.cat([text, torch.stack([pitch, energy], 1) / 5], 1) * frame_mask)
        for block in self.dec:
            x = block(x, frame_mask)
        head: Tensor = self.head(self.dec_norm(x.transpose(1, 2))).unflatten(2, (PARTS, BINS))
        return head


class FastNetwork(nn.Module):
    """Both networks."""

    def __init__(self) -> None:
        super().__init__()
        self.pn = Prosody()
        self.m = SpectraNet()

    @torch.no_grad()
    def predict(self, ids: NDArray[np.int64], speed: float = 1.0) -> Spectra:
        """Return what ``HibariModel.predict`` does, but for the rounding of int8."""
        batch = torch.from_numpy(ids)[None]
        mask = torch.ones(1, 1, len(ids))
        encoded, logs = self.pn.encode(batch, mask)
        durations = _durations(logs, speed)
        pairs = int(durations.sum())
        f0_hz, energy = self.pn.curves(encoded, durations, torch.ones(1, 1, pairs))
        frame_mask = torch.ones(1, 1, FRAMES_PER_DURATION * pairs)
        parts = self.m(batch, mask, durations, f0_hz, energy, frame_mask)
        return Spectra(parts[0].numpy(), f0_hz[0].numpy(), durations[0].numpy() * FRAMES_PER_DURATION)


class SharedNetwork(nn.Module):
    """``Prosody`` or ``SpectraNet`` for several voices.

    Args:
        net: Has the matrices that they share.
        vectors: What each has for itself, as ``vector_of`` returns it for ``net``.
    """

    def __init__(self, net: nn.Module, vectors: Sequence[Tensor]) -> None:
        super().__init__()
        self.net = net
        self.vectors = nn.ParameterList(nn.Parameter(vector.clone()) for vector in vectors)
        self._shapes = {name: len(net.get_parameter(name)) for name in vector_names(net)}
        for name in self._shapes:
            net.get_parameter(name).requires_grad_(False)

    def forward(self, voice: int, *inputs: Tensor) -> Any:
        """Return what the network does with the vector of a voice."""
        parts = self.vectors[voice].split(list(self._shapes.values()))
        return functional_call(self.net, dict(zip(self._shapes, parts, strict=True)), inputs)


def vector_names(network: nn.Module) -> list[str]:
    """Names of the weights that each voice has for itself, in the order of its vector."""
    return [name for name, parameter in network.named_parameters() if parameter.ndim == 1]


def vector_of(network: nn.Module) -> Tensor:
    """Return the vector of the voice that a network has."""
    return torch.cat([network.get_parameter(name).detach() for name in vector_names(network)])


@torch.no_grad()
def set_vector(network: nn.Module, vector: Tensor) -> None:
    """Give a network another voice."""
    names = vector_names(network)
    sizes = [len(network.get_parameter(name)) for name in names]
    for name, part in zip(names, vector.split(sizes), strict=True):
        network.get_parameter(name).copy_(part)


def spread(columns: Tensor, durations: Tensor, length: int) -> Tensor:
    """Repeat each column of ``[B, C, L]`` for its duration: ``[B, C, length]``; the last column fills the rest."""
    at = torch.arange(length, device=durations.device).expand(len(durations), -1).contiguous()
    index = torch.searchsorted(durations.cumsum(1), at, right=True).clamp(max=columns.shape[2] - 1)
    return columns.gather(2, index[:, None].expand(-1, columns.shape[1], -1))


# -- weights of the graph ----------------------------------------------------------------------------------------------


def load_network(graph: Path, vector: Floats | None = None) -> FastNetwork:
    """Read the weights of an int8 graph: of one voice, or of several and the vector of one of them."""
    import onnx

    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(graph)).graph.initializer}
    network = FastNetwork()
    quantized = _quantized_tensors()
    state = network.state_dict()
    for name in state.keys() - (() if vector is None else vector_names(network)):
        if (tensor := quantized.get(name)) is not None:
            value = tensors[f"{tensor}_quantized"].astype(np.float32).T * tensors[f"{tensor}_scale"]
        else:
            value = tensors[_graph_name(name)]
        state[name] = torch.from_numpy(np.array(value, np.float32))
    network.load_state_dict(state)
    if vector is not None:
        set_vector(network, torch.from_numpy(vector.astype(np.float32)))
    return network.eval()


def save_network(network: FastNetwork, target: Path) -> None:
    """Write the matrices as an int8 graph, with one symmetric scale each; it gets the vector of a voice as an input."""
    import onnx

    model: Any = onnx.load(str(default_model_path()))
    graph = model.graph
    quantized = _quantized_tensors()
    names = [_graph_name(name) for name in vector_names(network)]
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in network.state_dict().items():
        array = value.detach().cpu().numpy().astype(np.float32)
        if (tensor := quantized.get(name)) is not None:
            scale = np.abs(array).max() / np.float32(_INT8_MAX)
            arrays[f"{tensor}_scale"] = np.asarray(scale, np.float32)
            arrays[f"{tensor}_quantized"] = np.rint(array.T / scale).astype(np.int8)
        else:
            arrays[_graph_name(name)] = array
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    for tensor in kept:
        if tensor.name in arrays:
            values = np.ascontiguousarray(arrays[tensor.name])
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    sizes = np.array([len(arrays[name]) for name in names], np.int64)
    del graph.initializer[:]
    graph.initializer.extend([*kept, onnx.numpy_helper.from_array(sizes, _SIZES)])
    graph.node.insert(0, onnx.helper.make_node("Split", [VOICE_INPUT, _SIZES], names, axis=0))
    graph.input.append(onnx.helper.make_tensor_value_info(VOICE_INPUT, onnx.TensorProto.FLOAT, [int(sizes.sum())]))
    target.write_bytes(model.SerializeToString())


@torch.no_grad()
def mean_spectra(network: FastNetwork, phrases: Sequence[SpokenPhrase]) -> Tensor:
    """Return the mean of what a voice predicts over the louder half of the frames: ``[5, 601]``."""
    found: list[Tensor] = []
    for phrase in phrases:
        ids, durations = (torch.from_numpy(each.astype(np.int64))[None] for each in (phrase.ids, phrase.durations))
        curves = (torch.from_numpy(each)[None] for each in (phrase.f0_hz, phrase.energy))
        masks = torch.ones(1, 1, ids.shape[1]), torch.ones(1, 1, phrase.frames)
        parts = network.m(ids, masks[0], durations, *curves, masks[1])[0]
        levels = parts[:, HARMONIC].mean(1)
        found.append(parts[levels >= levels.median()])
    return torch.cat(found).mean(0)


@torch.no_grad()
def sharpen(network: FastNetwork, mean: Tensor, factor: float) -> None:
    """Move the spectra that a voice predicts away from their mean by a factor, which its vector takes.

    Learning by distances averages what a phoneme may be, so that formants come out flatter than they are. After the
    postfilters of statistical synthesis (global variance: Toda and Tokuda 2007).
    """
    network.m.dec_norm.weight.mul_(factor)
    network.m.dec_norm.bias.mul_(factor)
    bias = network.m.head.bias.view(PARTS, BINS)
    bias.copy_(factor * bias + (1 - factor) * mean)


@torch.no_grad()
def pitch_offset_hz(network: FastNetwork, reference: FastNetwork, phrases: Sequence[SpokenPhrase]) -> float:
    """Mean difference of the pitch of two networks where ``reference`` is voiced, with given durations; 0 if nowhere.

    Rounding matrices to int8 moves the pitch of a voice by up to some Hz, for all phrases alike.
    """
    differences: list[Tensor] = []
    for phrase in phrases:
        ids = torch.from_numpy(phrase.ids.astype(np.int64))[None]
        durations = torch.from_numpy(phrase.durations.astype(np.int64))[None]
        masks = torch.ones(1, 1, ids.shape[1]), torch.ones(1, 1, int(durations.sum()))
        ours, theirs = (
            each.pn.curves(each.pn.encode(ids, masks[0])[0], durations, masks[1])[0] for each in (network, reference)
        )
        differences.append((ours - theirs)[theirs > _VOICED_HZ])
    voiced = torch.cat([*differences, torch.zeros(0)])
    return float(voiced.mean()) if len(voiced) else 0.0


@torch.no_grad()
def shift_pitch(network: FastNetwork, by_hz: float) -> None:
    """Raise the pitch that a network predicts."""
    bias = network.pn.pro_out.bias
    assert bias is not None
    bias[:FRAMES_PER_DURATION] += by_hz / _F0_SCALE


@torch.no_grad()
def tempo(network: FastNetwork, phrases: Sequence[SpokenPhrase]) -> float:
    """How many times as fast a network says phrases, without the pads around them; 1 if there are none."""
    given = predicted = 0
    for phrase in phrases:
        ids = torch.from_numpy(phrase.ids.astype(np.int64))[None]
        _, logs = network.pn.encode(ids, torch.ones(1, 1, ids.shape[1]))
        given += int(phrase.durations[1:-1].sum())
        predicted += int(_durations(logs, 1.0)[0, 1:-1].sum())
    return given / predicted if predicted else 1.0


@torch.no_grad()
def slow_down(network: FastNetwork, factor: float) -> None:
    """Multiply one more than each duration, before its rounding."""
    network.pn.dur.get_parameter("2.bias").add_(math.log(factor))


def _durations(logs: Tensor, speed: float) -> Tensor:
    """Return whole durations from what ``Prosody.encode`` says of them."""
    return ((logs.exp() - 1) / speed).round().clamp(min=1).long()


def _graph_name(parameter: str) -> str:
    return parameter.replace("in_proj.bias", "in_proj_bias")


def _quantized_tensors() -> dict[str, str]:
    """Return the tensor of the graph, without its ending, of each matrix that is stored transposed as int8."""
    names: dict[str, str] = {"m.head.weight": "/head/Transpose_output_0"}

    def add_linear(parameter: str, layer: str) -> None:
        names[f"{parameter}.weight"] = f"{layer}/Transpose_output_0"

    # The exporter numbers layers of equal names through both networks, and operators of the attention.
    for network, conv, layer, attention in (("m", "", "", "_2"), ("pn", "_1", "_4", "_25")):
        for number in range(2):
            for part in ("pw1", "pw2"):
                add_linear(f"{network}.text.convs.{number}.{part}", f"/convs.{number}/{part}{conv}")
        for part in ("linear1", "linear2"):
            add_linear(f"{network}.text.attn.{part}", f"/{part}{layer}")
        add_linear(f"{network}.text.attn.self_attn.out_proj", f"/out_proj{layer}")
        names[f"{network}.text.attn.self_attn.in_proj.weight"] = f"/Transpose{attention}_output_0"
    for network, blocks, count in (("pn", "pro", 6), ("m", "dec", 8)):
        for number in range(count):
            for part in ("pw1", "pw2"):
                add_linear(f"{network}.{blocks}.{number}.{part}", f"/{blocks}.{number}/{part}")
    return names
