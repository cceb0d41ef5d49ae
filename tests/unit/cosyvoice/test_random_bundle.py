"""Random model directories are real ones: official keys and shapes, sane activations, the same files for a seed."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cosyvoice.bundles import FAMILIES, fullsize
from tts_worker.audio.decode import Recording
from tts_worker.engine.cosyvoice import random_bundle
from tts_worker.engine.cosyvoice.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.enrol import Mode, Speaker, bundled_voices, enrol
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.random_bundle import SIZES, write_random_bundle
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.weights import PARTS, expected_shapes
from tts_worker.errors import BundleError, ConfigError
from tts_worker.voicepack import commands


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_random_bundle(tmp_path_factory.mktemp("random") / "x", request.param, "tiny", seed=3)


def test_random_bundle_is_valid_and_marked(bundle: Bundle) -> None:
    assert bundle.validate().problems == ()
    assert bundle.has_random_weights


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_full_size_has_the_official_keys_and_shapes(family: str, part: str) -> None:
    text = random_bundle._yaml(family, SIZES["full"])
    config = CosyVoiceConfig.from_files(text, fullsize()[f"{family}/qwen_config"], "full")

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
def test_small_vocabulary_encodes_any_text(bundle: Bundle, text: str) -> None:
    tokenizer = TextTokenizer.from_bundle(bundle)

    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    assert all(0 <= i < bundle.config.lm.text_vocab for i in ids)


def test_common_english_parts_are_single_tokens(bundle: Bundle) -> None:
    assert len(TextTokenizer.from_bundle(bundle).encode("Hello world, and you")) < 10


def test_random_bundle_enrolls_voices_for_every_mode(bundle: Bundle) -> None:
    rate = 24_000
    audio = 0.1 * np.sin(np.arange(4 * rate) / 30) * (1 + np.sin(np.arange(4 * rate) / 4000))
    voice = enrol(bundle, PromptFrontend(bundle), Recording(audio.astype(np.float32), rate), "hello world")
    speaker = Speaker(voice, bundle.config, TextTokenizer.from_bundle(bundle))

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


@pytest.mark.parametrize(("family", "size", "key"), [("cosyvoice1", "tiny", "family"), ("cosyvoice2", "huge", "size")])
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
