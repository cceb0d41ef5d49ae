"""Random model directories are real ones: official keys and shapes, sane activations, the same files for a seed."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cosyvoice.bundles import FAMILIES, fullsize, tiny
from tools.random_bundle import command, writer
from tools.random_bundle.writer import write_random_bundle
from tts_worker.audio.decode import Recording
from tts_worker.cli import run_command
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.bundle.weights import PARTS, expected_shapes
from tts_worker.engine.cosyvoice.execution.onnx_providers import Providers, create_session
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.voices.enroll import enroll
from tts_worker.engine.cosyvoice.voices.speaker import Mode, Speaker, bundled_voices
from tts_worker.errors import BundleError, ConfigError, MissingExtra
from tts_worker.features.voicepack import directory as commands


def random_bundle(*args: str) -> int:
    return run_command("python -m tools.random_bundle", command, args)


CPU: Providers = [("CPUExecutionProvider", {})]


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_random_bundle(tmp_path_factory.mktemp("random") / "x", request.param, "tiny", seed=3)


@pytest.fixture(scope="module")
def tokenizer(bundle: Bundle) -> TextTokenizer:
    return TextTokenizer.from_bundle(bundle)


@pytest.fixture(scope="module")
def runtime() -> Any:
    import onnxruntime  # late: collection does without it

    return onnxruntime


@pytest.fixture(scope="module")
def speech_tokenizer(bundle: Bundle, runtime: Any) -> Any:
    return create_session(runtime, str(bundle.speech_tokenizer), CPU)


def test_random_bundle_is_valid_and_marked(bundle: Bundle) -> None:
    assert bundle.validate().problems == ()
    assert bundle.has_random_weights


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", ["cosyvoice1", *FAMILIES])
def test_full_size_has_the_official_keys_and_shapes(family: str, part: str) -> None:
    text = writer.config_text(family, "full")
    config = CosyVoiceConfig.from_files(text, fullsize().get(f"{family}/qwen_config"), "full")

    expected = expected_shapes(config, part)

    assert {key: list(shape) for key, shape in expected.items()} == fullsize()[f"{family}/{part}"]


@pytest.mark.parametrize("size", ["tiny", "mid"])
def test_random_bundle_synthesizes_audio(bundle: Bundle, tmp_path: Path, size: str) -> None:
    family = bundle.config.family
    other = bundle if size == "tiny" else write_random_bundle(tmp_path / "x", family, size)

    Networks.load(other)  # the forward check: finite scores and frames, audio that is neither silent nor clipped


def test_random_logits_have_a_nucleus(bundle: Bundle) -> None:
    weights = bundle.load_weights("llm")["llm_decoder.weight"]
    hidden = torch.randn(64, weights.shape[1], generator=torch.Generator().manual_seed(0))
    hidden = hidden / hidden.square().mean(-1, keepdim=True).sqrt()

    logits = hidden @ weights.T

    assert 3 < float(logits.std()) < 4.5
    kept = (logits.softmax(-1).sort(descending=True).values.cumsum(-1) < 0.8).sum(-1).float()
    assert float(kept.median()) < 600  # flat logits would keep 80 % of 6761


def test_random_speaker_encoder_has_the_campplus_interface(bundle: Bundle, runtime: Any) -> None:
    onnx.checker.check_model(str(bundle.campplus), full_check=True)
    session = create_session(runtime, str(bundle.campplus), CPU)
    features = np.random.default_rng(0).normal(size=(2, 50, 80)).astype(np.float32)
    weights = onnx.numpy_helper.to_array(onnx.load(bundle.campplus).graph.initializer[0])

    out = session.run(None, {session.get_inputs()[0].name: features})[0]

    assert out.shape == (2, 192)
    assert np.allclose(out, np.abs(features).mean(axis=1) @ weights, atol=1e-4)


@settings(deadline=None, max_examples=15)
@given(frames=st.integers(1, 400))
def test_random_speech_tokenizer_has_the_real_interface(speech_tokenizer: Any, frames: int) -> None:
    names = [value.name for value in speech_tokenizer.get_inputs()]
    features = np.random.default_rng(frames).normal(size=(1, 128, frames)).astype(np.float32)

    ids = speech_tokenizer.run(None, dict(zip(names, (features, np.array([frames], dtype=np.int32)), strict=True)))[0]

    assert ids.dtype == np.int32
    assert ids.shape == (1, -(-frames // 4))
    assert bool(((ids >= 0) & (ids < 6561)).all())
    assert frames < 40 or len(np.unique(ids)) > frames // 8


def test_prompt_models_can_be_left_out(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the package onnx, and only adding voices needs them: the weights do not depend on it."""
    monkeypatch.setattr(writer, "find_spec", lambda _: None)
    family = bundle.config.family
    bare = write_random_bundle(tmp_path / "bare", family, seed=3)

    assert not bare.campplus.exists()
    assert bare.validate().ok
    assert {problem.file for problem in bare.validate().problems} == {bare.campplus.name, bare.speech_tokenizer.name}
    assert all(torch.equal(bundle.load_weights("llm")[key], value) for key, value in bare.load_weights("llm").items())
    with pytest.raises(MissingExtra, match='writing prompt models needs the extra "export"'):
        write_random_bundle(tmp_path / "whole", family, prompt_models=True)
    assert not (tmp_path / "whole").exists()


def test_same_seed_gives_the_same_files(bundle: Bundle, tmp_path: Path) -> None:
    again = write_random_bundle(tmp_path / "again", bundle.config.family, "tiny", seed=3)
    other = write_random_bundle(tmp_path / "other", bundle.config.family, "tiny", seed=4)

    for part in PARTS:
        first, same, different = (b.load_weights(part) for b in (bundle, again, other))
        assert all(torch.equal(first[key], same[key]) for key in first)
        assert not all(torch.equal(first[key], different[key]) for key in first)
    assert bundle.campplus.read_bytes() == again.campplus.read_bytes()


def test_text_model_shares_its_embedding_storage(bundle: Bundle) -> None:
    saved = torch.load(bundle.path / "llm.pt", weights_only=True)

    tied = saved["llm.model.lm_head.weight"], saved["llm.model.model.embed_tokens.weight"]
    assert tied[0].data_ptr() == tied[1].data_ptr()


@settings(deadline=None, max_examples=30)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_small_vocabulary_encodes_any_text(bundle: Bundle, tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    assert all(0 <= i < bundle.config.lm.text_vocab for i in ids)


def test_common_english_parts_are_single_tokens(tokenizer: TextTokenizer) -> None:
    assert len(tokenizer.encode("Hello world, and you")) < 10


def test_random_bundle_enrolls_voices_for_every_mode(bundle: Bundle, tokenizer: TextTokenizer) -> None:
    rate = 24_000
    audio = 0.1 * np.sin(np.arange(4 * rate) / 30) * (1 + np.sin(np.arange(4 * rate) / 4000))
    voice = enroll(bundle, PromptFrontend(bundle), Recording(audio.astype(np.float32), rate), "hello world")
    speaker = Speaker(voice, bundle.config, tokenizer)

    assert len(voice.tokens) > 90
    assert len(np.unique(voice.tokens)) > 10
    assert float(np.abs(voice.embedding).max()) > 0.01
    for mode in (Mode.ZERO_SHOT, Mode.CROSS_LINGUAL, Mode.SFT):
        assert speaker.request("hello", mode=mode).text
    assert list(bundled_voices(bundle.speaker_info, bundle.config)) == ["random"]


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")

    with pytest.raises(ConfigError, match="only written to a new or empty directory"):
        write_random_bundle(tmp_path, "cosyvoice2")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("family", "size", "key"), [("cosyvoice4", "tiny", "family"), ("cosyvoice2", "huge", "size")])
def test_invalid_arguments_are_named(tmp_path: Path, family: str, size: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        write_random_bundle(tmp_path / "x", family, size)


def test_write_error_is_a_bundle_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(BundleError, match="cannot be written"):
        write_random_bundle(tmp_path / "file" / "x", "cosyvoice2")


def test_converted_random_bundle_stays_marked(bundle: Bundle, tmp_path: Path) -> None:
    commands.convert(bundle.path, tmp_path / "converted")

    assert Bundle.open(tmp_path / "converted").has_random_weights


def test_command_writes_a_random_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = tmp_path / "noise"
    assert random_bundle(str(noise), "--family", "cosyvoice2", "--seed", "3") == 0
    assert capsys.readouterr().out.endswith("the output is noise, not speech\n")
    assert Bundle.open(noise).validate().ok


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["x", "--family", "cosyvoice4"], "family: must be cosyvoice1, cosyvoice2 or"),
        (["x", "--size", "huge"], "size: must be one of: full, mid, tiny"),
        ([str(tiny("cosyvoice2"))], "exists already"),
    ],
)
def test_command_names_the_alternatives(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert random_bundle(*args) == 2
    assert message in capsys.readouterr().err
    assert not Path("x").exists()
