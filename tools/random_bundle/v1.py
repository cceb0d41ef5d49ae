"""CosyVoice-300M's part of ``random_bundle``: its YAML and a small vocabulary in the format of Whisper's."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from tools.random_bundle.yaml_values import SAMPLING, SOLVER
from tts_worker.engine.cosyvoice.bundle.config import WHISPER
from tts_worker.engine.cosyvoice.tokens.tokenizer import whisper_special_tokens


@dataclass(frozen=True)
class V1LmSize:
    """Widths and depths of the language model. ``text_rows``: None for as many as the small vocabulary needs."""

    text: int
    hidden: int
    ffn: int
    heads: int
    text_layers: int
    layers: int
    text_rows: int | None = None


V1_LM_SIZES = {
    "full": V1LmSize(512, 1024, 4096, 16, 6, 14, 51866),
    "mid": V1LmSize(128, 256, 1024, 4, 2, 6),
    "tiny": V1LmSize(24, 32, 80, 4, 1, 2),
}
V1_CODES = 4096

_WORDS = (
    " the| and| to| of| you| it| is| hello| world|ing|ed|er|ion|ent|st|th|he|in|re|on|at|en|or|es|ou|ll|ly| a|Hello|The"
)


def whisper_tokens() -> list[bytes]:
    """Tokens by rank: all bytes, then the beginnings of some frequent English words."""
    tokens = {bytes([byte]): None for byte in range(256)}
    for word in _WORDS.split("|"):
        tokens.update((word[:end].encode(), None) for end in range(2, len(word) + 1))
    return list(tokens)


def write_whisper_vocabulary(file: Path) -> None:
    """Write the vocabulary."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(whisper_tokens()))
    file.write_text("".join(lines), "ascii")


def v1_yaml(
    size: V1LmSize,
    encoder: tuple[int, int, int, int],
    unet: tuple[int, int, int, int, int],
    vocoder: int,
    pitch: int,
) -> str:
    """Return the YAML.

    Args:
        size: The language model.
        encoder: Width, heads, inner width and layers of the flow's encoder.
        unet: Channels, heads, head size, blocks and middle stages of its estimator.
        vocoder: Channels of the vocoder.
        pitch: Channels of its pitch predictor.
    """
    width, encoder_heads, encoder_ffn, encoder_layers = encoder
    channels, heads, head_size, blocks, mid = unet
    rows = size.text_rows or len(whisper_tokens()) + len(whisper_special_tokens(WHISPER))
    return f"""# Random weights in the official layout.
sample_rate: 22050
text_encoder_input_size: {size.text}
llm_input_size: {size.hidden}
llm_output_size: {size.hidden}
spk_embed_dim: 192

llm: !new:cosyvoice.llm.llm.TransformerLM
    text_encoder_input_size: !ref <text_encoder_input_size>
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    text_token_size: {rows}
    speech_token_size: {V1_CODES}
    length_normalized_loss: True
    lsm_weight: 0
    spk_embed_dim: !ref <spk_embed_dim>
    text_encoder: !new:cosyvoice.transformer.encoder.ConformerEncoder
        input_size: !ref <text_encoder_input_size>
        output_size: {size.hidden}
        attention_heads: {size.heads}
        linear_units: {size.ffn}
        num_blocks: {size.text_layers}
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        use_cnn_module: False
        macaron_style: False
        static_chunk_size: 1
    llm: !new:cosyvoice.transformer.encoder.TransformerEncoder
        input_size: !ref <llm_input_size>
        output_size: !ref <llm_output_size>
        attention_heads: {size.heads}
        linear_units: {size.ffn}
        num_blocks: {size.layers}
        input_layer: 'linear_legacy'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        static_chunk_size: 1
{SAMPLING}

flow: !new:cosyvoice.flow.flow.MaskedDiffWithXvec
    input_size: {width}
    output_size: 80
    spk_embed_dim: !ref <spk_embed_dim>
    output_type: 'mel'
    vocab_size: {V1_CODES}
    input_frame_rate: 50
    only_mask_loss: True
    encoder: !new:cosyvoice.transformer.encoder.ConformerEncoder
        output_size: {width}
        attention_heads: {encoder_heads}
        linear_units: {encoder_ffn}
        num_blocks: {encoder_layers}
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        input_size: {width}
        use_cnn_module: False
        macaron_style: False
    length_regulator: !new:cosyvoice.flow.length_regulator.InterpolateRegulator
        channels: 80
        sampling_ratios: [1, 1, 1, 1]
    decoder: !new:cosyvoice.flow.flow_matching.ConditionalCFM
{SOLVER}
        estimator: !new:cosyvoice.flow.decoder.ConditionalDecoder
            in_channels: 320
            out_channels: 80
            channels: [{channels}, {channels}]
            dropout: 0.0
            attention_head_dim: {head_size}
            n_blocks: {blocks}
            num_mid_blocks: {mid}
            num_heads: {heads}
            act_fn: 'gelu'

hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: 80
    base_channels: {vocoder}
    nb_harmonics: 8
    sampling_rate: !ref <sample_rate>
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 8]
    upsample_kernel_sizes: [16, 16]
    istft_params:
        n_fft: 16
        hop_len: 4
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        num_class: 1
        in_channels: 80
        cond_channels: {pitch}

get_tokenizer: !name:whisper.tokenizer.get_tokenizer
    multilingual: True
    num_languages: 100
    language: 'en'
    task: 'transcribe'
allowed_special: 'all'
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: 1024
    num_mels: 80
    sampling_rate: !ref <sample_rate>
    hop_size: 256
    win_size: 1024
    fmin: 0
    fmax: 8000
    center: False
"""
