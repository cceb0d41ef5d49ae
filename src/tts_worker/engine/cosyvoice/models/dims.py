"""Dimensions of the networks as frozen dataclasses: everything needed to build a network.

Names follow the official YAML where it has one. No sizes have defaults.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LmDims:
    """Qwen2 decoder and the speech vocabulary around it.

    The families differ in their row and id layout: v2 stores the start and task rows in a separate table, v3 in the
    speech table.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    text_vocab: int
    rms_norm_eps: float
    rope_theta: float
    speech_tokens: int  # ids below are speech
    speech_rows: int  # rows of the speech table and of the scores
    decoder_bias: bool
    separate_special_rows: bool
    sos_row: int
    task_row: int
    eos_id: int
    fill_id: int


@dataclass(frozen=True)
class TransformerLmDims:
    """Language model of CosyVoice-300M: text encoder and decoder of the same width."""

    text_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    text_layers: int
    layers: int
    text_vocab: int
    speech_tokens: int  # the end of speech has this id
    spk_embed: int


@dataclass(frozen=True)
class LookaheadDims:
    in_channels: int
    channels: int
    lookahead_tokens: int


@dataclass(frozen=True)
class EncoderDims:
    input_size: int
    output_size: int
    heads: int
    linear_units: int
    layers: int
    up_layers: int
    chunk_tokens: int  # 0: trained without a chunk mask
    upsample: int
    lookahead: LookaheadDims


@dataclass(frozen=True)
class UnetDims:
    in_channels: int
    out_channels: int
    channels: int
    blocks: int
    mid_blocks: int
    heads: int
    head_dim: int
    chunk_frames: int


@dataclass(frozen=True)
class DitDims:
    dim: int
    depth: int
    heads: int
    head_dim: int
    ff_mult: int
    mel: int
    mu: int
    spk: int
    chunk_frames: int


@dataclass(frozen=True)
class FlowDims:
    """Tokens to mel. Exactly one of ``encoder`` (v2) and ``lookahead`` (v3), one of ``unet`` and ``dit``."""

    vocab: int
    input_size: int
    mel: int
    spk_embed: int
    frames_per_token: int
    lookahead_tokens: int
    chunk_tokens: int
    steps: int
    guidance: float
    encoder: EncoderDims | None
    lookahead: LookaheadDims | None
    unet: UnetDims | None
    dit: DitDims | None


@dataclass(frozen=True)
class HiftDims:
    causal: bool  # v3
    in_channels: int
    base_channels: int
    nb_harmonics: int
    sample_rate_hz: int
    nsf_alpha: float
    nsf_sigma: float
    nsf_voiced_threshold: float
    upsample_rates: tuple[int, ...]
    upsample_kernel_sizes: tuple[int, ...]
    n_fft: int
    hop: int
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    source_resblock_kernel_sizes: tuple[int, ...]
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    lrelu_slope: float
    audio_limit: float
    conv_pre_look_right: int
    f0_channels: int

    @property
    def frame_samples(self) -> int:
        """Audio samples per mel frame."""
        out = self.hop
        for rate in self.upsample_rates:
            out *= rate
        return out
