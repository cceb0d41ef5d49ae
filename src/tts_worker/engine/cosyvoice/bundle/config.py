"""The configuration of a model: every dimension, rate and id, from its YAML and ``config.json``.

``CosyVoiceConfig.from_files(yaml_text, qwen_json, source)`` is the only parser of those files. Class names in the YAML
only select between the families; constants that the reference defines in code are named here. This module opens no
files and knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from tts_worker.engine.cosyvoice.networks.dims import (
    AnyFlowDims,
    AnyLmDims,
    DitDims,
    EncoderDims,
    FlowDims,
    HiftDims,
    LmDims,
    LookaheadDims,
    UnetDims,
)
from tts_worker.engine.cosyvoice.ops.sampler import SampleRule
from tts_worker.engine.cosyvoice.v1.config import solver_of, v1_flow, v1_lm
from tts_worker.models.bundles.hyperyaml import load_hyperyaml
from tts_worker.models.bundles.section import Section

V1 = "cosyvoice1"
V2 = "cosyvoice2"
V3 = "cosyvoice3"
YAML_NAMES = {"cosyvoice.yaml": V1, "cosyvoice2.yaml": V2, "cosyvoice3.yaml": V3}
"""In the reference's search order; the first file found decides the family."""
LANGUAGES: dict[str, tuple[str, ...]] = {
    V1: ("zh", "en", "ja", "yue", "ko"),
    V2: ("zh", "en", "ja", "ko", "yue"),
    V3: ("zh", "en", "ja", "ko", "yue", "de", "es", "fr", "it", "ru"),
}
"""Languages of the official models."""
WHISPER = "whisper"
WHISPER_CHARACTERS = "whisper_char"  # of the recipe with 25 tokens per second: Chinese in single characters
FAMILIES_BY_LM = {"TransformerLM": V1, "Qwen2LM": V2, "CosyVoice3LM": V3}
_FLOWS = {V1: "MaskedDiffWithXvec", V2: "CausalMaskedDiffWithXvec", V3: "CausalMaskedDiffWithDiT"}

# Defined in the reference's code, not in the YAML.
EULER_STEPS = 10
UPPER_ENCODER_LAYERS = 4
ENCODER_UPSAMPLING = 2
DEFAULT_CHUNK_TOKENS = 25
DEFAULT_CHUNK_FRAMES = 50
DEFAULT_TOKENS_PER_WEIGHT = 25 / 15
"""Pace: 25 speech tokens per second over 15 units of spoken weight per second."""
MAX_TOKENS_PER_WEIGHT = 4.0
MIN_TOKENS_PER_WEIGHT = 0.7
V2_SPECIAL_IDS = 3  # eos, (unused), fill behind the speech tokens
V3_SPECIAL_IDS = 200


@dataclass(frozen=True)
class MelDims:
    """Mel spectrogram of prompts: magnitudes, Slaney scale. ``fmax_hz`` None means half the sample rate."""

    sample_rate_hz: int
    n_fft: int
    window_samples: int
    hop_samples: int
    bins: int
    fmin_hz: float
    fmax_hz: float | None


@dataclass(frozen=True)
class CosyVoiceConfig:
    """All parameters of one model.

    Attributes:
        family: ``cosyvoice1``, ``cosyvoice2`` or ``cosyvoice3``.
        tokenizer_version: Selects the text tokens: ``whisper`` or ``whisper_char`` of CosyVoice-300M, or the list of
            special tokens of the others.
        token_rate_hz: Speech tokens per second of audio.
        mix_ratio: Text and speech tokens per group in interleaved mode.
        languages: What the model speaks; fewer than its family by the key ``languages``, an extension.
        pace: Speech tokens per unit of text weight of voices without a prompt, by the key ``pace``, an extension.
        context_tokens: Most speech tokens of earlier clauses that the language model continues, by the key
            ``context_tokens``, an extension; ``None`` leaves it to the settings of the engine.
    """

    family: str
    tokenizer_version: str
    sample_rate_hz: int
    token_rate_hz: int
    mix_ratio: tuple[int, int]
    lm: AnyLmDims
    flow: AnyFlowDims
    hift: HiftDims
    sampling: SampleRule
    mel: MelDims
    languages: tuple[str, ...]
    pace: float
    context_tokens: int | None = None

    @property
    def qwen(self) -> LmDims:
        """``lm`` of CosyVoice2 and 3."""
        assert isinstance(self.lm, LmDims)
        return self.lm

    @property
    def chunked_flow(self) -> FlowDims:
        """``flow`` of CosyVoice2 and 3."""
        assert isinstance(self.flow, FlowDims)
        return self.flow

    @classmethod
    def from_files(cls, yaml_text: str, qwen_json: object, source: str, expected: str | None = None) -> CosyVoiceConfig:
        """Parse and check a configuration.

        Args:
            yaml_text: Contents of the YAML file.
            qwen_json: The parsed ``config.json`` of the text model; CosyVoice-300M has none.
            source: Name of the YAML file in error messages.
            expected: Family that the name of the YAML file tells.

        Raises:
            BundleError: A missing or invalid value, an unknown class or inconsistent parts; names the file and key.
        """
        root = Section(source, "", load_hyperyaml(yaml_text, source))
        lm = root.section("llm")
        flow = root.section("flow")
        hift = root.section("hift")
        family = FAMILIES_BY_LM[lm.kind(*FAMILIES_BY_LM)]
        if expected not in (None, family):
            name = next(name for name, named in YAML_NAMES.items() if named == family)
            root.fail("", f"describes a {family} model; rename the file to {name}")
        v3 = family == V3
        flow.kind(_FLOWS[family])
        hift.kind("CausalHiFTGenerator" if v3 else "HiFTGenerator")
        mel = _mel(root.section("feat_extractor"))
        sampling = lm.section("sampling")
        sampling.kind("ras_sampling")
        groups = lm.integers("mix_ratio", (5, 15))
        if len(groups) != 2:
            lm.fail("mix_ratio", "must be two numbers")
        config = cls(
            family=family,
            tokenizer_version=_tokenizer(root.section("get_tokenizer"), family),
            sample_rate_hz=root.integer("sample_rate"),
            token_rate_hz=flow.integer("input_frame_rate", 50)
            if family == V1
            else root.integer("token_frame_rate", 25),
            mix_ratio=(groups[0], groups[1]),
            lm=v1_lm(lm) if family == V1 else _lm(lm, Section("CosyVoice-BlankEN/config.json", "", qwen_json), v3),
            flow=v1_flow(flow, mel.sample_rate_hz, mel.hop_samples, EULER_STEPS)
            if family == V1
            else _flow(root, flow, v3),
            hift=_hift(hift, v3),
            sampling=SampleRule(
                sampling.number("top_p", 0.8),
                sampling.integer("top_k", 25),
                sampling.integer("win_size", 10),
                sampling.number("tau_r", 0.1),
            ),
            mel=mel,
            languages=root.words("languages", LANGUAGES[family]),
            pace=_pace(root),
            context_tokens=root.integer("context_tokens", least=0) if root.has("context_tokens") else None,
        )
        config._check_fit(root)
        return config

    def _check_fit(self, root: Section) -> None:
        mel = self.mel
        hift = self.hift
        if not self.sample_rate_hz == mel.sample_rate_hz == hift.sample_rate_hz:
            root.fail("sample_rate", "differs from hift.sampling_rate or feat_extractor.sampling_rate")
        if mel.hop_samples != hift.frame_samples:
            root.fail(
                "hift.upsample_rates", f"make {hift.frame_samples} samples per frame, not feat_extractor.hop_size"
            )
        if self.family == V1:  # no whole number of frames per token
            if self.sample_rate_hz % self.token_rate_hz:
                root.fail("flow.input_frame_rate", "does not divide sample_rate")
        elif self.token_rate_hz * self.flow.frames_per_token * hift.frame_samples != self.sample_rate_hz:
            root.fail("token_frame_rate", "times token_mel_ratio times samples per frame is not sample_rate")
        if not mel.bins == self.flow.mel == hift.in_channels:
            root.fail("flow.output_size", "differs from feat_extractor.num_mels or hift.in_channels")


def _tokenizer(tokenizer: Section, family: str) -> str:
    if family != V1:
        tokenizer.kind("get_qwen_tokenizer")
        return tokenizer.word("version", (V2, V3), V2)
    tokenizer.kind("get_tokenizer")
    return WHISPER if "whisper" in tokenizer.tag else WHISPER_CHARACTERS


def _pace(root: Section) -> float:
    pace = root.number("pace", DEFAULT_TOKENS_PER_WEIGHT)
    if not MIN_TOKENS_PER_WEIGHT <= pace <= MAX_TOKENS_PER_WEIGHT:
        root.fail("pace", f"must be {MIN_TOKENS_PER_WEIGHT:g} to {MAX_TOKENS_PER_WEIGHT:g}")
    return pace


def _lm(llm: Section, qwen: Section, v3: bool) -> LmDims:
    hidden = qwen.integer("hidden_size")
    heads = qwen.integer("num_attention_heads")
    for key in ("llm_input_size", "llm_output_size"):
        if llm.integer(key) != hidden:
            llm.fail(key, f"is not hidden_size of {qwen.source} ({hidden})")
    if hidden % heads and not qwen.has("head_dim"):
        qwen.fail("num_attention_heads", "does not divide hidden_size")
    qwen.word("hidden_act", ("silu",), "silu")
    rope = qwen.section("rope_parameters") if qwen.has("rope_parameters") else qwen  # newer files nest it
    speech = llm.integer("speech_token_size")
    return LmDims(
        hidden_size=hidden,
        intermediate_size=qwen.integer("intermediate_size"),
        layers=qwen.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=qwen.integer("num_key_value_heads", heads),
        head_dim=qwen.integer("head_dim", hidden // heads),
        text_vocab=qwen.integer("vocab_size"),
        rms_norm_eps=qwen.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", 10_000.0),
        speech_tokens=speech,
        speech_rows=speech + (V3_SPECIAL_IDS if v3 else V2_SPECIAL_IDS),
        decoder_bias=not v3,
        separate_special_rows=not v3,
        sos_row=speech if v3 else 0,
        task_row=speech + 2 if v3 else 1,
        eos_id=speech + 1 if v3 else speech,
        fill_id=speech + 3 if v3 else speech + 2,
    )


def _flow(root: Section, flow: Section, v3: bool) -> FlowDims:
    decoder = flow.section("decoder")
    decoder.kind("CausalConditionalCFM")
    solver = solver_of(decoder)
    estimator = decoder.section("estimator")
    ahead = flow.integer("pre_lookahead_len", 3)
    size = flow.integer("input_size")
    encoder = None if v3 else _encoder(flow.section("encoder"), size, ahead)
    ratio = flow.integer("token_mel_ratio", 2)
    if encoder and encoder.upsample != ratio:
        flow.fail("token_mel_ratio", f"must be {encoder.upsample}, which the encoder upsamples by")
    return FlowDims(
        vocab=flow.integer("vocab_size"),
        input_size=size,
        mel=flow.integer("output_size"),
        spk_embed=flow.integer("spk_embed_dim"),
        frames_per_token=ratio,
        lookahead_tokens=ahead,
        chunk_tokens=root.integer("chunk_size", DEFAULT_CHUNK_TOKENS),
        steps=EULER_STEPS,
        guidance=solver.number("inference_cfg_rate"),
        encoder=encoder,
        lookahead=_lookahead(flow.section("pre_lookahead_layer"), ahead) if v3 else None,
        unet=None if v3 else _unet(estimator),
        dit=_dit(estimator) if v3 else None,
    )


def _lookahead(layer: Section, ahead: int) -> LookaheadDims:
    layer.kind("PreLookaheadLayer")
    return LookaheadDims(
        layer.integer("in_channels"), layer.integer("channels"), layer.integer("pre_lookahead_len", ahead)
    )


def _encoder(encoder: Section, size: int, ahead: int) -> EncoderDims:
    encoder.kind("UpsampleConformerEncoder")
    width = encoder.integer("output_size")
    if encoder.integer("input_size", size) != size:
        encoder.fail("input_size", "differs from flow.input_size")
    if width % encoder.integer("attention_heads"):
        encoder.fail("attention_heads", "does not divide output_size")
    for key in ("use_cnn_module", "macaron_style"):
        if encoder.flag(key, key == "macaron_style"):  # the reference's defaults
            encoder.fail(key, "must be False")
    return EncoderDims(
        input_size=size,
        output_size=width,
        heads=encoder.integer("attention_heads"),
        linear_units=encoder.integer("linear_units"),
        layers=encoder.integer("num_blocks"),
        up_layers=UPPER_ENCODER_LAYERS,
        chunk_tokens=encoder.integer("static_chunk_size", 0, least=0),
        upsample=ENCODER_UPSAMPLING,
        lookahead=LookaheadDims(width, width, ahead),
    )


def _unet(unet: Section) -> UnetDims:
    if unet.kind("CausalConditionalDecoder", "ConditionalDecoder") == "ConditionalDecoder" and not unet.flag("causal"):
        unet.fail("causal", "must be True: only the causal estimator of CosyVoice2 is supported")
    channels = unet.integers("channels")
    if len(channels) != 1:
        unet.fail("channels", "must be one number: a UNet that resamples cannot stream")
    unet.word("act_fn", ("gelu",), "gelu")
    _all_left_chunks(unet)
    return UnetDims(
        in_channels=unet.integer("in_channels"),
        out_channels=unet.integer("out_channels"),
        channels=channels[0],
        blocks=unet.integer("n_blocks"),
        mid_blocks=unet.integer("num_mid_blocks"),
        heads=unet.integer("num_heads"),
        head_dim=unet.integer("attention_head_dim"),
        chunk_frames=unet.integer("static_chunk_size", DEFAULT_CHUNK_FRAMES),
    )


def _dit(dit: Section) -> DitDims:
    dit.kind("DiT")
    mel = dit.integer("mel_dim")
    if dit.integer("out_channels", mel) != mel:
        dit.fail("out_channels", "differs from mel_dim")
    _all_left_chunks(dit)
    return DitDims(
        dim=dit.integer("dim"),
        depth=dit.integer("depth"),
        heads=dit.integer("heads"),
        head_dim=dit.integer("dim_head", 64),
        ff_mult=dit.integer("ff_mult", 4),
        mel=mel,
        mu=dit.integer("mu_dim", mel),
        spk=dit.integer("spk_dim", mel),
        chunk_frames=dit.integer("static_chunk_size", DEFAULT_CHUNK_FRAMES),
    )


def _all_left_chunks(estimator: Section) -> None:
    if estimator.number("num_decoding_left_chunks", -1) >= 0:
        estimator.fail("num_decoding_left_chunks", "must be -1: the published models attend to all chunks to the left")


def _hift(hift: Section, v3: bool) -> HiftDims:
    predictor = hift.section("f0_predictor")
    istft = hift.section("istft_params")
    predictor.kind("CausalConvRNNF0Predictor" if v3 else "ConvRNNF0Predictor")
    if predictor.integer("in_channels", 80) != hift.integer("in_channels"):
        predictor.fail("in_channels", "differs from hift.in_channels")
    dims = HiftDims(
        causal=v3,
        in_channels=hift.integer("in_channels"),
        base_channels=hift.integer("base_channels"),
        nb_harmonics=hift.integer("nb_harmonics"),
        sample_rate_hz=hift.integer("sampling_rate"),
        nsf_alpha=hift.number("nsf_alpha", 0.1),
        nsf_sigma=hift.number("nsf_sigma", 0.003),
        nsf_voiced_threshold=hift.number("nsf_voiced_threshold", 10),
        upsample_rates=hift.integers("upsample_rates"),
        upsample_kernel_sizes=hift.integers("upsample_kernel_sizes"),
        n_fft=istft.integer("n_fft"),
        hop=istft.integer("hop_len"),
        resblock_kernel_sizes=hift.integers("resblock_kernel_sizes"),
        resblock_dilation_sizes=hift.integer_rows("resblock_dilation_sizes"),
        source_resblock_kernel_sizes=hift.integers("source_resblock_kernel_sizes"),
        source_resblock_dilation_sizes=hift.integer_rows("source_resblock_dilation_sizes"),
        lrelu_slope=hift.number("lrelu_slope", 0.1),
        audio_limit=hift.number("audio_limit", 0.99),
        conv_pre_look_right=hift.integer("conv_pre_look_right", 4) if v3 else 0,
        f0_channels=predictor.integer("cond_channels", 512),
        source_filter=hift.flag("source_filter"),
    )
    stages = len(dims.upsample_rates)
    for key in ("upsample_kernel_sizes", "source_resblock_kernel_sizes"):
        if len(hift.integers(key)) != stages:
            hift.fail(key, "must have as many entries as upsample_rates")
    if len(dims.source_resblock_dilation_sizes) != stages:
        hift.fail("source_resblock_dilation_sizes", "must have as many entries as upsample_rates")
    if len(dims.resblock_dilation_sizes) != len(dims.resblock_kernel_sizes):
        hift.fail("resblock_dilation_sizes", "must have as many entries as resblock_kernel_sizes")
    if dims.base_channels % (1 << stages):
        hift.fail("base_channels", "cannot be halved at each upsampling stage")
    if dims.source_filter and (dims.causal or dims.has_sample_phase):
        hift.fail("source_filter", "is supported for CosyVoice2 only")
    return dims


def _mel(extractor: Section) -> MelDims:
    extractor.kind("mel_spectrogram")
    return MelDims(
        sample_rate_hz=extractor.integer("sampling_rate"),
        n_fft=extractor.integer("n_fft"),
        window_samples=extractor.integer("win_size"),
        hop_samples=extractor.integer("hop_size"),
        bins=extractor.integer("num_mels"),
        fmin_hz=extractor.number("fmin", 0),
        fmax_hz=extractor.number("fmax") if extractor.has("fmax") else None,
    )
