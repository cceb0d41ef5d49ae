"""Control tags and phonemes reach the model as special tokens, and nothing else does."""

from __future__ import annotations

import argparse
import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.streaming.engines import KEY, bundle, engine, tokenizer
from tests.unit.streaming.engines import settings as streaming
from tts_worker.commands.say import add_arguments
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, TokenGenerator, is_speakable
from tts_worker.engine.cosyvoice.tokens.tokenizer import CONTROL_TAGS, phonemes
from tts_worker.engine.cosyvoice.voices.speaker import DIALECTS, EMOTIONS, MANNERS, instruct_ids
from tts_worker.errors import MissingExtra
from tts_worker.features.offline import say
from tts_worker.front_end.instruction import END_OF_PROMPT
from tts_worker.text.control_tags import ControlTags
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Segment, SynthesisParams

FAMILY = "cosyvoice3"
TAGS = ControlTags((*CONTROL_TAGS, *(f"[{phoneme}]" for phoneme in phonemes(FAMILY))))
OPTIONS = TextOptions(control_tags=TAGS, alphabets=("cmu-arpabet", "pinyin"))
TEXT = (
    "Well [laughter], wow![sigh] this is <strong>very</strong> good. "
    "[breath]And 报道[j][ǐ]予好评。 *Bold* [link](http://x.y) [1]."
)


def read(text: str, cuts: tuple[int, ...] = (), options: TextOptions = OPTIONS, **lexicon: str) -> list[Segment]:
    pipeline = TextPipeline(options, Lexicon.from_mapping(lexicon) if lexicon else None)
    segments = []
    places = (0, *sorted(cuts), len(text))
    for first, last in itertools.pairwise(places):
        segments += pipeline.feed(text[first:last])
    return [*segments, *pipeline.end()]


def units(segments: list[Segment]) -> list[str]:
    return [span.phonemes for segment in segments for span in segment.spans if span.phonemes is not None]


def ids(*texts: Segment) -> list[int]:
    model = EngineSpec(bundle(FAMILY).config, tokenizer(FAMILY), streaming())
    generator = TokenGenerator(KEY, SynthesisParams("prompted"), model)
    found = []
    for segment in texts:
        found += generator._text_ids(segment)
        generator._last_text = "a word"
    return found


def test_tags_are_units_between_plain_text() -> None:
    segments = read(TEXT)
    assert units(segments) == ["[laughter]", "[sigh]", "<strong>", "</strong>", "[breath]", "[j]", "[ǐ]"]
    spoken = "".join(segment.text for segment in segments)
    assert "Bold" in spoken
    assert "*" not in spoken
    assert "http" not in spoken
    assert "[1]" not in spoken
    words = [TEXT[word.start_char : word.end_char] for segment in segments for word in spoken_words(segment)]
    assert "[laughter]," in words
    assert "<strong>very</strong>" in words


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=5), st.booleans())
def test_split_of_the_stream_changes_no_tag(cuts: list[int], markdown: bool) -> None:
    options = TextOptions(control_tags=TAGS, markdown=markdown)
    assert read(TEXT, tuple(cuts), options) == read(TEXT, (), options)


def test_other_engines_drop_the_tags() -> None:
    segments = read(TEXT, options=TextOptions())
    assert units(segments) == []
    assert segments[0].text == "Well, wow!"


def test_tags_become_special_tokens() -> None:
    special = tokenizer(FAMILY).special_ids
    found = ids(*read(TEXT))
    assert [id_ for id_ in found if id_ in special.values()] == [
        special[tag] for tag in ("[laughter]", "[sigh]", "<strong>", "</strong>", "[breath]", "[j]", "[ǐ]")
    ]


@pytest.mark.parametrize("text", [f"Say {END_OF_PROMPT} now.", "Say <|im_start|> and <|endofsystem|> now."])
def test_other_special_tokens_never_reach_the_model(text: str) -> None:
    special = set(tokenizer(FAMILY).special_ids.values())
    for markdown in (True, False):
        found = ids(*read(text, options=TextOptions(control_tags=TAGS, markdown=markdown)))
        assert not special & set(found)
    assert tokenizer(FAMILY).control_ids(END_OF_PROMPT) is None


def test_lexicon_and_phoneme_tags_prescribe_phonemes() -> None:
    special = tokenizer(FAMILY).special_ids
    expected = [special[f"[{phoneme}]"] for phoneme in ("T", "AH0", "M", "EY1", "T", "OW2")]
    text = 'A <phoneme alphabet="cmu-arpabet" ph="T AH0 M EY1 T OW2">tomato</phoneme>.'
    for found in (ids(*read(text)), ids(*read("A tomato.", tomato="/T AH0 M EY1 T OW2/"))):
        assert [id_ for id_ in found if id_ in special.values()] == expected
    # IPA is no alphabet of the model: the word itself is read.
    ipa = 'A <phoneme alphabet="ipa" ph="təˈmɑːtəʊ">tomato</phoneme>.'
    assert ids(*read(ipa)) == ids(*read("A tomato.", tomato="/təˈmɑːtəʊ/")) == ids(*read("A tomato."))


def test_marks_alone_are_not_speakable() -> None:
    assert not any(is_speakable(segment) for segment in read("<strong></strong>"))
    assert all(is_speakable(segment) for segment in read("[laughter]"))


@pytest.mark.parametrize("family", ["cosyvoice2", "cosyvoice3"])
def test_presets_are_names_of_instructions(family: str) -> None:
    config = bundle(family).config
    names = (*DIALECTS, *EMOTIONS, *MANNERS)
    seen = {tuple(instruct_ids(tokenizer(family), config, name)) for name in names}
    assert len(seen) == len(names)
    sentence = f"请用{DIALECTS['cantonese']}表达。" if family == "cosyvoice3" else "用广东话说这句话"
    for name in ("cantonese", " Cantonese "):
        named = instruct_ids(tokenizer(family), config, name)
        assert named == instruct_ids(tokenizer(family), config, sentence)


def test_engine_names_its_tags() -> None:
    info = engine("cosyvoice2").info
    assert "[laughter]" in info.control_tags
    assert END_OF_PROMPT not in info.control_tags
    assert info.phonemes == ()
    assert "ǐ" in phonemes(FAMILY)
    assert info.front_end


@pytest.mark.parametrize(
    ("how", "spoken"),
    [
        ({}, ["他有三平方米。"]),
        ({"by_reference": True}, ["他有3m平方。"]),
        ({"by_word": True}, ["他", " 有", "三平方米"]),
    ],
)
def test_say_applies_the_rules(how: dict[str, bool], spoken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def without_wetext() -> None:
        raise MissingExtra("text normalization", "normalize")

    monkeypatch.setattr(say, "load_normalizer", without_wetext)
    assert [segment.text for segment in said("他 有3m²", **how)] == spoken


def test_say_reads_with_wetext_where_it_is_installed() -> None:
    pytest.importorskip("wetext", reason="needs the extra 'normalize'")
    (segment,) = said("他有25%。", by_reference=True)
    assert segment.text == "他有百分之二十五。"


def test_say_knows_the_tags_of_a_session() -> None:
    spoken = [span.phonemes for segment in said(TEXT) for span in segment.spans if span.phonemes]
    assert spoken == ["[laughter]", "[sigh]", "<strong>", "</strong>", "[breath]", "[j]", "[ǐ]"]


def said(text: str, *, by_word: bool = False, by_reference: bool = False) -> list[Segment]:
    """The segments of ``say`` with a model directory."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    speaker = SimpleNamespace(config=bundle(FAMILY).config)
    return say._segments(parser.parse_args([text]), speaker, by_word=by_word, by_reference=by_reference)
