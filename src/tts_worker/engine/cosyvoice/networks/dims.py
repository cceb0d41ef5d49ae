"""Dimensions of the networks as frozen dataclasses: everything needed to build a network.

Names follow the official YAML where it has one. No sizes have defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

V1_RATE_HZ = 22_050  # of CosyVoice-300M
V1_OVERLAP_TOKENS = 20  # of its chunks; the reference defines it in code


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

    @property
    def cache_layers(self) -> int:
        """Layers with keys and values."""
        return self.layers

    @property
    def has_speaker(self) -> bool:
        """Whether a sequence may hold the vector of its speaker."""
        return False


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
    speech_tokens: int
    spk_embed: int
    sos_row: int = 0
    task_row: int = 1

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def eos_id(self) -> int:
        return self.speech_tokens

    @property
    def speech_rows(self) -> int:
        """Number of scores."""
        return self.speech_tokens + 1

    @property
    def fill_id(self) -> int:
        """An id that is never drawn: this model does not interleave text and speech."""
        return self.speech_rows

    @property
    def cache_layers(self) -> int:
        """Layers with keys and values: those of the decoder, then those of the text encoder."""
        return self.layers + self.text_layers

    @property
    def has_speaker(self) -> bool:
        """Whether a sequence may hold the vector of its speaker."""
        return True


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
    """Tokens to mel. Exactly one of ``encoder`` (v2) and ``lookahead`` (v3), one of ``unet`` and ``dit``.

    Attributes:
        has_independent_chunks: Whether a chunk is computed without its past: chunks begin at the first token of the
            speech, not of the prompt, and take no pages.
    """

    has_independent_chunks: ClassVar[bool] = False
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

    def frames(self, tokens: int) -> int:
        """Mel frames of ``tokens`` tokens."""
        return tokens * self.frames_per_token

    def frame_of(self, token: float) -> float:
        """Mel frame in which ``token`` begins."""
        return token * self.frames_per_token


@dataclass(frozen=True)
class ConformerDims:
    """Token encoder of CosyVoice-300M's flow: every token attends to all others."""

    input_size: int
    output_size: int
    heads: int
    linear_units: int
    layers: int


@dataclass(frozen=True)
class V1UnetDims:
    """Estimator of CosyVoice-300M: ``stages`` times down and up, each but the last at half the rate."""

    in_channels: int
    out_channels: int
    channels: int  # at every stage
    stages: int
    blocks: int
    mid_blocks: int
    heads: int
    head_dim: int


@dataclass(frozen=True)
class V1FlowDims:
    """Tokens to mel in CosyVoice-300M. The rates of tokens and mel frames have no common multiple.

    Attributes:
        has_independent_chunks: See ``FlowDims``.
        regulator_layers: Convolutions after the interpolation to the rate of mel frames.
    """

    has_independent_chunks: ClassVar[bool] = True
    vocab: int
    input_size: int
    mel: int
    spk_embed: int
    token_rate_hz: int
    sample_rate_hz: int
    hop_samples: int
    regulator_layers: int
    steps: int
    guidance: float
    encoder: ConformerDims
    unet: V1UnetDims

    @property
    def chunk_tokens(self) -> int:
        """Tokens by which a stream advances."""
        return 2 * self.token_rate_hz

    @property
    def lookahead_tokens(self) -> int:
        """Tokens that a chunk and the next one share."""
        return V1_OVERLAP_TOKENS

    @property
    def frames_per_token(self) -> int:
        """Mel frames of a token, rounded up, for the sizes of buffers; see ``frames``."""
        return -(-self.sample_rate_hz // (self.hop_samples * self.token_rate_hz))

    def frames(self, tokens: int) -> int:
        """Mel frames of ``tokens`` tokens. Rounds as the reference does."""
        return int(tokens / self.token_rate_hz * self.sample_rate_hz / self.hop_samples)

    def frame_of(self, token: float) -> float:
        """Mel frame in which ``token`` of a stream begins. A chunk has less than a frame too few."""
        chunks = int(token / self.chunk_tokens)
        new = self.frames(self.chunk_tokens + self.lookahead_tokens) - self.frames(self.lookahead_tokens)
        rest = token - chunks * self.chunk_tokens
        return chunks * new + rest * self.sample_rate_hz / (self.hop_samples * self.token_rate_hz)


AnyLmDims = LmDims | TransformerLmDims
AnyFlowDims = FlowDims | V1FlowDims


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
    source_filter: bool = False  # gains of harmonics and noise instead of a spectrum; no official model

    @property
    def has_sample_phase(self) -> bool:
        """Whether the phase of the source advances with every sample (v1), which the reference decides by the rate."""
        return self.sample_rate_hz == V1_RATE_HZ

    @property
    def frame_samples(self) -> int:
        """Audio samples per mel frame."""
        out = self.hop
        for rate in self.upsample_rates:
            out *= rate
        return out
