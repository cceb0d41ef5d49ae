"""Respelling: words become what the model reads, everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.train.spelling import endings, fragments, spellings
from tts_worker.engine.cosyvoice.tokens.respelling import Respelling
from tts_worker.errors import BundleError

WORDS = {"the": "ðə", "kettle": "kˈɛTᵊl", "don't": "dˈOnt", "well": "wˈɛl", "known": "nˈOn"}
PARTS = {"~k": "k", "~sh": "ʃ", "~s": "s"}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        (" The kettle, DON’T!", " ðə kˈɛTᵊl, dˈOnt!"),
        ("well-known - the", "wˈɛlnˈOn - ðə"),
        ("shks", "ʃks"),
        ("qq 12 水", "qq 12 水"),
    ],
)
def test_words_and_fragments_are_respelled(text: str, spelled: str) -> None:
    assert Respelling({**WORDS, **PARTS})(text) == spelled


LISTED = {
    **{"minute": "mˈɪnət", "box": "bˈɑks", "freeze": "fɹˈiz", "story": "stˈɔɹi", "roof": "ɹˈuf", "set": "sˈɛt"},
    **{"delay": "dəlˈA", "want": "wˈɑnt", "arrive": "əɹˈIv", "walk": "wˈɔk", "plan": "plˈæn", "news": "nˈuz"},
}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("Minutes, boxes freezes", "mˈɪnəts, bˈɑksᵻz fɹˈizᵻz"),
        ("stories roof's news", "stˈɔɹiz ɹˈufs nˈuz"),
        ("delayed wanted arrived walked", "dəlˈAd wˈɑntᵻd əɹˈIvd wˈɔkt"),
        ("planned planning arriving setting", "plˈænd plˈænɪŋ əɹˈIvɪŋ sˈɛtɪŋ"),
        ("s ing Xs arr", "s ɪŋ kss ɑɹɹ"),
    ],
)
def test_listed_words_take_endings(text: str, spelled: str) -> None:
    assert Respelling({**LISTED, "x": "ks", "ar": "ɑɹ", **endings(), **fragments()})(text) == spelled


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_all_that_is_no_word_stays(text: str) -> None:
    spelled = Respelling({**endings(), **fragments()})(text)
    assert [char for char in text if char.isspace()] == [char for char in spelled if char.isspace()]
    assert [char for char in text if char.isnumeric()] == [char for char in spelled if char.isnumeric()]


def test_most_frequent_pronunciation_is_taken() -> None:
    texts, spelled = ["The a, a.", "A bee."], ["ðə ˈA, ɐ.", "ɐ bˈi."]
    assert spellings(texts, spelled) == {"the": "ðə", "a": "ɐ", "bee": "bˈi"}


@pytest.mark.parametrize("line", ["word", "word\t", "\tsound", "~\tsound", "-=e\tsound", "-s\t", ""])
def test_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "respelling.tsv"
    file.write_text(f"the\tðə\n{line}\nkettle\tkˈɛTᵊl\n", "utf-8")
    with pytest.raises(BundleError, match="line 2"):
        Respelling.load(file)
