"""Which tensors each weight file must hold: key -> shape, by formula from the configuration.

Written down independently of the networks, so that a damaged or foreign file is named before anything is built, and
so that the two descriptions check each other. Keys are in the current spelling (see weights.py). It knows no tensor.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.dims import DitDims, EncoderDims, FlowDims, HiftDims, LmDims, LookaheadDims, UnetDims

Shape = tuple[int, ...]
PARTS = ("llm", "flow", "hift")
OPTIONAL_KEYS = frozenset({"llm.model.lm_head.weight", "decoder.estimator.rotary_embed.inv_freq"})
"""Not learned: tied to the text embedding, and a constant. A file without them is complete."""

DIT_TIME_CHANNELS, DIT_CONV_GROUPS, DIT_CONV_KERNEL = 256, 16, 31  # in the reference's code, not in the YAML
F0_CONVS = 5


def expected_shapes(config: CosyVoiceConfig, part: str) -> dict[str, Shape]:
    """Keys and shapes of ``part``: ``llm``, ``flow`` or ``hift``."""
    keys = _Keys()
    if part == "llm":
        _llm(keys, config.lm)
    elif part == "flow":
        _flow(keys, config.flow)
    else:
        _hift(keys, config.hift)
    return keys.shapes


class _Keys:
    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}

    def add(self, key: str, *shape: int) -> None:
        self.shapes[key] = shape

    def linear(self, key: str, out: int, into: int, *kernel: int, bias: bool = True) -> None:
        self.add(f"{key}.weight", out, into, *kernel)
        if bias:
            self.add(f"{key}.bias", out)

    def norm(self, key: str, size: int) -> None:
        self.add(f"{key}.weight", size)
        self.add(f"{key}.bias", size)

    def normed_conv(self, key: str, out: int, into: int, kernel: int, *, transposed: bool = False) -> None:
        """A weight-normed convolution: gain per row of the weight's first dimension, direction, bias."""
        first, second = (into, out) if transposed else (out, into)
        self.add(f"{key}.bias", out)
        self.add(f"{key}.parametrizations.weight.original0", first, 1, 1)
        self.add(f"{key}.parametrizations.weight.original1", first, second, kernel)


def _llm(keys: _Keys, lm: LmDims) -> None:
    size, kv = lm.hidden_size, lm.kv_heads * lm.head_dim
    if lm.own_special_rows:
        keys.add("llm_embedding.weight", 2, size)
    keys.add("llm.model.model.embed_tokens.weight", lm.text_vocab, size)
    for i in range(lm.layers):
        at = f"llm.model.model.layers.{i}"
        for name, out in (("q", lm.heads * lm.head_dim), ("k", kv), ("v", kv)):
            keys.linear(f"{at}.self_attn.{name}_proj", out, size)
        keys.add(f"{at}.self_attn.o_proj.weight", size, lm.heads * lm.head_dim)
        for name in ("gate", "up"):
            keys.add(f"{at}.mlp.{name}_proj.weight", lm.intermediate_size, size)
        keys.add(f"{at}.mlp.down_proj.weight", size, lm.intermediate_size)
        for name in ("input", "post_attention"):
            keys.add(f"{at}.{name}_layernorm.weight", size)
    keys.add("llm.model.model.norm.weight", size)
    keys.add("llm.model.lm_head.weight", lm.text_vocab, size)
    keys.linear("llm_decoder", lm.speech_rows, size, bias=lm.decoder_bias)
    keys.add("speech_embedding.weight", lm.speech_rows, size)


def _flow(keys: _Keys, flow: FlowDims) -> None:
    keys.add("input_embedding.weight", flow.vocab, flow.input_size)
    keys.linear("spk_embed_affine_layer", flow.mel, flow.spk_embed)
    if flow.encoder:
        _encoder(keys, flow.encoder)
        keys.linear("encoder_proj", flow.mel, flow.encoder.output_size)
    if flow.lookahead:
        _lookahead(keys, "pre_lookahead_layer", flow.lookahead)
    if flow.unet:
        _unet(keys, flow.unet)
    if flow.dit:
        _dit(keys, flow.dit)


def _lookahead(keys: _Keys, at: str, dims: LookaheadDims) -> None:
    keys.linear(f"{at}.conv1", dims.channels, dims.in_channels, dims.lookahead_tokens + 1)
    keys.linear(f"{at}.conv2", dims.in_channels, dims.channels, 3)


def _encoder(keys: _Keys, dims: EncoderDims) -> None:
    size = dims.output_size
    for at, into in (("embed", dims.input_size), ("up_embed", size)):
        keys.linear(f"encoder.{at}.out.0", size, into)
        keys.norm(f"encoder.{at}.out.1", size)
    keys.norm("encoder.after_norm", size)
    _lookahead(keys, "encoder.pre_lookahead_layer", dims.lookahead)
    keys.linear("encoder.up_layer.conv", size, size, 2 * dims.upsample + 1)
    for stack, layers in (("encoders", dims.layers), ("up_encoders", dims.up_layers)):
        for i in range(layers):
            at = f"encoder.{stack}.{i}"
            for bias in "uv":
                keys.add(f"{at}.self_attn.pos_bias_{bias}", dims.heads, size // dims.heads)
            for name in ("q", "k", "v", "out"):
                keys.linear(f"{at}.self_attn.linear_{name}", size, size)
            keys.add(f"{at}.self_attn.linear_pos.weight", size, size)
            keys.linear(f"{at}.feed_forward.w_1", dims.linear_units, size)
            keys.linear(f"{at}.feed_forward.w_2", size, dims.linear_units)
            for name in ("norm_ff", "norm_mha"):
                keys.norm(f"{at}.{name}", size)


def _unet(keys: _Keys, dims: UnetDims) -> None:
    root, size, inner, time = "decoder.estimator", dims.channels, dims.heads * dims.head_dim, 4 * dims.channels
    keys.linear(f"{root}.time_mlp.linear_1", time, dims.in_channels)
    keys.linear(f"{root}.time_mlp.linear_2", time, time)

    def causal_block(at: str, into: int) -> None:
        keys.linear(f"{at}.block.0", size, into, 3)
        keys.norm(f"{at}.block.2", size)

    stages = [("down_blocks.0", dims.in_channels), *((f"mid_blocks.{i}", size) for i in range(dims.mid_blocks))]
    for stage, into in [*stages, ("up_blocks.0", 2 * size)]:
        resnet = f"{root}.{stage}.0"
        keys.linear(f"{resnet}.mlp.1", size, time)
        causal_block(f"{resnet}.block1", into)
        causal_block(f"{resnet}.block2", size)
        keys.linear(f"{resnet}.res_conv", size, into, 1)
        for i in range(dims.blocks):
            at = f"{root}.{stage}.1.{i}"
            keys.norm(f"{at}.norm1", size)
            for name in "qkv":
                keys.add(f"{at}.attn1.to_{name}.weight", inner, size)
            keys.linear(f"{at}.attn1.to_out.0", size, inner)
            keys.norm(f"{at}.norm3", size)
            keys.linear(f"{at}.ff.net.0.proj", 4 * size, size)
            keys.linear(f"{at}.ff.net.2", size, 4 * size)
        if not stage.startswith("mid"):
            keys.linear(f"{root}.{stage}.2", size, size, 3)
    causal_block(f"{root}.final_block", size)
    keys.linear(f"{root}.final_proj", dims.out_channels, size, 1)


def _dit(keys: _Keys, dims: DitDims) -> None:
    root, size, inner = "decoder.estimator", dims.dim, dims.heads * dims.head_dim
    keys.linear(f"{root}.time_embed.time_mlp.0", size, DIT_TIME_CHANNELS)
    keys.linear(f"{root}.time_embed.time_mlp.2", size, size)
    keys.linear(f"{root}.input_embed.proj", size, 2 * dims.mel + dims.mu + dims.spk)
    for i in (1, 2):
        keys.linear(f"{root}.input_embed.conv_pos_embed.conv{i}.0", size, size // DIT_CONV_GROUPS, DIT_CONV_KERNEL)
    keys.add(f"{root}.rotary_embed.inv_freq", dims.head_dim // 2)
    for i in range(dims.depth):
        at = f"{root}.transformer_blocks.{i}"
        keys.linear(f"{at}.attn_norm.linear", 6 * size, size)
        for name in "qkv":
            keys.linear(f"{at}.attn.to_{name}", inner, size)
        keys.linear(f"{at}.attn.to_out.0", size, inner)
        keys.linear(f"{at}.ff.ff.0.0", dims.ff_mult * size, size)
        keys.linear(f"{at}.ff.ff.2", size, dims.ff_mult * size)
    keys.linear(f"{root}.norm_out.linear", 2 * size, size)
    keys.linear(f"{root}.proj_out", dims.mel, size)


def _hift(keys: _Keys, dims: HiftDims) -> None:
    spectrum, base = dims.n_fft + 2, dims.base_channels
    keys.linear("m_source.l_linear", 1, dims.nb_harmonics + 1)
    keys.normed_conv("conv_pre", base, dims.in_channels, dims.conv_pre_look_right + 1 if dims.causal else 7)
    # Samples of source per frame of each stage: the rates of the stages still to come.
    strides = list(accumulate([1, *dims.upsample_rates[:0:-1]], mul))[::-1]

    def resblock(at: str, size: int, kernel: int, dilations: Shape) -> None:
        for i in range(len(dilations)):
            for j in (1, 2):
                keys.normed_conv(f"{at}.convs{j}.{i}", size, size, kernel)
                keys.add(f"{at}.activations{j}.{i}.alpha", size)

    kernels = len(dims.resblock_kernel_sizes)
    for i, kernel in enumerate(dims.upsample_kernel_sizes):
        size = base >> (i + 1)
        keys.normed_conv(f"ups.{i}", size, 2 * size, kernel, transposed=not dims.causal)
        keys.linear(f"source_downs.{i}", size, spectrum, 1 if strides[i] == 1 else 2 * strides[i])
        source_kernel, source_dilations = dims.source_resblock_kernel_sizes[i], dims.source_resblock_dilation_sizes[i]
        resblock(f"source_resblocks.{i}", size, source_kernel, source_dilations)
        for j in range(kernels):
            at = f"resblocks.{i * kernels + j}"
            resblock(at, size, dims.resblock_kernel_sizes[j], dims.resblock_dilation_sizes[j])
    keys.normed_conv("conv_post", spectrum, base >> len(dims.upsample_rates), 7)
    for i in range(F0_CONVS):
        kernel = 4 if dims.causal and i == 0 else 3
        into = dims.f0_channels if i else dims.in_channels
        keys.normed_conv(f"f0_predictor.condnet.{2 * i}", dims.f0_channels, into, kernel)
    keys.linear("f0_predictor.classifier", 1, dims.f0_channels)
