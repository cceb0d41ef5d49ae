"""CosyVoice's own front end: equal to the reference's on whole texts, for any split of the stream.

``shape``, the part that follows the worker's own reading, gives the voices of CosyVoice the words of the other voices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from tts_worker.front_end.normalizer import LANGUAGES, load_normalizer, needs_rewriting, normalize_segment
from tts_worker.front_end.rules import FrontEnd, shape
from tts_worker.text.characters import begins_unspaced, ends_unspaced
from tts_worker.text.control_tags import ControlTags
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Segment

SPOKEN = ("zh", "en", "ja", "ko", "yue")
GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "text" / "front_end.json").read_text("utf-8"))
"""Texts, and what the reference's functions make of them without and with wetext 0.1.8."""

OTHERWISE = {
    "It is 25°C in the 3rd week, isn't it?": "It is twenty-five°C in the 3rd week, isn't it?",
    "We won 3-2 in the 90th minute.": "We won three-two in the 90th minute.",
    "The year 1999 and the 21st century; room 101.": (
        "The year one thousand, nine hundred and ninety-nine and the 21st century; room one hundred and one."
    ),
    "A film of the 1990s, 90 minutes long.": "A film of the 1990s, ninety minutes long.",
    "今天气温23.5℃，湿度60%。": "今天气温23.5℃，湿度60%。",
    "我有2个苹果，价格是￥12.50。": "我有2个苹果，价格是￥12.50。",
    "增长了12.5%，达到1.2亿元。": "增长了12.5%，达到1.2亿元。",
    "他今年18岁,身高1.75米.": "他今年18岁,身高1.75米。",
}
"""What is better than the reference's "threerd", "ninetys" and "23。5"."""

normalizer = cache(load_normalizer)


def spoken_segments(deltas: Sequence[str], *, wetext: bool = False, lexicon: Lexicon | None = None) -> list[Segment]:
    options = TextOptions(control_tags=ControlTags(("[breath]", "<strong>", "</strong>")))
    pipeline = TextPipeline(options, lexicon)
    front_end = FrontEnd(SPOKEN)
    spoken = []
    for segment in [*(segment for delta in deltas for segment in pipeline.feed(delta)), *pipeline.end()]:
        language = front_end.detect(segment.text)
        if wetext and language in LANGUAGES and needs_rewriting(segment.text, language):
            segment = normalize_segment(segment, normalizer(), language)
        spoken.append(front_end.apply(segment, language))
    return spoken


def joined(segments: Sequence[Segment]) -> str:
    """The text as the language model reads it: a space between segments, where the script has spaces."""
    text = ""
    for segment in segments:
        part = segment.text.strip()
        text += part if not text or ends_unspaced(text) or begins_unspaced(part) else f" {part}"
    return text


@each_case(("text", "reference"), [(text, without) for text, without, _ in GOLDEN])
def test_rules_without_wetext_equal_the_reference(text: str, reference: str) -> None:
    assert joined(spoken_segments([text])) == OTHERWISE.get(text, reference)


@pytest.mark.parametrize(("text", "reference"), [(text, written) for text, _, written in GOLDEN])
def test_rules_after_wetext_equal_the_reference(text: str, reference: str) -> None:
    pytest.importorskip("wetext", reason='needs the extra "normalize"')
    assert joined(spoken_segments([text], wetext=True)) == reference.replace("\\", "")


FRAGMENTS = st.sampled_from(
    (
        *(
            "今天",
            "（好）",
            "【注】",
            "——",
            " - ",
            "，",
            "、",
            "。",
            "？",
            "m²",
            "3.5",
            "12",
            "1,000",
            "0.05",
            "GPU",
            " ",
        ),
        *(
            "five ",
            "7 ",
            "90th ",
            ". ",
            ", ",
            "“",
            "”",
            '"',
            "[breath]",
            "<strong>",
            "</strong>",
            "API",
            "\n",
            "*",
            "`x`",
        ),
    )
)


@settings(deadline=None, max_examples=60)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.lists(st.integers(0, 60), max_size=6))
def test_spoken_text_is_that_of_any_split(text: str, places: list[int]) -> None:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    whole = spoken_segments([text])
    assert spoken_segments([text[a:b] for a, b in pairwise(edges)]) == whole
    assert spoken_segments(list(text)) == whole
    for segment in whole:
        words = spoken_words(segment)
        assert all(segment.start <= word.start_char < word.end_char <= segment.end for word in words)
        assert all(before.end_char <= after.start_char for before, after in pairwise(words))
        assert words


def test_words_keep_their_place_in_the_written_text() -> None:
    text = "他有12本（中文）书和 3 GPUs 5m²"
    (segment,) = spoken_segments([text])
    written = [text[word.start_char : word.end_char] for word in spoken_words(segment)]
    assert segment.text == "他有12本中文书和3 GPUs 5m平方。"
    assert written == ["他", "有", "12", "本", "中", "文", "书", "和", "3", "GPUs", "5m", "²"]


def test_control_tags_keep_their_place_and_drop_blanks() -> None:
    tags = [span for span in spoken_segments(["你好 [breath] <strong>12</strong> 世界"])[0].spans if span.phonemes]
    assert [span.phonemes for span in tags] == ["[breath]", "<strong>", "</strong>"]
    assert (
        joined(spoken_segments(["你好 [breath] <strong>12</strong> 世界"])) == "你好[breath] <strong>12</strong>世界。"
    )


def test_lexicon_entries_are_not_rewritten() -> None:
    lexicon = Lexicon.from_mapping({"GPT4": "/T.Est/"})
    spoken = spoken_segments(["我用GPT4。"], lexicon=lexicon)[0].spans
    assert [span.phonemes for span in spoken] == [None, "T.Est", None]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        (
            "It was 1,000 of 1,234,567.",
            "It was one thousand of one million, two hundred and thirty-four thousand, five",
        ),
        ("Agent 007 pays 1.05 x", "Agent zero zero seven pays one.zero five x."),
        ("Für 5 Öfen und die 3 auch nicht.", "Für 5 Öfen und die 3 auch nicht."),
        ("がんばって 5 回", "がんばって 5 回"),
    ],
)
def test_numbers_in_streams(text: str, spoken: str) -> None:
    languages = ("zh", "en", "de", "ja")
    pipeline = TextPipeline()
    front_end = FrontEnd(languages)
    segment = [*pipeline.feed(text), *pipeline.end()][0]
    assert front_end.apply(segment, front_end.detect(segment.text)).text.startswith(spoken)


# -- after the worker's own reading -----------------------------------------------------------------------------------


def read_segments(deltas: Sequence[str]) -> list[Segment]:
    pipeline = TextPipeline(None, None, Verbalizer(SPOKEN, shape=shape))
    return [*(segment for delta in deltas for segment in pipeline.feed(delta)), *pipeline.end()]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("今天 23.5℃（多云），价格是 ￥12.50", "今天二十三点五摄氏度多云，价格是十二元五角。"),
        ("他今年18岁,身高1.75米.", "他今年十八岁,身高一点七五米。"),
        ("用时 3 5 分", "用时三，五分。"),
        ("I have no time", "I have no time."),
        ("がんばって", "がんばって"),
    ],
)
def test_shape_follows_the_own_reading(text: str, spoken: str) -> None:
    assert joined(read_segments([text])) == spoken


@settings(deadline=None, max_examples=40)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.lists(st.integers(0, 60), max_size=6))
def test_own_reading_is_that_of_any_split(text: str, places: list[int]) -> None:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    whole = read_segments([text])
    assert read_segments([text[a:b] for a, b in pairwise(edges)]) == whole
    assert read_segments(list(text)) == whole
