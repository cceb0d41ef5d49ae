"""What a text says about how its spans are spoken reaches the segments, at the offsets of the original text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.fakes.reading import read, read_cut_anywhere

from tts_worker.text.options import TextOptions
from tts_worker.types import NEUTRAL, Boundary, Expression


def expression_of(text: str, word: str, options: TextOptions | None = None) -> Expression:
    """Return how a word of ``text`` is spoken, however the text is cut."""
    at = text.index(word)
    segment = next(each for each in read_cut_anywhere(text, options) if each.start <= at < each.end)
    return segment.expression_at(at)


@each_case(
    ("attributes", "expected"),
    [
        ('rate="slow"', Expression(rate=0.8)),
        ('rate="X-FAST"', Expression(rate=1.6)),
        ('rate="120%"', Expression(rate=1.2)),
        ('rate="+20%"', Expression(rate=1.2)),
        ('rate="-20%"', Expression(rate=0.8)),
        ('rate="0.7"', Expression(rate=0.7)),
        ('rate="1%"', Expression(rate=0.25)),
        ('volume="loud"', Expression(volume_db=4)),
        ('volume="-6dB"', Expression(volume_db=-6)),
        ('volume="+90dB"', Expression(volume_db=12)),
        ('volume="100"', NEUTRAL),
        ('pitch="+2st"', Expression(pitch_semitones=2)),
        ('pitch="-50%"', Expression(pitch_semitones=-12)),
        ('pitch="x-low"', Expression(pitch_semitones=-4)),
        ("rate='slow' pitch='low' volume='soft'", Expression(0.8, -6, -2)),
        *((attribute, NEUTRAL) for attribute in ('pitch="180Hz"', 'rate="medium"', 'volume="+5st"', 'rate="x"', "")),
    ],
)
def test_prosody_changes_its_content(attributes: str, expected: Expression) -> None:
    text = f"One <prosody {attributes}>two</prosody> three."
    assert expression_of(text, "two") == pytest.approx(expected)
    assert expression_of(text, "One") == expression_of(text, "three") == NEUTRAL
    assert "".join(segment.text for segment in read(text)) == "One two three."


def test_emphasis_is_moderate_by_default() -> None:
    text = "A <emphasis>B</emphasis> <emphasis level='moderate'>C</emphasis> <emphasis level='reduced'>D</emphasis>"
    assert expression_of(text, "B") == expression_of(text, "C") != NEUTRAL
    assert expression_of(text, "D").volume_db < 0


def test_nested_elements_add_up_within_limits() -> None:
    text = '<prosody rate="50%"><prosody pitch="+2st" rate="150%">A</prosody>, B</prosody>, C'
    assert expression_of(text, "A") == Expression(rate=0.75, pitch_semitones=2)
    assert expression_of(text, "B") == Expression(rate=0.5)
    assert expression_of('<prosody rate="fast">' * 40 + "word", "word").rate == 4


def test_closing_tag_closes_the_elements_inside() -> None:
    text = '<prosody rate="slow"><emphasis>un</prosody>closed.'
    assert expression_of(text, "closed") == NEUTRAL
    assert expression_of("</prosody>word", "word") == NEUTRAL
    assert expression_of('<prosody rate="slow"/>word', "word") == NEUTRAL


def test_expression_goes_on_in_later_segments() -> None:
    text = 'First. <prosody rate="slow">Second. Third.</prosody> Fourth.'
    rates = [segment.expression_at(segment.spans[0].start).rate for segment in read_cut_anywhere(text)]
    assert rates == [1.0, 0.8, 0.8, 1.0]


def test_expression_follows_rewritten_words() -> None:
    text = "It costs <prosody rate='slow'>$5</prosody> &amp; <prosody rate='fast'>more</prosody>."
    assert expression_of(text, "$5").rate == 0.8
    assert expression_of(text, "more").rate == 1.25


def test_words_of_an_engine_by_word_have_their_expression() -> None:
    text = "One <prosody rate='slow'>two</prosody> three."
    assert expression_of(text, "two", TextOptions(by_word=True)).rate == 0.8
    assert expression_of(text, "three", TextOptions(by_word=True)) == NEUTRAL


def test_markdown_false_keeps_the_tags() -> None:
    assert expression_of("<prosody rate='slow'>two</prosody>", "two", TextOptions(markdown=False)) == NEUTRAL


_TAGS = ["<prosody rate='slow'>", "</prosody>", "<emphasis>", "</emphasis>", "<prosody pitch='high'/>", "<prosody"]


@given(st.lists(st.sampled_from([*_TAGS, "Hello, ", "$5 ", "world. ", "*b* ", "\n"]), max_size=12))
def test_cuts_do_not_change_expressions(parts: list[str]) -> None:
    read_cut_anywhere("".join(parts))


@each_case(
    ("control", "expected"),
    [
        ('<speed ratio="0.8"/>', Expression(rate=0.8)),
        ('<speed ratio="1.5">', Expression(rate=1.5)),
        ('<volume ratio="2.0"/>', Expression(volume_db=6.02)),
        ('<volume ratio="0.5"/>', Expression(volume_db=-6.02)),
        ('<emotion value="Angry"/>', Expression(style="angry")),
        ('<expression value="say it warmly, slowly"/>', Expression(rate=0.8, style="say it warmly, slowly")),
        ('<expr type="expression" label="excited"/>', Expression(style="excited")),
        ('<expr type="prosody" label="fast"/>', Expression(rate=1.25)),
        ("[slowly]", Expression(rate=0.8)),
        ("[pace: slow]", Expression(rate=0.8)),
        ("[happy]", Expression(style="happy")),
        ("[whispers]", Expression(volume_db=-9, style="whispers")),
        ("[shouting]", Expression(volume_db=8)),
        ("[strong French accent]", Expression(style="strong french accent")),
        ("<<warm>>", Expression(style="warm")),
    ],
)
def test_control_changes_what_follows(control: str, expected: Expression) -> None:
    text = f"One {control} two, three. Four."
    assert expression_of(text, "One") == NEUTRAL
    for word in ("two", "three", "Four"):
        found = expression_of(text, word)
        assert found.style == expected.style
        assert found[:3] == pytest.approx(expected[:3], abs=0.01)


def test_control_holds_until_the_next_of_its_kind() -> None:
    text = "[slow] A [happy] B [fast] C [sad] D [/fast] E"
    found = [expression_of(text, word) for word in "ABCDE"]
    assert [each.rate for each in found] == [0.8, 0.8, 1.25, 1.25, 1.0]
    assert [each.style for each in found] == ["", "happy", "happy", "sad", ""]


@pytest.mark.parametrize("tags", [('<expr type="prosody" label="whisper">', "</expr>"), ("<<whisper: ", ">>")])
def test_wrapping_marker_changes_its_content(tags: tuple[str, str]) -> None:
    text = f"One {tags[0]}two{tags[1]} three."
    assert expression_of(text, "two") == Expression(volume_db=-9, style="whisper")
    assert expression_of(text, "One") == expression_of(text, "three") == NEUTRAL


@pytest.mark.parametrize("text", ["[laughs] Well.", '<expr type="sound" label="laugh"/> Well.', "[pause] Well."])
def test_laughter_and_pauses_change_no_expression(text: str) -> None:
    assert expression_of(text, "Well") == NEUTRAL


STYLED = TextOptions(cuts_styles=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One, [happy] two three. Four.", [("One,", ""), ("two three.", "happy"), ("Four.", "happy")]),
        ('A <emotion value="sad"/>b <emotion value="sad"/>c', [("A", ""), ("b c", "sad")]),
        ("One <<warm: two>> three.", [("One", ""), ("two", "warm"), ("three.", "")]),
        ("[happy] [slow] One.", [("One.", "happy")]),
        ("One [slow] two.", [("One two.", "")]),
    ],
)
def test_segment_ends_where_the_style_changes(text: str, expected: list[tuple[str, str]]) -> None:
    segments = read_cut_anywhere(text, STYLED)
    assert [(each.text, each.expression_at(each.spans[0].start).style) for each in segments] == expected
    assert all(each.pause_ms == 0 and each.boundary is not Boundary.BREAK for each in segments)


@given(st.lists(st.sampled_from(["[happy]", "<<sad>>", "<<sad: ok>>", "Hello, ", "world. ", "\n", " "]), max_size=10))
def test_cuts_do_not_change_styles(parts: list[str]) -> None:
    read_cut_anywhere("".join(parts), STYLED)
