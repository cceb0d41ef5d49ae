"""The configuration comes from the files alone, in every spelling they were published in, and impossible ones stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.cases import each_case
from tests.unit.cosyvoice.bundles import FAMILIES, fullsize, official_config, qwen_of, tiny, yaml_of
from tts_worker.engine.cosyvoice.bundle.config import DEFAULT_TOKENS_PER_WEIGHT, CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.weights import PARTS, expected_shapes
from tts_worker.errors import BundleError


def config_of(family: str, *changes: tuple[str, str]) -> CosyVoiceConfig:
    text = yaml_of(family)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return CosyVoiceConfig.from_files(text, qwen_of(family), "model.yaml")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_official_dimensions_expect_the_official_keys(family: str, part: str) -> None:
    expected = expected_shapes(official_config(family), part)

    assert {key: list(shape) for key, shape in expected.items()} == fullsize()[f"{family}/{part}"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_dimensions_expect_the_tiny_keys(family: str, part: str) -> None:
    saved = torch.load(tiny(family) / f"{part}.pt", weights_only=True)

    assert expected_shapes(config_of(family), part) == {key: tuple(value.shape) for key, value in saved.items()}


def test_families_differ_like_the_reference() -> None:
    v2 = config_of("cosyvoice2")
    v3 = config_of("cosyvoice3")

    assert (v2.lm.eos_id, v2.lm.fill_id, v2.lm.speech_rows, v2.lm.sos_row, v2.lm.task_row) == (6561, 6563, 6564, 0, 1)
    assert (v3.lm.eos_id, v3.lm.fill_id, v3.lm.speech_rows) == (6562, 6564, 6761)
    assert (v3.lm.sos_row, v3.lm.task_row) == (6561, 6563)
    assert (v2.mel.fmax_hz, v3.mel.fmax_hz) == (8000, None)
    assert (v2.tokenizer_version, v3.tokenizer_version) == ("cosyvoice2", "cosyvoice3")
    assert (v2.sample_rate_hz, v2.token_rate_hz) == (v3.sample_rate_hz, v3.token_rate_hz) == (24_000, 25)
    assert v2.chunked_flow.dit is None
    assert v3.chunked_flow.unet is None


def test_cosyvoice_300m_has_other_rates() -> None:
    config = official_config("cosyvoice1")
    wanted = (22_050, 50, 256, 8000)

    assert (config.family, config.tokenizer_version) == ("cosyvoice1", "whisper")
    hz = (config.sample_rate_hz, config.token_rate_hz, config.mel.hop_samples, config.mel.fmax_hz)
    assert hz == wanted
    assert [config.flow.frames(tokens) for tokens in (0, 1, 20, 100, 120)] == [0, 1, 34, 172, 206]
    assert (config.flow.chunk_tokens, config.flow.lookahead_tokens, config.lm.eos_id) == (100, 20, 4096)
    assert config.hift.has_sample_phase
    assert not config_of("cosyvoice2").hift.has_sample_phase
    characters = config_of("cosyvoice1", ("whisper.tokenizer", "cosyvoice.tokenizer.tokenizer"))
    assert characters.tokenizer_version == "whisper_char"


def test_bundle_of_fewer_languages_speaks_only_those() -> None:
    assert config_of("cosyvoice2").languages == ("zh", "en", "ja", "ko", "yue")
    assert config_of("cosyvoice2", ("sample_rate: 24000", "languages: [en]\nsample_rate: 24000")).languages == ("en",)
    for bad in ("en", "[]", "[tlh]"):
        with pytest.raises(BundleError, match="languages"):
            config_of("cosyvoice2", ("sample_rate: 24000", f"languages: {bad}\nsample_rate: 24000"))


def test_bundle_may_limit_the_context() -> None:
    assert config_of("cosyvoice2").context_tokens is None
    for given in (0, 50):
        changed = config_of("cosyvoice2", ("sample_rate: 24000", f"context_tokens: {given}\nsample_rate: 24000"))
        assert changed.context_tokens == given
    for bad in ("-1", "few", "0.5"):
        with pytest.raises(BundleError, match="context_tokens"):
            config_of("cosyvoice2", ("sample_rate: 24000", f"context_tokens: {bad}\nsample_rate: 24000"))


def test_bundle_says_the_pace_of_voices_without_prompt() -> None:
    assert config_of("cosyvoice2").pace == DEFAULT_TOKENS_PER_WEIGHT
    assert config_of("cosyvoice2", ("sample_rate: 24000", "pace: 1.2\nsample_rate: 24000")).pace == 1.2
    for bad in ("fast", "0", ".nan"):
        with pytest.raises(BundleError, match="pace"):
            config_of("cosyvoice2", ("sample_rate: 24000", f"pace: {bad}\nsample_rate: 24000"))


def test_older_cosyvoice2_yaml_gives_the_same_config() -> None:
    older = config_of(
        "cosyvoice2",
        ("qwen_pretrain_path", "model_path"),
        ("chunk_size: 25\nnum_decoding_left_chunks: -1\n", ""),
        ("            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>\n", ""),
        ("            num_decoding_left_chunks: !ref <num_decoding_left_chunks>\n", ""),
        ("        static_chunk_size: !ref <chunk_size>\n", "        use_dynamic_chunk: True\n"),
        ("CausalConditionalDecoder\n", "ConditionalDecoder\n            causal: True\n"),
    )
    newer = config_of("cosyvoice2")

    flow = newer.chunked_flow
    assert flow.encoder
    assert flow.encoder.chunk_tokens == 25
    assert older == replace(newer, flow=replace(flow, encoder=replace(flow.encoder, chunk_tokens=0)))


def test_training_sections_are_ignored() -> None:
    training = "hifigan: !new:a.b.HiFiGan\n    generator: !ref <hift>\ntrain_conf: {lr: 1e-5}\ndata: [!ref <hift>,\n]\n"

    assert config_of("cosyvoice3", ("allowed_special: 'all'\n", training)) == config_of("cosyvoice3")


@each_case(
    ("family", "old", "new", "complaint"),
    [
        ("cosyvoice2", "!new:cosyvoice.llm.llm.Qwen2LM", "!new:os.system", "llm: is the class 'system'"),
        ("cosyvoice2", "!new:cosyvoice.llm.llm.Qwen2LM", "!apply:os.system", "llm: is the class 'system'"),
        ("cosyvoice2", "!new:cosyvoice.llm.llm.Qwen2LM", "", "llm: is a plain mapping"),
        ("cosyvoice2", "llm.Qwen2LM", "llm.TransformerLM", "supported here: MaskedDiffWithXvec"),
        ("cosyvoice2", "CausalMaskedDiffWithXvec", "CausalMaskedDiffWithDiT", "flow: is the class"),
        ("cosyvoice3", "CausalHiFTGenerator", "HiFTGenerator", "hift: is the class"),
        ("cosyvoice3", "ras_sampling", "nucleus_sampling", "llm.sampling: is the class"),
        ("cosyvoice2", "CausalConditionalDecoder", "ConditionalDecoder", "estimator.causal: must be True"),
        ("cosyvoice2", "channels: [32]", "channels: [32, 32]", "flow.decoder.estimator.channels"),
        ("cosyvoice2", "output_size: 48", "output_size: many", "flow.encoder.output_size: must be a whole number"),
        (
            "cosyvoice2",
            "output_size: 48",
            "output_size: 99999999999",
            "flow.encoder.output_size: must be a whole number",
        ),
        ("cosyvoice2", "attention_heads: 4", "attention_heads: 5", "attention_heads: does not divide"),
        ("cosyvoice2", "llm_input_size: 32", "llm_input_size: 64", "llm.llm_input_size: is not hidden_size"),
        ("cosyvoice2", "upsample_rates: [8, 5, 3]", "upsample_rates: [8, 5, 4]", "640 samples per frame"),
        ("cosyvoice2", "upsample_rates: [8, 5, 3]", "upsample_rates: [8, 5]", "as many entries as upsample_rates"),
        ("cosyvoice2", "token_frame_rate: 25", "token_frame_rate: 50", "token_frame_rate: times"),
        ("cosyvoice2", "num_mels: 80", "num_mels: 100", "flow.output_size: differs"),
        ("cosyvoice3", "    inference_cfg_rate: 0.7", "    inference_cfg_rate: much", "must be a number"),
        ("cosyvoice3", "inference_cfg_rate: 0.7", "inference_cfg_rate: .nan", "must be a number"),
        ("cosyvoice3", "t_scheduler: 'cosine'", "t_scheduler: 'linear'", "t_scheduler: must be one of: cosine"),
        ("cosyvoice3", "mix_ratio: [5, 15]", "mix_ratio: [5]", "mix_ratio: must be two numbers"),
        ("cosyvoice3", "version: cosyvoice3", "version: cosyvoice9", "get_tokenizer.version: must be one of"),
        ("cosyvoice2", "left_chunks: -1", "left_chunks: 2", "estimator.num_decoding_left_chunks: must be -1"),
        ("cosyvoice3", "left_chunks: -1", "left_chunks: 0", "estimator.num_decoding_left_chunks: must be -1"),
        ("cosyvoice3", "    estimator:", "    elsewhere:", "flow.decoder.estimator: is missing"),
        ("cosyvoice1", "channels: [16, 16]", "channels: [16, 32]", "estimator.channels: must be the same"),
        ("cosyvoice1", "channels: [16, 16]", "channels: [12, 12]", "estimator.channels: must be multiples of 8"),
        ("cosyvoice1", "            n_blocks: 1", "            causal: True", "estimator.causal: must be False"),
        ("cosyvoice1", "channels: 80", "channels: 40", "length_regulator.channels: differs"),
        ("cosyvoice1", "output_size: 32", "output_size: 30", "attention_heads: does not divide"),
        ("cosyvoice1", "use_cnn_module: False", "use_cnn_module: True", "use_cnn_module: must be False"),
        ("cosyvoice1", "static_chunk_size: 1", "static_chunk_size: 4", "static_chunk_size: must be 1"),
        ("cosyvoice1", "llm_output_size: 16", "llm_output_size: 8", "differs from llm"),
        ("cosyvoice1", "'rel_pos_espnet'", "'abs_pos'", "pos_enc_layer_type: must be one of"),
        ("cosyvoice1", "input_frame_rate: 50", "input_frame_rate: 40", "flow.input_frame_rate: does not divide"),
    ],
)
def test_invalid_value_names_its_key(family: str, old: str, new: str, complaint: str) -> None:
    with pytest.raises(BundleError) as raised:
        config_of(family, (old, new))

    assert complaint in raised.value.message
    assert "model.yaml" in raised.value.message


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("hidden_size", None, "hidden_size: is missing"),
        ("hidden_size", "32", "must be a whole number"),
        ("num_attention_heads", 5, "does not divide hidden_size"),
        ("hidden_act", "gelu", "must be one of: silu"),
        ("vocab_size", True, "must be a whole number"),
        ("rope_theta", [], "must be a number"),
    ],
)
def test_invalid_text_model_config_is_refused(key: str, value: object, complaint: str) -> None:
    qwen = {**(qwen_of("cosyvoice2") or {}), key: value}

    with pytest.raises(BundleError, match=f"config.json.*{complaint}"):
        CosyVoiceConfig.from_files(yaml_of("cosyvoice2"), qwen, "model.yaml")


def test_nested_rope_theta_is_read() -> None:
    qwen = qwen_of("cosyvoice2") or {}
    qwen["rope_parameters"] = {"rope_theta": qwen.pop("rope_theta"), "rope_type": "default"}

    nested = CosyVoiceConfig.from_files(yaml_of("cosyvoice2"), qwen, "model.yaml")

    assert nested == config_of("cosyvoice2")
