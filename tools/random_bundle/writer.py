"""Model directories with random weights in the official layout, with realistic activations; the output is noise.

For tests, benchmarks and trials without the 2 GB download.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.random_bundle.v1 import V1_LM_SIZES, v1_yaml, write_whisper_vocabulary
from tools.random_bundle.yaml_values import SAMPLING, SOLVER
from tts_worker.engine.cosyvoice.bundle.config import V1, V2, V3, YAML_NAMES
from tts_worker.engine.cosyvoice.bundle.directory import (
    RANDOM_WEIGHTS_MARKER,
    TEXT_MODEL_DIR,
    WHISPER_VOCABULARY,
    Bundle,
)
from tts_worker.engine.cosyvoice.bundle.weights import PARTS, expected_shapes
from tts_worker.engine.cosyvoice.tokens.tokenizer import special_tokens
from tts_worker.engine.cosyvoice.voices.features import WHISPER_RATE_HZ, WhisperMel
from tts_worker.errors import BundleError, ConfigError, MissingExtra

LOGIT_STD = 3.5  # gives a nucleus of some ids, like trained weights; flat logits would slow down sampling
LOUDNESS = 0.0  # mean log magnitude of the vocoder's spectrum: audible and far from clipping
PITCH_HZ = 150.0
PITCH_SPREAD_HZ = 30.0
FBANK_BINS = 80
WHISPER_BINS = 128
# Old enough for every ONNX Runtime that is supported.
PROMPT_MODEL_OPSET = 13
PROMPT_MODEL_IR = 8


@dataclass(frozen=True)
class Size:
    """Widths and depths. ``text_rows``: None for as many as the small tokenizer needs."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    text_rows: int | None
    encoder: tuple[int, int, int, int]  # width, heads, ffn, blocks
    unet: tuple[int, int, int, int, int]  # channels, heads, head size, blocks, mid stages
    lookahead: int
    dit: tuple[int, int, int, int]  # width, depth, heads, head size
    vocoder: int
    pitch: int


SIZES = {
    "full": Size(
        896, 4864, 24, 14, 2, 151936, (512, 8, 2048, 6), (256, 8, 64, 4, 12), 1024, (1024, 22, 16, 64), 512, 512
    ),
    "mid": Size(256, 1024, 6, 4, 2, None, (256, 4, 512, 3), (128, 4, 32, 2, 4), 256, (256, 6, 4, 64), 128, 128),
    "tiny": Size(32, 80, 2, 4, 2, None, (48, 4, 96, 2), (32, 2, 16, 1, 2), 64, (64, 3, 4, 16), 32, 16),
}


def write_random_bundle(
    path: str | Path, family: str, size: str = "tiny", seed: int = 0, *, prompt_models: bool | None = None
) -> Bundle:
    """Write a model directory with random weights. The same arguments give the same files.

    Args:
        path: A new or empty directory.
        family: ``cosyvoice1``, ``cosyvoice2`` or ``cosyvoice3``.
        size: ``full``, ``mid`` or ``tiny``. ``full`` takes about 2.6 GB of disk (v3: 3.5) and as much memory as its
            largest file.
        seed: Seed of the weights.
        prompt_models: Whether to write the prompt models, which only adding a voice needs. They take the onnx package;
            None writes them if it is installed.

    Raises:
        ConfigError: Unknown family or size, or the directory is not empty.
        BundleError: A file cannot be written.
        MissingExtra: ``prompt_models`` without the onnx package.
    """
    path = Path(path)
    if family not in (V1, V2, V3):
        raise ConfigError(f"family: must be {V1}, {V2} or {V3}")
    if size not in SIZES:
        raise ConfigError(f"size: must be one of: {', '.join(SIZES)}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path}: exists already; random weights are only written to a new or empty directory")
    has_onnx = find_spec("onnx") is not None
    if prompt_models and not has_onnx:
        raise MissingExtra("writing prompt models", "export")
    generator = torch.Generator().manual_seed(seed)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / RANDOM_WEIGHTS_MARKER).write_text("The weights in this directory are random: the output is noise.\n")
        if family == V1:
            write_whisper_vocabulary(path / WHISPER_VOCABULARY)
        else:
            _write_text_model(path / TEXT_MODEL_DIR, family, SIZES[size])
        yaml_name = next(name for name, named in YAML_NAMES.items() if named == family)
        (path / yaml_name).write_text(config_text(family, size), "utf-8")
        (path / "configuration.json").write_text('{"framework": "Pytorch", "task": "text-to-speech"}\n')
        bundle = Bundle.open(path)
        _write_voice_parts(bundle, generator, with_models=has_onnx if prompt_models is None else prompt_models)
        for part in PARTS:
            torch.save(_weights(bundle, part, generator), path / f"{part}.pt")
    except OSError as error:
        raise BundleError(f"{path}: cannot be written ({error.strerror})") from None
    return bundle


def _write_voice_parts(bundle: Bundle, generator: torch.Generator, *, with_models: bool) -> None:
    """Write one speaker, and prompt models with the inputs and outputs of the real ones."""
    spk = bundle.config.flow.spk_embed
    encoder = torch.randn(FBANK_BINS, spk, generator=generator) / FBANK_BINS**0.5
    frames = WHISPER_RATE_HZ // WhisperMel.hop // bundle.config.token_rate_hz  # per token
    codes = torch.randn(1, WHISPER_BINS, frames, generator=generator) * 300  # scores of a few thousand, taken modulo
    if with_models:
        bundle.campplus.write_bytes(speaker_encoder(encoder.numpy()))
        bundle.speech_tokenizer.write_bytes(speech_tokenizer(codes.numpy(), bundle.config.flow.vocab))
    torch.save({"random": {"embedding": torch.randn(1, spk, generator=generator)}}, bundle.speaker_info)


def speaker_encoder(weights: np.ndarray) -> bytes:
    """Build a model with the signature of CAM++: float ``[B, T, bins]`` -> float ``[B, size]``.

    It multiplies the mean absolute value over time by ``weights [bins, size]``.
    """
    import onnx

    bins, size = weights.shape
    nodes = [
        onnx.helper.make_node("Abs", ["input"], ["deviation"]),
        onnx.helper.make_node("ReduceMean", ["deviation"], ["mean"], axes=[1], keepdims=0),
        onnx.helper.make_node("MatMul", ["mean", "weights"], ["output"]),
    ]
    tensor_type = onnx.TensorProto
    inputs = [onnx.helper.make_tensor_value_info("input", tensor_type.FLOAT, ["B", "T", bins])]
    outputs = [onnx.helper.make_tensor_value_info("output", tensor_type.FLOAT, ["B", size])]
    return _model(nodes, {"weights": weights}, inputs, outputs)


def speech_tokenizer(weights: np.ndarray, codes: int) -> bytes:
    """Build a model with the signature of the speech tokenizer.

    Inputs are float ``[1, bins, T]`` and int32 ``[1]``; the output is int32 ids ``[1, ceil(T / n)]`` in ``[0, codes)``.

    Args:
        weights: ``[1, bins, n]``.
        codes: Number of ids.
    """
    import onnx

    tensor_type = onnx.TensorProto
    stride = weights.shape[2]
    pads = [(stride - 1) // 2, stride // 2]
    nodes = [
        onnx.helper.make_node("Conv", ["feats", "weights"], ["score"], strides=[stride], pads=pads),
        onnx.helper.make_node("Abs", ["score"], ["size"]),
        onnx.helper.make_node("Cast", ["size"], ["whole"], to=tensor_type.INT32),
        onnx.helper.make_node("Mod", ["whole", "codes"], ["id"]),
        onnx.helper.make_node("Squeeze", ["id", "axis"], ["indices"]),
    ]
    tensors = {
        "weights": weights,
        "codes": np.array([codes], dtype=np.int32),
        "axis": np.array([1], dtype=np.int64),
    }
    inputs = [
        onnx.helper.make_tensor_value_info("feats", tensor_type.FLOAT, [1, weights.shape[1], "T"]),
        onnx.helper.make_tensor_value_info("feats_length", tensor_type.INT32, [1]),
    ]
    outputs = [onnx.helper.make_tensor_value_info("indices", tensor_type.INT32, [1, "N"])]
    return _model(nodes, tensors, inputs, outputs)


def _model(nodes: list[Any], tensors: dict[str, np.ndarray], inputs: list[Any], outputs: list[Any]) -> bytes:
    import onnx

    values = [onnx.numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in tensors.items()]
    graph = onnx.helper.make_graph(nodes, "random", inputs, outputs, values)
    opset = onnx.helper.make_opsetid("", PROMPT_MODEL_OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=PROMPT_MODEL_IR)
    return bytes(model.SerializeToString(deterministic=True))


def _weights(bundle: Bundle, part: str, generator: torch.Generator) -> dict[str, Tensor]:
    shapes = expected_shapes(bundle.config, part)
    weights: dict[str, Tensor] = {}
    for key, shape in shapes.items():
        if key == "llm.model.lm_head.weight":
            weights[key] = weights["llm.model.model.embed_tokens.weight"]  # one storage, as published
        elif key.endswith("inv_freq"):
            weights[key] = 1.0 / 10_000.0 ** (torch.arange(shape[0], dtype=torch.float32) / shape[0])
        else:
            weights[key] = _tensor(key, shape, generator)
    for key, value in weights.items():
        if key.endswith("original0"):  # this gain makes the weight equal to its direction
            direction = weights[key.removesuffix("0") + "1"]
            value.copy_(direction.flatten(1).norm(dim=1).reshape(value.shape))
    return weights


def _tensor(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A weight scaled by its fan-in, so that activations keep their magnitude; gains are near 1."""
    name = key.rpartition(".")[2]
    noise = torch.empty(shape).normal_(generator=generator)
    if key == "conv_post.bias":
        noise.mul_(0.1)[: shape[0] // 2] += LOUDNESS
        return noise
    if key == "f0_predictor.classifier.bias":
        return torch.full(shape, PITCH_HZ)
    if name == "alpha" or (name == "weight" and len(shape) == 1):
        return noise.mul_(0.05).add_(1.0)  # norms, and the frequencies of Snake, which must not be 0
    if len(shape) == 1 or "pos_bias" in name:
        return noise.mul_(0.02)
    if key.endswith(("embed_tokens.weight", "speech_embedding.weight", "llm_embedding.weight")):
        return noise.mul_(0.05)
    if key == "input_embedding.weight":
        return noise
    gain = {
        "llm_decoder.weight": LOGIT_STD,
        "f0_predictor.classifier.weight": PITCH_SPREAD_HZ,
        "conv_post.parametrizations.weight.original1": 0.1,
    }.get(key, 0.5 if "attn_norm" in key or "norm_out" in key else 1.0)
    return noise.mul_(gain / math.sqrt(math.prod(shape[1:])))


def _write_text_model(directory: Path, family: str, size: Size) -> None:
    """Write a byte-level BPE tokenizer: all bytes and some frequent English merges."""
    directory.mkdir()
    symbols = [*_byte_symbols()]
    vocab = {symbol: i for i, symbol in enumerate(sorted(symbols))}
    merges = []
    for word in _WORDS.split():
        prefix = word[0]
        for letter in word[1:]:
            if prefix + letter not in vocab:
                vocab[prefix + letter] = len(vocab)
                merges.append(f"{prefix} {letter}")
            prefix += letter
    base = special_tokens(family)[:3]
    total = len(vocab) + len(special_tokens(family))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "vocab_size": size.text_rows or -(-total // 128) * 128,
    }
    added = {
        str(len(vocab) + i): {"content": token, "normalized": False, "special": True} for i, token in enumerate(base)
    }
    tokenizer = {"added_tokens_decoder": added, "eos_token": base[0], "tokenizer_class": "Qwen2Tokenizer"}
    for name, table in (("config.json", config), ("vocab.json", vocab), ("tokenizer_config.json", tokenizer)):
        (directory / name).write_text(json.dumps(table, ensure_ascii=False, indent=1) + "\n", "utf-8")
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")


_WORDS = """
Ġthe Ġand Ġto Ġof Ġyou Ġit Ġis Ġhello Ġworld ing ed er ion ent st th he in re on at en or es ou ll ly Ġa Ġs Ġw Ġc Ġb
Ġm Ġf Ġd Ġp Hello The
"""


def _byte_symbols() -> list[str]:
    """The 256 printable characters that represent bytes in the vocabularies of GPT-2 and Qwen."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*map(chr, plain), *(chr(256 + i) for i in range(256 - len(plain)))]


def config_text(family: str, size_name: str) -> str:
    size = SIZES[size_name]
    if family == V1:
        return v1_yaml(V1_LM_SIZES[size_name], size.encoder, size.unet, size.vocoder, size.pitch)
    llm, flow, hift = (
        ("CosyVoice3LM", "CausalMaskedDiffWithDiT", "CausalHiFTGenerator")
        if family == V3
        else ("Qwen2LM", "CausalMaskedDiffWithXvec", "HiFTGenerator")
    )
    causal = family == V3
    return f"""# Random weights in the official layout.
sample_rate: 24000
llm_input_size: {size.hidden}
llm_output_size: {size.hidden}
spk_embed_dim: 192
qwen_pretrain_path: ''
token_frame_rate: 25
token_mel_ratio: 2
chunk_size: 25
num_decoding_left_chunks: -1

llm: !new:cosyvoice.llm.llm.{llm}
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    speech_token_size: 6561
    length_normalized_loss: True
    lsm_weight: 0
    mix_ratio: [5, 15]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
{SAMPLING}

flow: !new:cosyvoice.flow.flow.{flow}
    input_size: {80 if causal else size.encoder[0]}
    output_size: 80
    spk_embed_dim: !ref <spk_embed_dim>
    output_type: 'mel'
    vocab_size: 6561
    input_frame_rate: !ref <token_frame_rate>
    only_mask_loss: True
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
{_yaml_v3_front(size) if causal else _yaml_v2_encoder(size)}
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
{SOLVER}
{_yaml_v3_dit(size) if causal else _yaml_v2_unet(size)}
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
            num_decoding_left_chunks: !ref <num_decoding_left_chunks>

hift: !new:cosyvoice.hifigan.generator.{hift}
    in_channels: 80
    base_channels: {size.vocoder}
    nb_harmonics: 8
    sampling_rate: !ref <sample_rate>
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 5, 3]
    upsample_kernel_sizes: [16, 11, 7]
    istft_params:
        n_fft: 16
        hop_len: 4
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.{"Causal" if causal else ""}ConvRNNF0Predictor
        num_class: 1
        in_channels: 80
        cond_channels: {size.pitch}

get_tokenizer: !name:cosyvoice.tokenizer.tokenizer.get_qwen_tokenizer
    token_path: !ref <qwen_pretrain_path>
    skip_special_tokens: True
    version: {family}
allowed_special: 'all'
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: 1920
    num_mels: 80
    sampling_rate: !ref <sample_rate>
    hop_size: 480
    win_size: 1920
    fmin: 0
    fmax: {"null" if causal else 8000}
    center: False
"""


def _yaml_v2_encoder(size: Size) -> str:
    width, heads, ffn, blocks = size.encoder
    return f"""    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: {width}
        attention_heads: {heads}
        linear_units: {ffn}
        num_blocks: {blocks}
        dropout_rate: 0.1
        positional_dropout_rate: 0.1
        attention_dropout_rate: 0.1
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        input_size: {width}
        use_cnn_module: False
        macaron_style: False
        static_chunk_size: !ref <chunk_size>"""


def _yaml_v2_unet(size: Size) -> str:
    channels, heads, head_size, blocks, mid = size.unet
    return f"""        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: 320
            out_channels: 80
            channels: [{channels}]
            dropout: 0.0
            attention_head_dim: {head_size}
            n_blocks: {blocks}
            num_mid_blocks: {mid}
            num_heads: {heads}
            act_fn: 'gelu'"""


def _yaml_v3_front(size: Size) -> str:
    return f"""    pre_lookahead_layer: !new:cosyvoice.transformer.upsample_encoder.PreLookaheadLayer
        in_channels: 80
        channels: {size.lookahead}
        pre_lookahead_len: 3"""


def _yaml_v3_dit(size: Size) -> str:
    width, depth, heads, head_size = size.dit
    return f"""        estimator: !new:cosyvoice.flow.DiT.dit.DiT
            dim: {width}
            depth: {depth}
            heads: {heads}
            dim_head: {head_size}
            ff_mult: 2
            mel_dim: 80
            mu_dim: 80
            spk_dim: 80
            out_channels: 80"""
