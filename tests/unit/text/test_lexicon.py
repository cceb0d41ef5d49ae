"""The lexicon: levels, whole words, longest match, and errors that name the key."""

from __future__ import annotations

import re

import pytest
from tests.cases import each_case

from tts_worker.errors import InvalidRequest
from tts_worker.text.lexicon import MAX_ALIAS_CHARS, MAX_ENTRIES, MAX_GRAPHEME_CHARS, Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import Span


def spoken(text: str, lexicon: Lexicon, cut: int | None = None) -> str:
    pipeline = TextPipeline(lexicon=lexicon)
    deltas = [text] if cut is None else [text[:cut], text[cut:]]
    segments = [segment for delta in deltas for segment in pipeline.feed(delta)] + pipeline.end()
    return " ".join(segment.text for segment in segments)


@each_case(
    ("text", "expected"),
    [
        ("Use Nginx's config, nginx2 or my_nginx.", "Use engine x's config, nginx2 or my_nginx."),
        ("New York, New York City, new  york and New Yorkers", "noo york, the city, noo york and New Yorkers"),
        ("IOS and iOS and ios", "IOS and eye oh ess and ios"),
        ("C++ and .NET", "see plus plus and dot net"),
        ("New **York** and New\nYork", "noo york and New York"),
        ("Dr. Who is here. Yes", "doctor Who is here. Yes"),
        ("Yahoo! Japan is up. Ok", "yahoo japan is up. Ok"),
        ("去北京玩", "去bayjing玩"),
        ("café is no cafe\u0301", "café is no cafe\u0301"),
        ("New New York", "New noo york"),
        ("nginx", "engine x"),
        ("in New York Ci", "in noo york Ci"),
        ("a new new yor", "a new new yor"),
    ],
)
def test_longest_entry_matches_whole_words(text: str, expected: str) -> None:
    lexicon = Lexicon.from_mapping(
        {
            "nginx": "engine x",
            "New York": "noo york",
            "New York City": "the city",
            "iOS": "eye oh ess",
            "C++": "see plus plus",
            ".NET": "dot net",
            "Dr.": "doctor",
            "Yahoo! Japan": "yahoo japan",
            "北京": "bayjing",
            "cafe": "kaffay",
        }
    )
    assert spoken(text, lexicon) == expected
    for cut in range(len(text)):
        assert spoken(text, lexicon, cut) == expected


def test_replacement_keeps_its_source_range() -> None:
    lexicon = Lexicon.from_mapping({"new york": "noo york", "Siobhan": "/ʃɪˈvɔːn/"})
    pipeline = TextPipeline(lexicon=lexicon)
    (segment,) = pipeline.feed("In New York Siobhan said") + pipeline.end()
    assert segment.spans == (
        Span("In ", 0, 3),
        Span("noo york", 3, 11),
        Span(" ", 11, 12),
        Span("Siobhan", 12, 19, phonemes="ʃɪˈvɔːn"),
        Span(" said", 19, 24),
    )


def test_entry_of_several_words_is_one_word_segment() -> None:
    lexicon = Lexicon.from_mapping({"new york": "noo york"})
    pipeline = TextPipeline(TextOptions(by_word=True), lexicon)
    segments = [segment for char in "In New York now" for segment in pipeline.feed(char)] + pipeline.end()
    assert [segment.text for segment in segments] == ["In", " noo york", " now"]


def test_single_phoneme_is_valid() -> None:
    (entry,) = Lexicon.from_mapping({"a": "/ə/"})
    assert (entry.phonemes, entry.alias) == ("ə", None)


def test_later_levels_win() -> None:
    server = Lexicon.from_mapping({"nginx": "server", "US": "exact", "a b": "server"})
    voice = Lexicon.from_mapping({"NGINX": {"say": "voice", "case_sensitive": False}})
    session = Lexicon.from_mapping({"us": "session"})
    lexicon = Lexicon.merged(server, voice, session)
    assert spoken("nginx US us a b", lexicon) == "voice session session server"
    assert spoken("US us", Lexicon.merged(session, server)) == "exact session"
    assert len(lexicon) == 3


def test_case_sensitivity_is_configurable() -> None:
    lexicon = Lexicon.from_mapping({"polish": {"say": "shine", "case_sensitive": True}})
    assert spoken("polish the Polish", lexicon) == "shine the Polish"


def test_merging_no_lexicons_is_empty() -> None:
    assert spoken("as it is", Lexicon.merged()) == "as it is"


@each_case(
    ("data", "message"),
    [
        (["a"], "voice.lexicon must be a mapping"),
        (None, "not null"),
        ({1: "one"}, "a key of type int"),
        ({"": "x"}, "needs a letter or a digit"),
        ({"!?": "x"}, "needs a letter or a digit"),
        ({"x" * (MAX_GRAPHEME_CHARS + 1): "x"}, "at most 64 characters"),
        ({"word": 7}, "voice.lexicon['word'] must be a spelling"),
        ({"word": None}, "voice.lexicon['word'] must be a spelling"),
        ({"word": ""}, "voice.lexicon['word'] needs something to say"),
        ({"word": "//"}, "voice.lexicon['word'] needs something to say"),
        ({"word": "/"}, "voice.lexicon['word'] needs something to say"),
        ({"word": "x" * (MAX_ALIAS_CHARS + 1)}, "at most 256 characters"),
        ({"word": "a\x00b"}, "never read aloud"),
        ({"wo\u200brd": "ab"}, "never read aloud"),
        ({"word": {"case_sensitive": True}}, "needs say"),
        ({"word": {"say": "x", "color": 1}}, "takes say and case_sensitive"),
        ({"word": {"say": "x", "case_sensitive": "yes"}}, "voice.lexicon['word'].case_sensitive must be true or false"),
        ({str(number): "x" for number in range(MAX_ENTRIES + 1)}, "5001 entries; at most 5000"),
    ],
)
def test_invalid_entry_is_named_in_the_error(data: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        Lexicon.from_mapping(data, name="voice.lexicon")


def test_adjacent_entries_leave_no_empty_span() -> None:
    pipeline = TextPipeline(lexicon=Lexicon.from_mapping({"好的": "hao de"}))
    spans = [span.text for segment in pipeline.feed("好的好的!") + pipeline.end() for span in segment.spans]
    assert spans == ["hao de", "hao de", "!"]
