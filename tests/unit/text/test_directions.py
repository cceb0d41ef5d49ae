"""Stage directions are performed by a voice that can, and dropped by one that cannot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.fakes.reading import read, read_cut_anywhere, spoken

from tts_worker.text.control_tags import ControlTags
from tts_worker.text.options import TextOptions
from tts_worker.types import Boundary

TAGS = ("[laughter]", "[breath]", "[sigh]", "[cough]", "[clucking]", "[lipsmack]", "<strong>", "</strong>")
ABLE = TextOptions(control_tags=ControlTags(TAGS))

DIRECTIONS = [
    *("[laughs]", "[laughing]", "[laughter]", "[chuckles softly]", "[LAUGHS]", "[starts laughing]", "[laughs harder]"),
    *("[sighs]", "[exhales]", "[deep breath]", "[clears throat]", "[clear_throat]", "[coughs]", "[gasps]", "[yawn]"),
    *("[tsk]", "[tongue-click]", "[lip-smack]", "[hum-tune]", "[sniffs]", "[snorts]", "[crying]", "[wheezing]"),
    *("[happy]", "[excitedly]", "[sarcastic]", "[mischievously]", "[whispers]", "[shouting]", "[very regretful]"),
    *("[warm and friendly tone]", "[strong French accent]", "[British accent]", "[emotion=happy]", "[pace: slow]"),
    *("[[laugh]]", "[[light breath]]", "<<warm>>", "<<sympathetic>>", "[applause]", "[gunshot]", "[slow]", "[/slow]"),
    *("<laugh>", "<sigh/>", "<gasp>", "<chuckle>", "<yawn>", '<emotion value="angry"/>', '<speed ratio="1.5"/>'),
    *('<volume ratio="0.5"/>', '<expression value="say it warmly, slowly"/>', '<sound value="sigh"/>'),
    *('<expr type="expression" label="really playful"/>', '<expr type="sound" label="laugh"/>', "<clears throat>"),
]
WORDS = [
    "[sic]",
    "[the CEO]",
    "[John]",
    "[happy birthday]",
    "[clear]",
    "[a]",
    "(laughs)",
    "[content]",
    "[voice]",
    "<<a>>",
]


@each_case("direction", DIRECTIONS)
def test_direction_is_not_read(direction: str) -> None:
    assert spoken(f"{direction} Well then.") == "Well then."
    assert spoken(f"Well {direction} then") == "Well then"
    assert spoken(f"Well{direction}then") == "Well then"
    assert spoken(f"Oh {direction}, well.") == "Oh, well."


@each_case("words", WORDS)
def test_ordinary_bracketed_words_are_read(words: str) -> None:
    assert spoken(f"Well {words} then") == f"Well {words} then"


@each_case(
    ("direction", "tag"),
    [
        *(("[laughs]", "[laughter]"), ("[chuckles softly]", "[laughter]"), ("[sighs]", "[sigh]")),
        *(("[inhales]", "[breath]"), ("[deep breath]", "[breath]"), ("[coughs]", "[cough]")),
        *(("[clears throat]", "[cough]"), ("[clear_throat]", "[cough]"), ("[tongue-click]", "[clucking]")),
        *(("[lip-smack]", "[lipsmack]"), ("[[laugh]]", "[laughter]"), ("<laugh>", "[laughter]"), ("<sigh/>", "[sigh]")),
        *(('<sound value="sigh"/>', "[sigh]"), ('<expr type="sound" label="laugh"/>', "[laughter]")),
        *(("*laughs*", "[laughter]"), ("[laughter]", "[laughter]")),
    ],
)
def test_direction_is_performed_by_a_voice_that_can(direction: str, tag: str) -> None:
    text = f"Well. {direction} Yes."
    found = [span for segment in read_cut_anywhere(text, ABLE) for span in segment.spans if span.phonemes]
    assert [(span.text, span.phonemes, text[span.start : span.end]) for span in found] == [(tag, tag, direction)]


def test_voice_that_cannot_perform_a_direction_drops_it() -> None:
    options = TextOptions(control_tags=ControlTags(("[breath]",)))
    assert spoken("Well [laughs] then", options) == "Well then"


@each_case(
    ("tag", "pause_ms"),
    [
        *(("[pause]", 500), ("[short pause]", 250), ("[long pause]", 1500), ("[long-pause]", 1500), ("[beat]", 500)),
        *(("[pause:1s]", 1000), ("[pause 500ms]", 500), ("[pause=1.5s]", 1500), ("[pause: 2 seconds]", 2000)),
        *(("[[pause 700ms]]", 700), ("[[pause 700]]", 700), ("[pause 2]", 2000), ("[PAUSE 60s]", 10_000)),
        *(("<short pause>", 250), ('<expr type="break" label="1s"/>', 1000), ("[silence 2s]", 2000)),
    ],
)
def test_pause_is_a_silence(tag: str, pause_ms: int) -> None:
    first, second = read_cut_anywhere(f"Hello {tag} there.")
    assert (first.text, first.boundary, first.pause_ms) == ("Hello", Boundary.BREAK, pause_ms)
    assert second.text == "there."


@each_case(
    ("text", "expected"),
    [
        ("I ^^really^^ mean ^^it^^.", "I really mean it."),
        ("2^^3 and ^^ ok ^", "2^^3 and ^^ ok ^"),
        ("Your order, <<slow: 48213>>, is <<warm: on *its* way>>.", "Your order, 48213,|is on its way."),
        ("a << b and c >> d and <<Bonjour>> and <<", "a << b and c >> d and <<Bonjour>> and <<"),
        ('Code <expr type="spell">A7</expr>. <expr type="prosody" label="whisper">ok</expr>', "Code A, 7.|ok"),
        ("*laughs* That is it. *sighs* Well.", "That is it.|Well."),
        ("*laughs*", ""),
        ("He *laughs* at it. *Note* this.", "He laughs at it.|Note this."),
        ("**laughs** a lot, [laughs](x) too", "laughs a lot,|laughs too"),
        ("`[laughs]` stays", "[laughs] stays"),
        ("Great![laughs] And![1]", "Great!|And!"),
    ],
)
def test_text_of_directions(text: str, expected: str) -> None:
    assert spoken(text) == expected


def test_without_markdown_directions_stay() -> None:
    text = "[laughs] [[sigh]] and <<warm>> and <<slow>> and ^^so^^ [pause]"
    assert spoken(text, TextOptions(markdown=False)) == text


FRAGMENTS = st.sampled_from(
    (
        *("[laughs]", "[la", "ughs]", "[pause:1s]", "[pause", " 1s]", "[[", "]]", "[", "]", "<<", ">>", "<<warm", ": "),
        *("^^", "^", "*laughs*", "*", "*sighs", "**", "<laugh>", "<clears throat>", "<short", " pause>", "laughs"),
        *("word", " ", ". ", ", ", "\n", "(x)", "!", "`", "<sound value='laugh'/>", "[1]", "- ", "# "),
    )
)


@settings(deadline=None, max_examples=300)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.integers(1, 9), st.booleans(), st.sampled_from((None, ABLE)))
def test_directions_do_not_depend_on_the_split(text: str, size: int, by_word: bool, able: TextOptions | None) -> None:
    options = TextOptions(by_word=by_word, control_tags=able.control_tags if able else None)
    whole = read(text, options)
    assert read(text, options, size) == whole
    assert [s.start for s in whole] == [0, *(s.end for s in whole)][: len(whole)]
