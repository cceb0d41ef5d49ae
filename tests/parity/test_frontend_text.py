"""What the language model reads: token ids and normalized text, equal to the reference's in every recorded case."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cosyvoice.bundles import DATA, FAMILIES, tiny

from tools.reference.text import is_only_punctuation, normalize_and_split, wetext_rewriter
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer, special_tokens
from tts_worker.engine.cosyvoice.voices.enroll import normalize, spell_out_numbers, spoken_transcript
from tts_worker.errors import BundleError
from tts_worker.front_end.instruction import END_OF_PROMPT
from tts_worker.text.language import contains_chinese

TEXT = DATA / "golden" / "text"
REAL_VOCABULARY = DATA / "qwen2-tokenizer"
"""Qwen's vocab.json and merges.txt are not ours to ship; put them here to test against them."""


def golden(name: str) -> Any:
    return json.loads((TEXT / name).read_text("utf-8"))


def tokenizer_of(name: str) -> TextTokenizer:
    family = f"cosyvoice{name[-1]}"
    if name.startswith("tiny"):
        return TextTokenizer.from_bundle(Bundle.open(tiny(family)))
    if not REAL_VOCABULARY.is_dir():
        pytest.skip(f"{REAL_VOCABULARY} is not there: third-party data, not part of this repository")
    return TextTokenizer(REAL_VOCABULARY, family, 151_936)


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return TextTokenizer.from_bundle(Bundle.open(tiny(request.param)))


@pytest.mark.parametrize("name", ["tiny_v2", "tiny_v3", "qwen2_v2", "qwen2_v3"])
def test_token_ids_match_the_reference(name: str) -> None:
    expected = golden("tokenizer.json")[name]
    tokenizer = tokenizer_of(name)

    assert len(tokenizer) == expected["len"]
    assert tokenizer.special_ids == expected["special_ids"]
    for text, ids in expected["encode"]:
        assert tokenizer.encode(text, allow_special=True) == ids
    for ids, text in expected["decode"]:
        assert tokenizer.decode(ids) == text


texts = st.text(st.characters(codec="utf-8"), max_size=30)


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(st.one_of(texts, st.sampled_from(special_tokens("cosyvoice3"))), max_size=6))
def test_user_text_never_becomes_a_special_token(tokenizer: TextTokenizer, parts: list[str]) -> None:
    text = "".join(parts)

    ids = tokenizer.encode(text)

    assert not set(ids) & set(tokenizer.special_ids.values())
    assert all(0 <= i < len(tokenizer) for i in ids)


@settings(deadline=None, max_examples=60)
@given(text=st.text(st.characters(codec="utf-8", max_codepoint=0x2FF), max_size=40))
def test_text_round_trips_through_tokens(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_allowed_special_tokens_encode_to_one_id(tokenizer: TextTokenizer) -> None:
    text = f"style{END_OF_PROMPT}words"

    ids = tokenizer.encode(text, allow_special=True)

    assert ids == [*tokenizer.encode("style"), tokenizer.end_of_prompt_id, *tokenizer.encode("words")]
    assert tokenizer.encode(text) != ids
    assert tokenizer.decode(ids) == "stylewords"


def test_lone_surrogate_becomes_a_replacement_character(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("a\ud83db") == tokenizer.encode("a\ufffdb")


def write(directory: Path, vocab: object, merges: str, config: object | None = None) -> Path:
    (directory / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    (directory / "merges.txt").write_text(merges, "utf-8")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return directory


TWO = {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("vocab", "merges", "config", "complaint"),
    [
        (["a"], "", None, "not a valid BPE vocabulary"),
        (TWO, "a c\n", None, "not a valid BPE vocabulary"),
        (TWO, "", [1], "not a tokenizer configuration"),
        (TWO, "", {"added_tokens_decoder": {"2": 7}}, "not a tokenizer configuration"),
        (
            TWO,
            "",
            {"added_tokens_decoder": {"7": {"content": "<|endoftext|>"}}},
            "an id that does not follow vocab.json",
        ),
    ],
)
def test_malformed_vocabulary_is_refused(
    tmp_path: Path, vocab: object, merges: str, config: object, complaint: str
) -> None:
    with pytest.raises(BundleError, match=complaint):
        TextTokenizer(write(tmp_path, vocab, merges, config), "cosyvoice2", 1000)


def test_vocabulary_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="22 tokens, but the model has 21 embedding rows"):
        TextTokenizer(write(tmp_path, TWO, ""), "cosyvoice2", 21)
    with pytest.raises(BundleError, match=r"vocab\.json: is missing"):
        TextTokenizer(tmp_path / "nowhere", "cosyvoice2", 21)


@pytest.mark.parametrize("normalizer", ["none", "wetext"])
@pytest.mark.parametrize("name", ["tiny_v2", "qwen2_v2"])
def test_normalized_text_matches_the_reference(name: str, normalizer: str) -> None:
    """Cases with wetext were recorded with the version that this project uses; the reference pins an older one."""
    tokenizer = tokenizer_of(name)
    rewrite = wetext_rewriter() if normalizer == "wetext" else None

    def count(piece: str) -> int:
        return len(tokenizer.encode(piece, allow_special=True))

    recorded = golden("normalize.json")["cases"]
    cases = [case for case in recorded if (case["tokenizer"], case["normalizer"]) == (name, normalizer)]
    assert len(cases) == 35
    for case in cases:
        assert normalize_and_split(case["text"], count, rewrite=rewrite) == case["split"]
        assert normalize(case["text"], rewrite=rewrite) == case["nosplit"]
        assert normalize_and_split(case["text"], count, enabled=False) == case["frontend_off"]


@pytest.mark.parametrize("normalizer", ["none", "wetext"])
def test_transcripts_match_the_reference(normalizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if normalizer == "none":
        monkeypatch.setattr("tts_worker.engine.cosyvoice.voices.enroll._normalizer", lambda: None)
    for case in golden("normalize.json")["cases"]:
        if (case["tokenizer"], case["normalizer"]) == ("tiny_v2", normalizer):
            # wetext escapes quotes, which the model would read
            assert spoken_transcript(case["text"]) == case["nosplit"].replace("\\", ""), case["text"]


def test_normalizer_functions_match_the_reference() -> None:
    units = golden("normalize.json")["units"]

    assert [[text, spell_out_numbers(text)] for text, _ in units["spell_out_number"]] == units["spell_out_number"]
    assert [[text, is_only_punctuation(text)] for text, _ in units["is_only_punctuation"]] == units[
        "is_only_punctuation"
    ]
    assert [[text, contains_chinese(text)] for text, _ in units["contains_chinese"]] == units["contains_chinese"]


TO_TWELVE = "zero one two three four five six seven eight nine ten eleven twelve"
TEENS = "thir four fif six seven eigh nine"
TENS = "twen thir for fif six seven eigh nine"
SMALL = {
    **{word: i for i, word in enumerate(TO_TWELVE.split())},
    **{f"{word}teen": 13 + i for i, word in enumerate(TEENS.split())},
    **{f"{word}ty": 20 + 10 * i for i, word in enumerate(TENS.split())},
}
POWERS = "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"


def read_back(words: str) -> int:
    """The number that English words say."""
    total = group = 0
    for word in words.replace(",", "").replace("-", " ").split():
        if word in POWERS.split():
            total = total + group * 1000 ** (1 + POWERS.split().index(word))
            group = 0
        elif word == "hundred":
            group *= 100
        elif word != "and":
            group += SMALL[word]
    return total + group


@settings(deadline=None, max_examples=200)
@given(st.one_of(st.integers(0, 10**36 - 1), st.integers(0, 10**7)))
def test_number_words_say_the_number(number: int) -> None:
    assert read_back(spell_out_numbers(str(number))) == number


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("2000000017", "two billion and seventeen"),
        ("1100", "one thousand, one hundred"),
        ("90021 x 0", "ninety thousand and twenty-one x zero"),
        ("٣ m²", "three mzero"),
        ("1" * 37, " ".join(["one"] * 37)),
        ("9" * 5000, " ".join(["nine"] * 5000)),
    ],
)
def test_number_words_match_the_reference(text: str, spoken: str) -> None:
    assert spell_out_numbers(text) == spoken


@settings(deadline=None, max_examples=200)
@given(st.text(st.one_of(st.sampled_from('中文。，、！"”.?!;: \n\t12aB-—（）`'), st.characters()), max_size=80))
def test_any_text_splits_into_speakable_parts(text: str) -> None:
    pieces = normalize_and_split(text, len)

    if text and not ("<|" in text and "|>" in text):
        assert not any(is_only_punctuation(piece) for piece in pieces)
    if text.strip() and not any(c in text for c in '.。?!;:？！；：、"”'):
        assert len(pieces) <= 1


@pytest.mark.parametrize("text", ["   ", "...", '."', "？”", "，", "\n\n"])
def test_empty_normalized_text_gives_no_part(text: str) -> None:
    assert normalize_and_split(text, len) == []
