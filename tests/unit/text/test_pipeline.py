"""The text pipeline: flush, end, source, options, and constant cost per character."""

from __future__ import annotations

import time

import pytest
from tests.cases import each_case

from tts_worker.errors import IllegalCommand, InvalidRequest
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import Boundary


def test_flush_emits_pending_text() -> None:
    pipeline = TextPipeline()
    assert pipeline.feed("Hello, *you") == []
    (segment,) = pipeline.flush()
    assert (segment.text, segment.boundary, segment.start, segment.end) == ("Hello, you", Boundary.FLUSH, 0, 11)
    assert pipeline.flush() == []
    (last,) = pipeline.feed("* there") + pipeline.end()
    assert (last.text, last.boundary, last.start, last.end) == ("there", Boundary.END, 11, 18)


def test_flush_inside_a_character_keeps_it_whole() -> None:
    pipeline = TextPipeline()
    pipeline.feed(b"caf" + "é".encode()[:1])
    assert [segment.text for segment in pipeline.flush()] == ["caf"]
    (last,) = pipeline.feed("é".encode()[1:]) + pipeline.end()
    assert (last.text, pipeline.source) == ("é", "café")


def test_flush_inside_a_code_fence_reads_no_code() -> None:
    pipeline = TextPipeline()
    pipeline.feed("Look:\n```py")
    pipeline.flush()
    pipeline.feed("thon\nx = 1\n")
    assert pipeline.flush() == []
    assert [segment.text for segment in pipeline.feed("```\nDone.") + pipeline.end()] == ["Done."]


def test_filtered_text_belongs_to_the_next_segment() -> None:
    text = "👋 **Hi.** ![x](y) There.\n```\ncode\n```\n"
    pipeline = TextPipeline()
    segments = pipeline.feed(text) + pipeline.end()
    assert [text[segment.start : segment.end] for segment in segments] == ["👋 **Hi.", "** ![x](y) There.\n"]


def test_last_segment_ranges_to_the_end_of_the_text() -> None:
    pipeline = TextPipeline()
    assert [segment.end for segment in pipeline.feed("Hello 🎉 ") + pipeline.end()] == [8]


@each_case("text", ["", " \n", "🎉👨‍👩‍👧", "```\ncode", "https://x.com", "...!?", "**", "<br>"])
def test_text_without_speech_makes_no_segment(text: str) -> None:
    pipeline = TextPipeline()
    assert pipeline.feed(text) + pipeline.flush() + pipeline.end() == []
    assert pipeline.source == text


def test_abandoned_text_counts_but_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A STOP must not wait for it."""
    pipeline = TextPipeline(TextOptions())
    pipeline.feed("Hello ")
    euro = "\N{EURO SIGN}".encode()
    pipeline.feed(euro[:2])
    monkeypatch.setattr("tts_worker.text.filter.TextFilter.push", lambda *_: pytest.fail("it is read"))
    pipeline.abandon([euro[2:], " there", euro[:1]])
    assert pipeline.source == "Hello \N{EURO SIGN} there\N{REPLACEMENT CHARACTER}"
    with pytest.raises(IllegalCommand):
        pipeline.feed("more")


def test_calls_after_the_end_are_illegal() -> None:
    pipeline = TextPipeline()
    pipeline.end()
    for call in (pipeline.end, pipeline.flush, lambda: pipeline.feed("x")):
        with pytest.raises(IllegalCommand):
            call()


@pytest.mark.parametrize(
    "sizes", [(0, 60, 90, 180), (70, 60, 90, 180), (12, 60, 10, 180), (12, 60, 190, 180), (1, 9, 20, 8)]
)
def test_inconsistent_sizes_are_rejected(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match="must hold"):
        TextOptions(first_clause_chars=sizes[0], clause_chars=sizes[1], first_max_chars=sizes[2], max_chars=sizes[3])


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match="urls must be one of drop, host, keep"):
        TextOptions(urls="maybe")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="BCP-47"):
        TextOptions(language="English, please")


def test_source_joins_many_deltas() -> None:
    pipeline = TextPipeline()
    text = "word " * 2000
    for char in text:
        pipeline.feed(char)
    assert pipeline.source == text


LATENCIES = [
    # text, and the segment that its last character completes
    ("Hello there. ", "Hello there."),
    ("Hello there! ", "Hello there!"),
    ("Good morning to you, ", "Good morning to you,"),
    ("Hello there\n", "Hello there"),
    ("Hello there.\n", "Hello there."),
    ("Hello [for $5\u2028", "Hello [for $5"),
    ("Visit https://x.com/a. ", "Visit."),
    ("It is **done.** ", "It is done."),
    ("See [this](x). ", "See this."),
    ("It is 5 p.m. The", "It is 5 p.m."),
    ("It is 25. T", "It is 25."),
    ("Wait... T", "Wait..."),
    ('He said "no." T', 'He said "no."'),
    ("你好。再", "你好。"),
    ("「你好。」再", "「你好。」"),
]


@each_case(("text", "segment"), LATENCIES)
def test_segment_is_emitted_by_the_deciding_character(text: str, segment: str) -> None:
    """The character before it leaves the boundary open."""
    pipeline = TextPipeline()
    assert pipeline.feed(text[:-1]) == []
    assert [found.text for found in pipeline.feed(text[-1])] == [segment]


def test_long_text_in_single_bytes_takes_linear_time() -> None:
    data = ("Some words that follow each other, 3.14 times. **Bold** 👋 and so on; " * 900).encode()
    began = time.process_time()
    pipeline = TextPipeline()
    count = sum(len(pipeline.feed(data[place : place + 1])) for place in range(len(data)))
    assert (time.process_time() - began) < 20 * len(data) / 1e6 + 1
    assert count > 900
    assert len(pipeline.source.encode()) == len(data)


@pytest.mark.parametrize(
    "mark", ["a", "Dr. ", "1. ", ". ", "- ", "a--", "a.'", "你", "a\u0301", "\u0301", "...", '"', "a" * 170 + " "]
)
@pytest.mark.parametrize("by_word", [False, True])
def test_hostile_text_is_cut_in_linear_time(mark: str, by_word: bool) -> None:
    text = (mark * 20_000)[:20_000]
    pipeline = TextPipeline(TextOptions(by_word=by_word))
    began = time.process_time()
    segments = pipeline.feed(text) + pipeline.end()
    assert (time.process_time() - began) * 50 < 60  # seconds per million characters
    assert max((len(segment.text) for segment in segments), default=0) <= 180
