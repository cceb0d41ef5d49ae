"""The tags of SSML that have an effect: ``<break>``, ``<spell>``, ``<say-as>``, ``<phoneme>``, ``<sub>``, ``<s>``."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Boundary, Segment, Span


def read(text: str, *, by_word: bool = False, size: int = 0, lexicon: Lexicon | None = None) -> list[Segment]:
    pipeline = TextPipeline(TextOptions(by_word=by_word), lexicon)
    deltas = [text[place : place + size] for place in range(0, len(text), size)] if size else [text]
    return [segment for delta in deltas for segment in pipeline.feed(delta)] + pipeline.end()


@pytest.mark.parametrize(
    ("tag", "pause_ms"),
    [
        ('<break time="300ms"/>', 300),
        ("<break time='1.5s' />", 1500),
        ("<break time=2s>", 2000),
        ('<BREAK TIME="60s"/>', 10_000),
        ('<break strength="weak" time="0.25s"/>', 250),
    ],
)
def test_break_ends_a_segment_with_a_silence(tag: str, pause_ms: int) -> None:
    text = f"Hello {tag} there."
    first, second = read(text)
    assert (first.text, first.boundary, first.pause_ms) == ("Hello", Boundary.BREAK, pause_ms)
    assert text[: first.end] == f"Hello {tag}"
    assert (second.text, second.boundary, second.pause_ms) == ("there.", Boundary.END, 0)


@pytest.mark.parametrize("tag", ["<break/>", '<break time="soon"/>', '<break time="5"/>', '<break strength="strong"/>'])
def test_break_without_a_length_ends_the_paragraph(tag: str) -> None:
    assert [(s.text, s.boundary) for s in read(f"One {tag} two")] == [
        ("One", Boundary.PARAGRAPH),
        ("two", Boundary.END),
    ]


def test_break_without_text_before_it_is_a_segment_without_spans() -> None:
    segments = read('<break time="1s"/><break time="2s"/>Hi.<break time="3s"/>')
    assert [(s.text, s.boundary, s.pause_ms) for s in segments] == [
        ("", Boundary.BREAK, 1000),
        ("", Boundary.BREAK, 2000),
        ("Hi.", Boundary.BREAK, 3000),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Code <spell>AB12-c</spell>. Ok", ["Code A, B 1 2-C.", "Ok"]),
        ("<spell>x y</spell> and <spell>*</spell> z", ["X Y and * z"]),
        ("<spell>b&amp;c</spell>", ["B&C"]),
        ("never <spell>end\nhere", ["never E N D", "here"]),
        ("</spell> ok </phoneme> ok", ["ok ok"]),
    ],
)
def test_spelled_text_is_read_letter_by_letter(text: str, expected: list[str]) -> None:
    assert [segment.text for segment in read(text)] == expected


@pytest.mark.parametrize("kind", ["characters", "spell-out", "digits", "telephone"])
def test_say_as_spells_like_spell(kind: str) -> None:
    text = (
        f'Code <say-as interpret-as="{kind}" format="1">AB12</say-as>. <SAY-AS INTERPRET-AS=\'{kind}\'>b</say-as > ok'
    )
    assert [segment.text for segment in read(text)] == ["Code A, B 1 2.", "B ok"]


@pytest.mark.parametrize(
    "text",
    [
        'on <say-as interpret-as="date" format="dmy">5 Nov</say-as> ok',
        "on <say-as>5 Nov</say-as> ok",
        '<speak version="1.1">on <prosody rate="slow">5 <emphasis level="strong">Nov</emphasis></prosody> ok',
        "on <voice name='x'><lang xml:lang='de-DE'>5 Nov</lang></voice> <sub>ok</sub></speak>",
        'on <sub alias="&#0; -">5</sub> <sub alias="x">Nov <sub alias="x"> </sub>ok',
    ],
)
def test_other_tags_of_ssml_leave_their_text(text: str) -> None:
    assert [segment.text for segment in read(text)] == ["on 5 Nov ok"]


def test_alias_is_spoken_for_the_written_text() -> None:
    text = "The <sub alias=\"World  Wide &amp; Web\">WWW</sub> or <sub alias='x y'>the web</sub> ok"
    (segment,) = read(text, lexicon=Lexicon.from_mapping({"WWW": "no"}))
    assert segment.text == "The World Wide & Web or x y ok"
    assert [text[w.start_char : w.end_char] for w in spoken_words(segment)] == ["The", "WWW", "or", "the web", "ok"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>One</p><p>two</p>", [("One", Boundary.PARAGRAPH), ("two", Boundary.PARAGRAPH)]),
        ("<s>One</s> <s>two</s>", [("One", Boundary.PARAGRAPH), ("two", Boundary.PARAGRAPH)]),
        ("<s>One.</s><S>Two</S>", [("One.", Boundary.SENTENCE), ("Two", Boundary.PARAGRAPH)]),
    ],
)
def test_tags_of_paragraph_and_sentence_end_a_segment(text: str, expected: list[tuple[str, Boundary]]) -> None:
    assert [(segment.text, segment.boundary) for segment in read(text)] == expected


def test_unclosed_spell_tag_ends_at_its_limit() -> None:
    spoken = " ".join(segment.text for segment in read("<spell>" + "b" * 210))
    assert spoken == "B " * 199 + "B" + "b" * 10


def test_spelled_text_is_spoken_without_its_closing_tag() -> None:
    pipeline = TextPipeline()
    pipeline.feed("the code is <spell>AB")
    assert [segment.text for segment in pipeline.flush()] == ["the code is A, B"]
    assert [segment.text for segment in pipeline.feed("C</spell> ok") + pipeline.end()] == ["C ok"]


def test_phoneme_tag_gives_the_pronunciation() -> None:
    text = 'I like <phoneme alphabet="ipa" ph="ˈnaɪki">Nike</phoneme> ok'
    (segment,) = read(text, lexicon=Lexicon.from_mapping({"Nike": "nike", "like": "love"}))
    assert segment.spans == (
        Span("I ", 0, 2),
        Span("love", 2, 6),
        Span(" ", 6, 7),
        Span("Nike", 43, 47, "ˈnaɪki"),
        Span(" ok", 57, 60),
    )
    assert [text[word.start_char : word.end_char] for word in spoken_words(segment)] == ["I", "like", "Nike", "ok"]


@pytest.mark.parametrize(
    "text",
    [
        '<phoneme ph="x">Nike and no end',
        '<phoneme alphabet="x-sampa" ph="x">Nike</phoneme> and no end',
        "<phoneme>Nike</phoneme> and no end",
        '<phoneme ph="x">Nike</b></phoneme> and no end',
        'Nike<phoneme ph="x"> </phoneme>and no end',
    ],
)
def test_unusable_phoneme_tag_leaves_its_text(text: str) -> None:
    (segment,) = read(text)
    assert segment.text == "Nike and no end"
    assert all(span.phonemes is None for span in segment.spans)


@pytest.mark.parametrize(
    "tag", ["<spell>", '<phoneme ph="x">', '<phoneme ph="', "<break time=", "<spell></spe", '<sub alias="x">']
)
def test_unclosed_tag_holds_no_text(tag: str) -> None:
    pipeline = TextPipeline()
    pipeline.feed(tag)
    plain = "some more plain words follow here, and then some, "
    assert [segment for _ in range(12) for segment in pipeline.feed(plain)]


def test_words_hold_no_tags() -> None:
    text = 'Call <spell>A1</spell> now. <break time="1s"/>Then <phoneme ph="ɡoʊ">go</phoneme>.'
    words = [text[w.start_char : w.end_char] for segment in read(text) for w in spoken_words(segment)]
    assert words == ["Call", "A1", "now.", "Then", "go"]


FRAGMENTS = st.sampled_from(
    (
        *(
            '<break time="300ms"/>',
            "<break time=",
            '"1s"/>',
            "<break/>",
            "<spell>",
            "</spell>",
            "</spe",
            "AB12",
            "a-b",
            "&amp;",
            "&am",
        ),
        *('<phoneme ph="ə">', '<phoneme alphabet="ipa" ph="t">', "</phoneme>", "</phon", "Nike", "New York", "Dr. "),
        *(
            '<say-as interpret-as="digits">',
            "</say-as>",
            "</say-",
            '<sub alias="a b">',
            "</sub >",
            "</sub",
            "<s>",
            "</s>",
        ),
        *(" ", ". ", ", ", "\n", "**", "[", "](x)", "`", "<b>", "👋", "\u200b", "word ", "https://x.com/a "),
    )
)


@settings(deadline=None, max_examples=80)
@given(st.lists(FRAGMENTS, max_size=12).map("".join), st.integers(1, 9), st.booleans())
def test_tags_do_not_depend_on_the_split(text: str, size: int, by_word: bool) -> None:
    lexicon = Lexicon.from_mapping({"New York": "noo york", "a": "ay"})
    whole = read(text, by_word=by_word, lexicon=lexicon)
    assert read(text, by_word=by_word, size=size, lexicon=lexicon) == whole
    assert [s.start for s in whole] == [0, *(s.end for s in whole)][: len(whole)]
    for segment in whole:
        assert all(segment.start <= span.start < span.end <= segment.end for span in segment.spans)
        assert all(one.end <= two.start for one, two in pairwise(segment.spans))
        assert not any("\ufdd0" in span.text or "\ufffc" in span.text for span in segment.spans)
