from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import each_case
from tts_worker.engine.cpu.hibari.model import AMERICAN, BRITISH, HibariModel
from tts_worker.engine.cpu.phrases.arpabet import phonemes_of_arpabet
from tts_worker.engine.cpu.phrases.british import british_phonemes
from tts_worker.engine.cpu.phrases.text import (
    MAX_BATCH_CHARS,
    MAX_PHONEMES,
    EnglishG2P,
    Phonemizer,
    Phrase,
    phonemes_of_ipa,
)
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Boundary, Segment, Span

SENTENCES = Path(__file__).parents[2] / "data" / "reading"


def segment(*spans: Span, boundary: Boundary = Boundary.SENTENCE) -> Segment:
    return Segment(0, spans, spans[0].start, spans[-1].end, boundary)


def plain(text: str) -> Segment:
    return segment(Span(text, 0, len(text)))


class ObservedG2P:
    """Hibari's G2P, which calls ``on_text`` with every text that it gets."""

    def __init__(self, g2p: Any, on_text: Callable[[str], None]) -> None:
        self._g2p = g2p
        self._on_text = on_text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._g2p, name)

    def tokenizer(self, text: str) -> list[tuple[str, str]]:
        self._on_text(text)
        return self._g2p.tokenizer(text)


def observed(phonemizer: Phonemizer, on_text: Callable[[str], None]) -> Phonemizer:
    english = EnglishG2P(ObservedG2P(phonemizer.g2p, on_text), phonemizer.make_token)
    return Phonemizer(english, phonemizer.vocabulary)


class PhonemizedText:
    """The phrases of a segment with their phonemes as characters."""

    def __init__(self, model: HibariModel, text: Segment, language: str = AMERICAN) -> None:
        phonemizer = model.phonemizer_in(language)
        letters = {number: char for char, number in phonemizer.vocabulary.items()} | {0: ""}
        self.items = list(phonemizer.phonemize(text))
        self.phrases = [item for item in self.items if item is not None]
        self.lines = ["".join(letters[number] for number in phrase.ids) for phrase in self.phrases]
        self.words = [
            (word.start_char, word.end_char, "".join(letters[n] for n in phrase.ids[word.first_id : word.end_id]))
            for phrase in self.phrases
            for word in phrase.words
        ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there.", {"Hello": "həlˈO", "there.": "ðˈɛɹ"}),
        ("It costs $100.", {"It": "ˌɪt", "costs": "kˈɔsts", "$100.": "wˈʌn hˈʌndɹəd dˈɑləɹz"}),
        ("Dr. Smith is in", {"Dr.": "dˈɑktəɹ", "Smith": "smˈɪθ", "is": "ɪz", "in": "ˈɪn"}),
        ("at 7:30 pm", {"at": "æt", "7:30": "sˈɛvən θˈɜɹTi", "pm": "pˌiˈɛm"}),
        ("on 3/4/2024.", {"on": "ˌɔn", "3/4/2024.": "mˈɑɹʧ fˈɔɹθ, twˈɛnti twˈɛntifˌɔɹ"}),
        ("Résumé, jalapeño", {"Résumé,": "ɹˈɛzəmˌA", "jalapeño": "hˌɑləpˈAnjO"}),
        ("José: décor, divorcé", {"José:": "hOzˈA", "décor,": "dAkˈɔɹ", "divorcé": "dᵻvɔɹsˈA"}),
        ("José’s, Noël's", {"José’s,": "hOzˈAz", "Noël's": "nOˈɛlz"}),
        ('"ninety-nine" ways', {'"ninety-nine"': "nˈIndinˌIn", "ways": "wˈAz"}),
        ("don't stop", {"don't": "dˈOnt", "stop": "stˈɑp"}),
        ("Now (she) – said", {"Now": "nˈW", "(she)": "ʃi", "said": "sˈɛd"}),
        ("Hello 你好 world", {"Hello": "həlˈO", "world": "wˈɜɹld"}),
    ],
)
def test_original_words_get_their_phonemes(text: str, words: dict[str, str], hibari_model: HibariModel) -> None:
    result = PhonemizedText(hibari_model, Verbalizer().apply(plain(text)))
    assert {text[a:b]: phonemes for a, b, phonemes in result.words} == words


# -- British English ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there.", {"Hello": "həlˈQ", "there.": "ðˈɛː"}),
        ("a hot bath", {"a": "ɐ", "hot": "hˈɒt", "bath": "bˈɑːθ"}),
        ("better start", {"better": "bˈɛtə", "start": "stˈɑːt"}),
        ("Zquorblat", {"Zquorblat": "zˈɛdkwˈɔːblat"}),
        ("José's Pokémon", {"José's": "hQzˈAz", "Pokémon": "pˈQkəmˌɒn"}),
    ],
)
def test_british_words_get_british_phonemes(text: str, words: dict[str, str], hibari_model: HibariModel) -> None:
    result = PhonemizedText(hibari_model, plain(text), BRITISH)
    assert {text[a:b]: phonemes for a, b, phonemes in result.words} == words


@each_case(
    ("american", "british"),
    [
        ("həlˈO wˈɜɹld", "həlˈQ wˈɜːld"),  # the phonemes of the American dictionary, and those of the British one
        ("stˈɑɹt", "stˈɑːt"),
        ("nˈɔɹθ", "nˈɔːθ"),
        ("nˌɪɹ", "nˌɪə"),
        ("skwˈɛɹ", "skwˈɛː"),
        ("kjˈʊɹ", "kjˈʊə"),
        ("mˈɛɹi", "mˈɛɹi"),
        ("flˈis", "flˈiːs"),
        ("ɡˈus", "ɡˈuːs"),
        ("lˈɑt", "lˈɒt"),
        ("θˈɔt", "θˈɔːt"),
        ("bˈɛɾəɹ", "bˈɛtə"),
        ("hˈæpi", "hˈapi"),
    ],
)
def test_american_phonemes_are_said_in_a_british_accent(american: str, british: str) -> None:
    assert british_phonemes(american) == british


def test_each_accent_is_loaded_once(hibari_model: HibariModel) -> None:
    assert hibari_model.phonemizer_in("en") is hibari_model.phonemizer_in("en-AU") is hibari_model.phonemizer
    assert hibari_model.phonemizer_in("en_gb") is hibari_model.phonemizer_in(BRITISH) is not hibari_model.phonemizer


def test_accents_share_what_is_the_same_in_both(hibari_model: HibariModel) -> None:
    american, british = (hibari_model.phonemizer_in(language).g2p for language in (AMERICAN, BRITISH))
    assert british.tagger is american.tagger
    assert british.tokenizer is american.tokenizer
    assert british.lexicon is not american.lexicon


@given(st.text("ˈˌ æɑʌɔəɛɜɪiʊuAIOQWYaɒᵻᵊːɹɾtdnszʃ"))
def test_british_phonemes_stay_as_they_are(phonemes: str) -> None:
    british = british_phonemes(phonemes)
    assert british_phonemes(british) == british


def test_given_phonemes_follow_the_accent(hibari_model: HibariModel) -> None:
    source = segment(Span("data", 0, 4, "D EY1 T AH0"), Span(" ", 4, 5), Span("go", 5, 7, "ˈgoʊ"))
    assert PhonemizedText(hibari_model, source).lines == ["dˈAtə ɡˈO"]
    assert PhonemizedText(hibari_model, source, BRITISH).lines == ["dˈAtə ɡˈQ"]


def test_words_refer_to_source_text_not_replacements(hibari_model: HibariModel) -> None:
    source = segment(Span("I like ", 10, 17), Span("structured query language", 17, 20), Span(" a lot.", 20, 27))
    words = {(a, b) for a, b, _ in PhonemizedText(hibari_model, source).words}
    assert words == {(10, 11), (12, 16), (17, 20), (21, 22), (23, 27)}


@pytest.mark.parametrize(
    ("ipa", "phonemes"),
    [
        ("ˈnaɪki", "nˈIki"),
        ("təˈmeɪtoʊ", "təmˈAtO"),
        ("ˈtʃɝtʃ", "ʧˈɜɹʧ"),
        ("ˌænəˈstreɪʒə", "ˌænəstɹˈAʒə"),
        ("gəʊ", "ɡO"),
        ("həlˈO wˈɜɹld", "həlˈO wˈɜɹld"),
    ],
)
def test_ipa_becomes_the_letters_of_the_network(ipa: str, phonemes: str, hibari_model: HibariModel) -> None:
    assert phonemes_of_ipa(ipa) == phonemes_of_ipa(phonemes) == phonemes
    assert set(phonemes) <= hibari_model.phonemizer.vocabulary.keys()


def test_given_phonemes_are_not_changed(hibari_model: HibariModel) -> None:
    source = segment(Span("We use ", 0, 7), Span("Nginx", 7, 12, "ˈɛnʤɪnˈɛks"), Span(", really.", 12, 21))
    result = PhonemizedText(hibari_model, source)
    assert result.lines == ["wˌi jˈuz ˈɛnʤɪnˈɛks, ɹˈiᵊli."]
    assert result.words[2] == (7, 13, "ˈɛnʤɪnˈɛks")


@pytest.mark.parametrize(
    ("spans", "line"),
    [
        ([Span("a", 0, 1, "ˈA"), Span("b", 1, 2, "bˈi")], "ˈAbˈi"),
        ([Span("a", 0, 1, "ˈA"), Span(" ", 1, 2), Span("b", 2, 3, "bˈi")], "ˈA bˈi"),
        ([Span("a", 0, 1, "ˈA"), Span(" b", 1, 3)], "ˈA bˈi"),
        ([Span("to ", 0, 3), Span("x", 3, 4, "ɡˈO")], "tə ɡˈO"),
        ([Span("(", 0, 1), Span("x", 1, 2, "ɡˈO"), Span(")", 2, 3)], "(ɡˈO)"),
        ([Span("x", 0, 1, "☃ɡ7ˈO")], "ɡˈO"),
        ([Span("Nike", 0, 4, "ˈnaɪki")], "nˈIki"),
        ([Span("x", 0, 1, ""), Span(" yes", 1, 5)], "jˈɛs"),
    ],
)
def test_spaces_around_given_phonemes_match_the_text(spans: list[Span], line: str, hibari_model: HibariModel) -> None:
    assert PhonemizedText(hibari_model, segment(*spans)).lines == [line]


@pytest.mark.parametrize(
    "text",
    [
        "[dog](/zˈɪpɪ/) barks",
        "[dog]( /zˈɪpɪ/) barks",
        "[[dog](/zˈɪpɪ/)](/zˈɪpɪ/)",
        "[dog](zˈɪpɪ)",
        "[dog]\u200b(/zˈɪpɪ/)",
    ],
)
def test_phoneme_markup_in_text_has_no_effect(text: str, hibari_model: HibariModel) -> None:
    """The library's inline markup must not be available to users."""
    assert "zˈɪpɪ" in hibari_model.phonemizer.g2p("[dog](/zˈɪpɪ/) barks"), "the library's own entry point parses it"
    (line,) = PhonemizedText(hibari_model, plain(text)).lines
    assert line.startswith("dˈɑɡ")
    assert "zˈɪpɪ" not in line


@pytest.mark.parametrize(
    "text", ["", "   ", "...", "😀", "你好世界", "“”", "—", "\x00\x07", "\u202e\u202c", "\ud800", "!?"]
)
def test_unspeakable_text_gives_no_phrase(text: str, hibari_model: HibariModel) -> None:
    assert not PhonemizedText(hibari_model, plain(text)).phrases


def test_long_text_is_cut_at_punctuation(hibari_model: HibariModel) -> None:
    clause = "the committee will publish its report, "
    text = (clause * 12).strip()
    result = PhonemizedText(hibari_model, plain(text))
    assert 1 < len(result.phrases) < 5
    assert all(line.endswith(",") for line in result.lines)
    *inner, last = [phrase.boundary for phrase in result.phrases]
    assert set(inner) == {Boundary.CLAUSE}
    assert last is Boundary.SENTENCE
    assert [text[a:b] for a, b, _ in result.words] == text.split()


def test_text_without_punctuation_is_cut_between_words(hibari_model: HibariModel) -> None:
    text = "the committee will publish its report and " * 10
    result = PhonemizedText(hibari_model, plain(text))
    assert {phrase.boundary for phrase in result.phrases[:-1]} == {Boundary.FORCED}
    assert [text[a:b] for a, b, _ in result.words] == text.split()


def assert_valid(phrases: list[Phrase], text: Segment) -> None:
    """Check the invariants that hold for any text."""
    for phrase in phrases:
        assert 3 <= len(phrase.ids) <= MAX_PHONEMES + 2
        assert phrase.ids[0] == phrase.ids[-1] == 0
        assert 0 not in phrase.ids[1:-1]
        for word in phrase.words:
            assert text.start <= word.start_char < word.end_char <= text.end
            assert 1 <= word.first_id <= word.end_id <= len(phrase.ids) - 1
        for before, after in pairwise(phrase.words):
            assert before.end_char <= after.start_char
            assert before.end_id <= after.first_id


ANY_TEXT = st.text(max_size=120) | st.lists(
    st.sampled_from(
        [
            "Hello",
            " ",
            ", ",
            "$5",
            "3.14",
            "7:30",
            "\n",
            "[x](/y/)",
            "<b>",
            "😀",
            "你好",
            "a1" * 20,
            "9" * 40,
            "'",
            "-",
            "_",
            "/",
            "é",
            "ß",
            "\u200d",
            "\x00",
            "\ud83d",
            "مرحبا",
            "...",
            "“",
            "1,000,000",
            "-5°C",
            "#1",
            "%",
            "e.g.",
            "XIV",
            "Mr.",
            "http://x.y/z?q=1",
            "A" * 70,
            "x" * 300,
        ]
    ),
    max_size=25,
).map("".join)


@settings(deadline=None, max_examples=150)
@given(ANY_TEXT)
def test_any_text_gives_valid_phrases(hibari_model: HibariModel, text: str) -> None:
    source = plain(text)
    assert_valid(PhonemizedText(hibari_model, source).phrases, source)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(ANY_TEXT, st.none() | st.text(max_size=20)), min_size=1, max_size=4))
def test_any_spans_give_valid_phrases(hibari_model: HibariModel, parts: list[tuple[str, str | None]]) -> None:
    spans = []
    position = 0
    for text, phonemes in parts:
        spans.append(Span(text, position, position + len(text), phonemes))
        position += len(text)
    source = segment(*spans)
    assert_valid(PhonemizedText(hibari_model, source).phrases, source)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 20_000,
        "x" * 100_000,
        "1" * 100_000,
        "a1" * 50_000,
        "[(" * 50_000,
        "😀" * 100_000,
        "a-" * 50_000,
        "'" * 100_000,
    ],
)
def test_work_between_two_phrases_is_bounded(text: str, hibari_model: HibariModel) -> None:
    """For any length, one G2P call is bounded and no word is long enough to make its time explode."""
    inputs: list[str] = []
    phrases = observed(hibari_model.phonemizer, inputs.append).phonemize(plain(text))
    for _ in range(5):
        inputs.clear()
        next(phrases, None)
        assert len(inputs) <= 2
        for batch in inputs:
            assert len(batch) <= 2 * MAX_BATCH_CHARS
            assert max(map(len, batch.split()), default=0) <= 30


def test_long_number_is_read_digit_by_digit(hibari_model: HibariModel) -> None:
    assert "".join(PhonemizedText(hibari_model, plain("1" * 100)).lines).count("wˈʌn") == 100


def test_g2p_error_drops_only_its_word(hibari_model: HibariModel) -> None:
    def fail_on_trap(text: str) -> None:
        if "trap" in text:
            raise IndexError("somewhere deep in the rules")

    failing = observed(hibari_model.phonemizer, fail_on_trap)
    text = "mind the trap here"
    (phrase,) = (item for item in failing.phonemize(plain(text)) if item is not None)
    assert [text[word.start_char : word.end_char] for word in phrase.words] == ["mind", "the", "here"]


@pytest.mark.parametrize("text", ["¹A", "٣ apples", "x₂", "İstanbul", "①", "４２"])
def test_letters_and_digits_of_other_scripts_are_read(text: str, hibari_model: HibariModel) -> None:
    assert PhonemizedText(hibari_model, plain(text)).phrases


def test_rest_after_a_punctuation_cut_is_cut_again(hibari_model: HibariModel) -> None:
    """The text after the comma and the long number do not fit into one phrase either."""
    words = "the committee will publish its report on the new bridges and the old roads before the end"
    source = plain(f"{words}, {words} 777777777777777")
    phrases = PhonemizedText(hibari_model, source).phrases
    assert_valid(phrases, source)
    assert len(phrases) >= 2


@pytest.mark.parametrize("max_phonemes", [20, 100])
def test_max_phonemes_bounds_every_phrase(max_phonemes: int, hibari_model: HibariModel) -> None:
    source = plain("the committee will publish its report, and then the mayor will read it aloud to all " * 3)
    phrases = [phrase for phrase in hibari_model.phonemizer.phonemize(source, max_phonemes) if phrase is not None]
    assert max(len(phrase.ids) for phrase in phrases) <= max_phonemes + 2
    assert sum(len(phrase.words) for phrase in phrases) == len(source.text.split())


def test_every_word_of_ordinary_sentences_has_phonemes(hibari_model: HibariModel) -> None:
    """A word without phonemes is reported as skipped, so none of them may be lost on the way."""
    lines = (SENTENCES / "agent_sentences.tsv").read_text("utf-8").splitlines()
    texts = [line.split("\t")[1] for line in lines if not line.startswith("#")]
    for text in texts:
        pipeline = TextPipeline(None, None, Verbalizer(("en",)))
        for part in [*pipeline.feed(text), *pipeline.end()]:
            phrases = [phrase for phrase in hibari_model.phonemizer.phonemize(part) if phrase is not None]
            spoken = {word.start_char for phrase in phrases for word in phrase.words}
            words = [word for word in spoken_words(part) if any(map(str.isalnum, word.text))]
            assert [word.text for word in words if word.start_char not in spoken] == []


@pytest.mark.parametrize(
    ("written", "phonemes"),
    [
        ("T AH0 M EY1 T OW2", "təmˈAtˌO"),
        ("HH ER1 D ER0", "hˈɜɹdəɹ"),
        ("AY1", "ˈI"),
        ("JH OY1 CH IH0 NG", "ʤˈYʧɪŋ"),
        ("naɪki", None),
        ("A", None),
        ("AA T", None),  # no vowel says its stress
        ("T QQ1", None),
        ("", None),
    ],
)
def test_arpabet_is_read_and_nothing_else(written: str, phonemes: str | None, hibari_model: HibariModel) -> None:
    assert phonemes_of_arpabet(written) == phonemes
    assert set(phonemes or "") <= hibari_model.phonemizer.vocabulary.keys()


def test_lexicon_entry_in_arpabet_is_spoken_as_in_ipa(hibari_model: HibariModel) -> None:
    arpabet, ipa = (
        [phrase.ids for phrase in hibari_model.phonemizer.phonemize(Segment.whole("tomato", written)) if phrase]
        for written in ("T AH0 M EY1 T OW2", "təˈmeɪˌtoʊ")
    )
    assert arpabet == ipa != []
