"""Properties of ``TextPipeline`` for any text and any split of the stream."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes.filtering import filter_text
from tts_worker.text.character_filter import BREAK, is_filtered
from tts_worker.text.characters import cluster_end, is_pictograph
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Boundary, Segment, UrlMode

LEXICON = Lexicon.from_mapping(
    {"New York": "noo york", "New York City": "the city", "nginx": "/ˈɛndʒɪnˈɛks/", "Dr.": "doctor", "好的": "hao de"}
)

FRAGMENTS = st.one_of(
    st.sampled_from(
        (
            *("**bold**", "*it*", "_x_", "snake_case", "2*3*4", "***", "~~no~~", "~5", "`code`", "``a`b``", "`", "```"),
            *("dial ", " press *6", " *67", " *#06#", " or "),
            *("```py\nx = 1\n```\n", "\n```\n", "~~~\n", "# Head\n", "\n## ", "#tag", "- item\n", "* ", "1. ", "12) "),
            *("> quote\n", "---\n", "***\n", "- [x] done\n", "| a | b |\n", "|---|:-:|\n", "a | b", "|"),
            *("[text](https://x.com/a_(b))", "![alt](img.png)", "[1]", "[^note]", "[^1]: ", "[a][b]", "[", "]", "]("),
            *("https://example.com/a?b=1.", "http://", "www.x.org", "me@x.com", "<https://x.com>", "mailto:"),
            *("<b>", "</b>", "<br/>", '<a href="x">', "<!-- no -->", "<|end|>", "a < b", "5 > 3", "<", ">", "&amp;"),
            *("\\*", "\\", "C:\\x", "👋🏽", "👨‍👩‍👧", "3️⃣", "🇩🇪", "©️", "\ufe0f", "\u200d", "\u200b", "\u202e", "\x00"),
            *(
                "<think>",
                "</think>",
                "<|channel|>",
                "analysis",
                "final<|message|>",
                '{"name": "f", "arguments": {',
                "}}\n",
            ),
            *("[TOOL_CALLS]", "[laughs]", "[pause 1s]", "<<warm", ": x>>", "^^", "*sighs*", "<laugh>", "<tool_call>"),
            *("$x^2$", "$", "$$", "\\frac{1}{2}", "\\(a", "\\)", "\\leq", "{", "}", "\\text{if", "$20"),
            *("3.", "14", "1,000", "10:30", "v1.2", "$5", "Dr. ", "Mr. ", "e.g. ", "U.S. ", "J. ", "a.m. ", "etc. "),
            *(
                "temp. ",
                "Art. ",
                "fig. ",
                "lg. ",
                "Tues. ",
                "Mon",
                "day",
                "May",
                "III",
                "I ",
                "PST",
                "(",
                " 25 ",
                "no. ",
            ),
            *(
                "Hello",
                " world",
                ". ",
                "! ",
                "? ",
                ", ",
                "; ",
                ": ",
                "...",
                "… ",
                " — ",
                "--",
                " - ",
                '." ',
                ".) ",
                "'",
            ),
            *("你好", "。", "，", "！", "「", "」", "好的", "ไทย", "がんばって", "e\u0301", "한국어", "\u0600"),
            *("New ", "York", " City", "nginx", "\n", "\n\n", "\r\n", "\r", "\t", " ", "  ", "\u2028", "\xa0"),
        )
    ),
    st.text(max_size=5),
    st.text(alphabet="ab1 .,*_`[]()<>|\\!\n#-", max_size=12),
    st.sampled_from("abc ").map(lambda char: char * 40),
)
TEXTS = st.lists(FRAGMENTS, max_size=18).map("".join)

SMALL = TextOptions(first_clause_chars=4, clause_chars=10, first_max_chars=20, max_chars=30)
OPTIONS = st.builds(
    replace,
    st.sampled_from(
        (TextOptions(), SMALL, TextOptions(by_word=True), TextOptions(first_clause_chars=1, clause_chars=1))
    ),
    markdown=st.sampled_from((True, True, False)),
    urls=st.sampled_from(UrlMode),
    drop_reasoning=st.sampled_from((True, True, False)),
    language=st.sampled_from((None, "en-GB", "de")),
)
LEXICONS = st.sampled_from((None, LEXICON))


def segments_of(deltas: list[str] | list[bytes], options: TextOptions, lexicon: Lexicon | None) -> list[Segment]:
    pipeline = TextPipeline(options, lexicon)
    found = [segment for delta in deltas for segment in pipeline.feed(delta)]
    return found + pipeline.end()


def cut_bytes(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def cut_utf16(text: str, places: list[int]) -> list[str]:
    """Split as JSON clients that count in UTF-16 units do, also between the halves of a surrogate pair."""
    return [part.decode("utf-16-le", "surrogatepass") for part in _even(text.encode("utf-16-le"), places)]


def _even(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) // 2 + 1) * 2 for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@settings(deadline=None, max_examples=400)
@given(TEXTS, PLACES, OPTIONS, LEXICONS)
@example("**a** 3.14 👋🏽 `x`", [3, 4, 5, 9, 10, 11], TextOptions(), None)
def test_segments_do_not_depend_on_the_split_of_the_stream(
    text: str, places: list[int], options: TextOptions, lexicon: Lexicon | None
) -> None:
    whole = segments_of([text], options, lexicon)
    data = text.encode()
    assert segments_of(cut_utf16(text, places), options, lexicon) == whole
    assert segments_of(cut_bytes(data, places), options, lexicon) == whole
    assert segments_of([data[i : i + 1] for i in range(len(data))], options, lexicon) == whole


@settings(deadline=None, max_examples=150)
@given(TEXTS, st.integers(1, 5), OPTIONS, LEXICONS)
def test_segments_leave_as_early_as_from_whole_text(
    text: str, size: int, options: TextOptions, lexicon: Lexicon | None
) -> None:
    """Deltas that are read together hold no segment back."""
    pipeline = TextPipeline(options, lexicon)
    count = 0
    for place in range(0, len(text), size):
        count += len(pipeline.feed(text[place : place + size]))
        if place % 8 < size:  # the whole text is expensive
            assert count == len(TextPipeline(options, lexicon).feed(text[: place + size]))


@settings(deadline=None, max_examples=250)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=3), OPTIONS, LEXICONS, st.booleans())
def test_segments_tile_the_text(
    text: str, flushes: list[int], options: TextOptions, lexicon: Lexicon | None, only_words: bool
) -> None:
    pipeline = TextPipeline(options, lexicon)
    segments: list[Segment] = []
    edges = [0, *sorted(min(place, len(text)) for place in flushes), len(text)]
    for number, (a, b) in enumerate(pairwise(edges)):
        segments += pipeline.feed(text[a:b])
        if number < len(flushes):
            segments += pipeline.flush_words() if only_words else pipeline.flush()
    segments += pipeline.end()

    assert pipeline.source == text
    assert [segment.index for segment in segments] == list(range(len(segments)))
    assert [segment.start for segment in segments] == [0, *(segment.end for segment in segments)][: len(segments)]
    for segment in segments:
        assert segment.end <= len(text)
        if not segment.spans:  # a break without text before it, or the mark of a flush after the last word
            if segment.boundary is not Boundary.BREAK:
                assert options.by_word
                assert segment.boundary is Boundary.FLUSH
                assert segment.start == segment.end
            continue
        assert any(char.isalnum() for char in segment.text) or any(span.phonemes for span in segment.spans)
        place = segment.start
        for span in segment.spans:
            assert place <= span.start < span.end <= segment.end
            assert span.text
            place = span.end
        if not options.by_word:
            assert segment.text == segment.text.strip()
            assert sum(len(span.text) for span in segment.spans if len(span.text) == span.end - span.start) <= (
                options.max_chars if segment.index else options.first_max_chars
            )
        for word in spoken_words(segment):
            assert segment.start <= word.start_char < word.end_char <= segment.end
    if segments and segments[-1].boundary is Boundary.END:
        assert segments[-1].end == len(text)


@settings(deadline=None, max_examples=150)
@given(TEXTS)
def test_uncovered_text_has_no_speech(text: str) -> None:
    options = TextOptions(markdown=False, urls=UrlMode.KEEP, drop_reasoning=False)
    segments = segments_of([text], options, None)
    rest = text[segments[-1].end :] if segments else text
    if "\u20e3" not in rest and "\ufe0f" not in rest:  # a keycap drops its digit
        assert not any(char.isalnum() and not is_filtered(char) for char in rest)


@settings(deadline=None, max_examples=200)
@given(TEXTS, OPTIONS)
def test_filtered_characters_are_never_spoken(text: str, options: TextOptions) -> None:
    for segment in segments_of([text], options, None):
        for char in segment.text:
            assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn")
            assert not is_pictograph(char)
            assert not "\ufe00" <= char <= "\ufe0f"
            assert char not in "\u20e3\ufffc\ufffd"
        assert "  " not in segment.text
        escaped = "\\`" in "".join(char for char in text if not is_filtered(char))
        if options.markdown and not escaped and "&" not in text:
            assert "`" not in segment.text


@settings(deadline=None, max_examples=150)
@given(TEXTS)
def test_filtered_character_maps_to_one_original_character(text: str) -> None:
    found = filter_text(text)
    places = [index for _, index in found]
    assert all(a < b for a, b in pairwise(places))
    for char, index in found:
        if len(char) > 1 or char == BREAK:  # a formula, or a pause
            continue
        assert char == text[index] or char in ' \n,<>&"'  # folded spaces, table pipes, entities


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(("word", "two", "Then", "3.5", "it's", "naïve")), min_size=1, max_size=12), TEXTS)
def test_sentence_is_emitted_with_the_space_after_its_stop(words: list[str], before: str) -> None:
    pipeline = TextPipeline(TextOptions(markdown=False, drop_reasoning=False))
    pipeline.feed(before)
    pipeline.flush()
    sentence = " ".join([*words, "end"]) + "."
    out = [segment for char in sentence for segment in pipeline.feed(char)]
    assert all(segment.boundary in (Boundary.FORCED, Boundary.CLAUSE) for segment in out)
    last = pipeline.feed(" ")
    assert [segment.boundary for segment in last] == [Boundary.SENTENCE]
    assert last[0].text.endswith("end.")


@settings(deadline=None, max_examples=100)
@given(TEXTS)
def test_open_mark_delays_text_by_bounded_characters(text: str) -> None:
    """After any text (without fenced code, which is dropped), plain words are emitted eventually."""
    pipeline = TextPipeline(TextOptions(drop_reasoning=False))
    pipeline.feed(text.replace("`", "").replace("~", "") + "\n")
    plain = "some more plain words follow here, and then some, "
    assert [segment for _ in range(20) for segment in pipeline.feed(plain)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(("a", "b", "e\u0301", "กำ", "각", "각", "n\u0303\u0323", " ")), max_size=150))
def test_forced_cut_keeps_grapheme_clusters(clusters: list[str]) -> None:
    text = "".join(clusters)
    options = replace(SMALL, markdown=False)
    for segment in segments_of([text], options, None):
        assert cluster_end(text, segment.end) == segment.end or text[segment.end - 1] == " "


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.binary(max_size=6), st.text(max_size=4)), max_size=8))
def test_any_mixture_of_bytes_and_text_is_accepted(deltas: list[bytes | str]) -> None:
    pipeline = TextPipeline()
    for delta in deltas:
        pipeline.feed(delta)
    pipeline.end()
    pipeline.source.encode()  # no unpaired surrogate remains
    plain = [delta for delta in deltas if isinstance(delta, str)]
    assert all(char in pipeline.source for delta in plain for char in delta)
