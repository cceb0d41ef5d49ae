"""Text tokenizer of CosyVoice-300M: a ``.tiktoken`` vocabulary read with the tokenizers library."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cosyvoice.whisper_vocabulary import write_vocabulary
from tts_worker.engine.cosyvoice.bundle.config import WHISPER, WHISPER_CHARACTERS
from tts_worker.engine.cosyvoice.tokens.tokenizer import (
    WhisperTokenizer,
    read_ranks,
    whisper_special_tokens,
)
from tts_worker.errors import BundleError

ROWS = 262 + len(whisper_special_tokens(WHISPER))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "multilingual.tiktoken")


@pytest.fixture(scope="module")
def tokenizer(vocabulary: Path) -> WhisperTokenizer:
    return WhisperTokenizer(vocabulary, WHISPER, ROWS)


def join_by_rank(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Join the neighbors whose concatenation has the lowest rank, leftmost first, as long as there are any."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while pairs := [(ranks[a + b], n) for n, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]:
        place = min(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [ranks[part] for part in parts]


@given(st.text("ab你 1", max_size=30))
def test_neighbors_are_joined_by_rank(vocabulary: Path, tokenizer: WhisperTokenizer, text: str) -> None:
    ranks = read_ranks(vocabulary)
    words = re.findall(r" ?[ab你]+| ?1+|\s+(?!\S)|\s+", text)
    assert "".join(words) == text
    assert tokenizer.encode(text) == [id_ for word in words for id_ in join_by_rank(word.encode(), ranks)]


@settings(max_examples=30)
@given(st.text(max_size=40))
def test_every_text_is_decoded_to_itself(tokenizer: WhisperTokenizer, text: str) -> None:
    plain = re.sub("[\ud800-\udfff]", "\ufffd", text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == plain
    assert all(0 <= id_ < 262 for id_ in ids)


def test_special_tokens_have_whispers_ids(tokenizer: WhisperTokenizer) -> None:
    first = 262
    assert len(tokenizer) == ROWS
    assert tokenizer.special_ids["<|endoftext|>"] == first
    assert tokenizer.special_ids["<|en|>"] == first + 2
    assert tokenizer.special_ids["<|30.00|>"] == ROWS - 1
    # 50257 tokens of Whisper's vocabulary and 51866 rows of the official model; 58836 and 60515 at 25 Hz.
    assert 50257 + len(whisper_special_tokens(WHISPER)) == 51866
    assert 58836 + len(whisper_special_tokens(WHISPER_CHARACTERS)) <= 60515


def test_special_tokens_in_text_are_characters_unless_allowed(tokenizer: WhisperTokenizer) -> None:
    assert max(tokenizer.encode("<|en|>a")) < 262
    assert tokenizer.encode("<|en|>a", allow_special=True) == [264, *tokenizer.encode("a")]


def test_control_tags_are_spelled_out(tokenizer: WhisperTokenizer) -> None:
    assert tokenizer.control_ids("[laughter]") == tokenizer.encode("[laughter]")
    assert tokenizer.control_ids("<strong>") == tokenizer.encode("<strong>")
    assert tokenizer.control_ids("T AH0") is None
    assert tokenizer.control_ids("[mn]") is None


def test_language_is_announced_with_its_token(tokenizer: WhisperTokenizer) -> None:
    assert tokenizer.language_ids("yue") == [tokenizer.special_ids["<|yue|>"]]
    assert tokenizer.language_ids("transcribe") == []


def test_missing_vocabulary_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"multilingual\.tiktoken: is missing.*voicepack pull cosyvoice-300m"):
        WhisperTokenizer(tmp_path / "multilingual.tiktoken", WHISPER, ROWS)


@pytest.mark.parametrize(
    "damaged",
    [
        "<html></html>",
        "IQ== 0\nIg== zero",
        "IQ== 0\n",
        "".join(f"{base64.b64encode(bytes([n])).decode()} {n + n // 200}\n" for n in range(256)),
    ],
)
def test_damaged_vocabulary_is_refused(tmp_path: Path, damaged: str) -> None:
    file = tmp_path / "multilingual.tiktoken"
    file.write_text(damaged)
    with pytest.raises(BundleError, match=r"\.tiktoken vocabulary"):
        read_ranks(file)


def test_vocabulary_must_fit_the_embedding(vocabulary: Path) -> None:
    with pytest.raises(BundleError, match=f"has {ROWS} tokens, but the model has {ROWS - 1} embedding rows"):
        WhisperTokenizer(vocabulary, WHISPER, ROWS - 1)
