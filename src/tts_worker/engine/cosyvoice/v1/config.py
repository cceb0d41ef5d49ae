"""The dimensions of CosyVoice-300M's language model and flow, from its YAML."""

from __future__ import annotations

from tts_worker.engine.cosyvoice.networks.dims import ConformerDims, TransformerLmDims, V1FlowDims, V1UnetDims
from tts_worker.models.bundles.section import Section


def solver_of(decoder: Section) -> Section:
    """Return the solver's part of a flow's decoder, of any family.

    Raises:
        BundleError: It is another solver than the networks implement.
    """
    solver = decoder.section("cfm_params")
    solver = solver.section("content") if solver.has("content") else solver
    solver.word("t_scheduler", ("cosine",), "cosine")
    solver.word("solver", ("euler",), "euler")
    return solver


def v1_lm(llm: Section) -> TransformerLmDims:
    """Return the dimensions of the language model.

    Raises:
        BundleError: A missing or invalid value, or parts of different widths.
    """
    hidden = llm.integer("llm_input_size")
    text_encoder = llm.section("text_encoder")
    decoder = llm.section("llm")
    for part, kind in ((text_encoder, "ConformerEncoder"), (decoder, "TransformerEncoder")):
        part.kind(kind)
        _check_width(part, hidden)
        if part.integer("static_chunk_size", 0, least=0) != 1:
            part.fail("static_chunk_size", "must be 1: the published models attend to the past")
    _check_conformer(text_encoder)
    _check_relative(decoder, "linear_legacy")
    if llm.integer("llm_output_size") != hidden:
        llm.fail("llm_output_size", "differs from llm_input_size")
    for key in ("attention_heads", "linear_units"):
        if decoder.integer(key) != text_encoder.integer(key):
            decoder.fail(key, "differs from text_encoder")
    return TransformerLmDims(
        text_size=text_encoder.integer("input_size", llm.integer("text_encoder_input_size")),
        hidden_size=hidden,
        intermediate_size=decoder.integer("linear_units"),
        heads=decoder.integer("attention_heads"),
        text_layers=text_encoder.integer("num_blocks"),
        layers=decoder.integer("num_blocks"),
        text_vocab=llm.integer("text_token_size"),
        speech_tokens=llm.integer("speech_token_size"),
        spk_embed=llm.integer("spk_embed_dim", 192),
    )


def v1_flow(flow: Section, sample_rate_hz: int, hop_samples: int, steps: int) -> V1FlowDims:
    """Return the dimensions of the flow.

    Args:
        flow: Its section.
        sample_rate_hz: Sample rate of the model.
        hop_samples: Samples per mel frame.
        steps: Steps of the solver.

    Raises:
        BundleError: A missing or invalid value, or parts that do not fit.
    """
    decoder = flow.section("decoder")
    decoder.kind("ConditionalCFM")
    solver = solver_of(decoder)
    regulator = flow.section("length_regulator")
    regulator.kind("InterpolateRegulator")
    mel = flow.integer("output_size")
    if regulator.integer("channels") != mel:
        regulator.fail("channels", "differs from flow.output_size")
    size = flow.integer("input_size")
    return V1FlowDims(
        vocab=flow.integer("vocab_size"),
        input_size=size,
        mel=mel,
        spk_embed=flow.integer("spk_embed_dim"),
        token_rate_hz=flow.integer("input_frame_rate", 50),
        sample_rate_hz=sample_rate_hz,
        hop_samples=hop_samples,
        regulator_layers=len(regulator.integers("sampling_ratios")),
        steps=steps,
        guidance=solver.number("inference_cfg_rate"),
        encoder=_encoder(flow.section("encoder"), size),
        unet=_unet(decoder.section("estimator")),
    )


def _encoder(encoder: Section, size: int) -> ConformerDims:
    encoder.kind("ConformerEncoder")
    _check_conformer(encoder)
    if encoder.integer("static_chunk_size", 0, least=0):
        encoder.fail("static_chunk_size", "must be 0: the published models attend to all tokens")
    if encoder.integer("input_size", size) != size:
        encoder.fail("input_size", "differs from flow.input_size")
    width = encoder.integer("output_size")
    _check_width(encoder, width)
    return ConformerDims(
        input_size=size,
        output_size=width,
        heads=encoder.integer("attention_heads"),
        linear_units=encoder.integer("linear_units"),
        layers=encoder.integer("num_blocks"),
    )


def _unet(unet: Section) -> V1UnetDims:
    unet.kind("ConditionalDecoder")
    if unet.flag("causal"):
        unet.fail("causal", "must be False: CosyVoice-300M's estimator sees the whole sequence")
    unet.word("act_fn", ("gelu",), "gelu")
    channels = unet.integers("channels")
    if len(set(channels)) != 1:
        unet.fail("channels", "must be the same at every stage")
    if channels[0] % 8:
        unet.fail("channels", "must be multiples of 8, the number of groups of a norm")
    return V1UnetDims(
        in_channels=unet.integer("in_channels"),
        out_channels=unet.integer("out_channels"),
        channels=channels[0],
        stages=len(channels),
        blocks=unet.integer("n_blocks"),
        mid_blocks=unet.integer("num_mid_blocks"),
        heads=unet.integer("num_heads"),
        head_dim=unet.integer("attention_head_dim"),
    )


def _check_width(part: Section, width: int) -> None:
    if part.integer("output_size") != width:
        part.fail("output_size", "differs from llm.llm_input_size")
    if width % part.integer("attention_heads"):
        part.fail("attention_heads", "does not divide output_size")


def _check_conformer(encoder: Section) -> None:
    _check_relative(encoder, "linear")
    for key in ("use_cnn_module", "macaron_style"):
        if encoder.flag(key, True):  # the reference's defaults
            encoder.fail(key, "must be False")


def _check_relative(encoder: Section, input_layer: str) -> None:
    encoder.word("input_layer", (input_layer,), "conv2d")
    encoder.word("pos_enc_layer_type", ("rel_pos_espnet",), "abs_pos")
    encoder.word("selfattention_layer_type", ("rel_selfattn",), "selfattn")
