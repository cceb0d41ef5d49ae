"""Mandarin: its phonemes, and the voices of the CPU engine that say it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contract.engine_contract import CONTRACT, ContractCheck, EngineCase, EngineDriver, EngineOutput, segments
from tests.fakes.opened_files import opened_files
from tests.unit.engine.shared_voices import voice_like_heart
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import BRITISH, MANDARIN, VOICE, HibariModel, Spectra, VoiceModel
from tts_worker.engine.cpu.phrases import mandarin
from tts_worker.engine.cpu.phrases.mandarin import MandarinPhonemizer, divided
from tts_worker.engine.cpu.phrases.text import EnglishG2P, Phonemizer, Phrase
from tts_worker.errors import MissingPackage
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.types import Boundary, Done, Expression, Segment, Span, SynthesisParams, UtteranceKey
from tts_worker.voices.packs import read_voicepack

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pypinyin") is None, reason="needs pypinyin and pinyin-to-ipa, which read Mandarin"
)
KEY = UtteranceKey("s", 1)
LANGUAGES = ("en", "zh")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def phonemizer(hibari_model: HibariModel) -> MandarinPhonemizer:
    english = hibari_model.phonemizer
    return MandarinPhonemizer(EnglishG2P(english.g2p, english.make_token), english.vocabulary)


def phonemes(phonemizer: Phonemizer, text: str) -> str:
    """What a text becomes, phrase by phrase, with ``|`` between phrases."""
    symbols = {number: char for char, number in phonemizer.vocabulary.items()}
    phrases = [phrase for phrase in phonemizer.phonemize(Segment.whole(text)) if phrase is not None]
    return "|".join("".join(symbols[number] for number in phrase.ids[1:-1]) for phrase in phrases)


def spoken_words(phrase: Phrase, text: str) -> list[str]:
    return [text[word.start_char : word.end_char] for word in phrase.words]


# -- text -------------------------------------------------------------------------------------------------------------


def test_words_tones_and_pauses_of_mandarin(phonemizer: MandarinPhonemizer) -> None:
    # Two third tones in a row: the first becomes a second tone.
    assert phonemes(phonemizer, "你好，世界。") == "ni↗xau↓, ʂɨ↘ ʨje↘."
    assert phonemes(phonemizer, "二〇年") == phonemes(phonemizer, "二零年")


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("有105个GPU。", "有一百零五个GPU。"),
        ("2026年，$5。", "二零二六年，五美元。"),
        ("It costs $5.", "It costs five dollars."),
    ],
)
def test_mandarin_and_english_come_in_words(text: str, read_as: str, phonemizer: MandarinPhonemizer) -> None:
    read = Verbalizer(LANGUAGES).apply(Segment.whole(text))
    spoken, written = ([*phonemizer.phonemize(each)] for each in (read, Segment.whole(read_as)))
    assert [phrase and phrase.ids for phrase in spoken] == [phrase and phrase.ids for phrase in written]


def test_english_reads_as_without_mandarin(phonemizer: MandarinPhonemizer, hibari_model: HibariModel) -> None:
    text = "It costs $5, on March 3rd."
    assert phonemes(phonemizer, text) == phonemes(hibari_model.phonemizer, text)


def test_english_inside_mandarin(phonemizer: MandarinPhonemizer) -> None:
    spoken = phonemes(phonemizer, "这个GPU很快。")
    assert "ʤˌipˌijˈu" in spoken  # G P U
    assert spoken.startswith("ꭧɤ↘")


def test_every_han_character_is_a_word(phonemizer: MandarinPhonemizer) -> None:
    text = "您好，GPU有二十。"
    (phrase,) = (each for each in phonemizer.phonemize(Segment.whole(text)) if each is not None)
    assert spoken_words(phrase, text) == ["您", "好，", "GPU", "有", "二", "十。"]


def test_given_phonemes_are_kept(phonemizer: MandarinPhonemizer) -> None:
    text = Segment(0, Segment.whole("好").spans + Segment.whole("重", "ʈ").spans, 0, 2, Boundary.END)
    assert [run.phonemes for run in phonemizer.runs(text)][-1] == "ʈ"


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="你好世界一了不行长3.0%年aG ,。，！\n《》𠀀㐀嗯", min_size=1, max_size=60))
@example("嗯3.%")
@example("0.0.0年")
def test_any_text_gives_ordered_words_of_bounded_phrases(phonemizer: MandarinPhonemizer, text: str) -> None:
    end = 0
    for phrase in phonemizer.phonemize(Segment.whole(text), 30):
        if phrase is None:
            continue
        assert len(phrase.ids) <= 32
        for word in phrase.words:
            assert end <= word.start_char < word.end_char <= len(text)
            assert 1 <= word.first_id <= word.end_id < len(phrase.ids)
            end = word.start_char


def test_missing_package_is_named(hibari_model: HibariModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mandarin, "find_spec", lambda module: None if module == "pinyin_to_ipa" else module)
    with pytest.raises(MissingPackage, match="Mandarin needs pinyin-to-ipa: pip install pinyin-to-ipa"):
        MandarinPhonemizer(hibari_model.phonemizer.english, hibari_model.phonemizer.vocabulary)


# -- where it begins and ends -----------------------------------------------------------------------------------------


def test_parts_of_a_text_in_two_languages() -> None:
    text = "He said “你好，world 25 世界。” in (北京)."
    assert [(part.text, is_mandarin, part.boundary) for is_mandarin, part in divided(Segment.whole(text))] == [
        ("He said “", False, Boundary.FORCED),
        ("你好，", True, Boundary.CLAUSE),
        ("world 25 ", False, Boundary.FORCED),
        ("世界。”", True, Boundary.SENTENCE),
        (" in (", False, Boundary.FORCED),
        ("北京).", True, Boundary.END),
    ]


def test_words_of_another_script_and_given_phonemes_divide() -> None:
    spans = (Span("北", 0, 1), Span("京", 1, 2, "x"), Span("二十五", 2, 4), Span("元Ж元", 4, 7))
    parts = list(divided(Segment(0, spans, 0, 7, Boundary.CLAUSE)))
    assert [(is_mandarin, part.text) for is_mandarin, part in parts] == [
        (True, "北"),
        (False, "京"),
        (True, "二十五元"),
        (False, "Ж"),
        (True, "元"),
    ]
    assert parts[2][1].spans == (Span("二十五", 2, 4), Span("元", 4, 5))
    assert parts[1][1].spans[0].phonemes == "x"


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="你好世界3.0%aG ,。，！“(\n《》й", min_size=1, max_size=60))
def test_parts_are_the_whole_text(text: str) -> None:
    parts = list(divided(Segment.whole(text)))
    assert "".join(part.text for _, part in parts) == text
    assert [span.start for _, part in parts for span in part.spans] == sorted(
        {span.start for _, part in parts for span in part.spans}
    )
    assert all(text[span.start : span.end] == span.text for _, part in parts for span in part.spans)
    for is_mandarin, part in parts:
        has_han = not set(part.text).isdisjoint("你好世界")
        assert (is_mandarin, has_han) in ((True, True), (False, False))
        assert not is_mandarin or set(part.text).isdisjoint("aGй")
    assert [flag for flag, _ in parts] == [
        number % 2 == 0 if parts[0][0] else number % 2 == 1 for number in range(len(parts))
    ]
    assert parts[-1][1].boundary is Boundary.END


# -- engine -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> list[VoiceModel]:
    """A man and a woman who speak Mandarin and a man who does not, higher than ``heart`` by 20, 40 and 60 Hz."""
    folder = tmp_path_factory.mktemp("voices")
    chosen = (("yunjian", MANDARIN, "male"), ("xiaobei", MANDARIN, "female"), ("george", BRITISH, "male"))
    return [
        replace(voice_like_heart(folder / name, higher_hz=20.0 * number, language=language), gender=gender)
        for number, (name, language, gender) in enumerate(chosen, 1)
    ]


@pytest.fixture(scope="module")
def model(speakers: list[VoiceModel]) -> HibariModel:
    return HibariModel(voices=speakers)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, phonemizer: MandarinPhonemizer) -> list[tuple[str, str]]:
    """The runs of the network: the voice and what it says."""
    runs: list[tuple[str, str]] = []
    predict = HibariModel.predict
    symbols = {number: char for char, number in phonemizer.vocabulary.items()}

    def record(model: HibariModel, ids: Sequence[int], speed: float, voice: str = VOICE) -> Spectra:
        runs.append((voice, "".join(symbols[number] for number in ids[1:-1])))
        return predict(model, ids, speed, voice)

    monkeypatch.setattr(HibariModel, "predict", record)
    return runs


def spoken(model: HibariModel, text: str, voice: str = VOICE) -> EngineOutput:
    driver = EngineDriver(EngineCase(lambda: HibariEngine(model), SynthesisParams(voice), (), ()))
    output = driver.open(KEY)
    driver.send_text(KEY, segments((text, Boundary.END)))
    driver.drain()
    assert [type(end) for end in output.ends] == [Done]
    return output


TEXT = "Hello 你好，world."


@pytest.mark.parametrize(("voice", "speaker"), [(VOICE, "xiaobei"), ("george", "yunjian")])
def test_voice_of_the_same_gender_says_mandarin(
    voice: str, speaker: str, model: HibariModel, said: list[tuple[str, str]]
) -> None:
    output = spoken(model, TEXT, voice)
    assert [name for name, _ in said] == [voice, speaker, voice]
    assert said[1][1] == "ni↗xau↓,"
    words = [word for chunk in output.audio for word in chunk.words]
    assert [TEXT[word.start_char : word.end_char] for word in words] == ["Hello", "你", "好，", "world."]
    assert all(one.end_sample <= other.start_sample for one, other in pairwise(words))
    assert all(word.start_sample < word.end_sample for word in words)
    assert [run for end in output.ends if isinstance(end, Done) for run in end.skipped] == []


def test_mandarin_voice_says_all_itself(model: HibariModel, said: list[tuple[str, str]]) -> None:
    spoken(model, TEXT, "yunjian")
    assert {name for name, _ in said} == {"yunjian"}


def test_voice_of_another_gender_is_better_than_none(speakers: list[VoiceModel], said: list[tuple[str, str]]) -> None:
    model = HibariModel(voices=speakers[:1])
    spoken(model, TEXT)
    assert [name for name, _ in said] == [VOICE, "yunjian", VOICE]
    assert HibariModel(voices=speakers[2:]).mandarin_voice(VOICE) is None


def test_mandarin_equals_that_of_an_utterance_of_its_voice(model: HibariModel) -> None:
    alone = spoken(model, "你好。", "xiaobei").pcm
    assert spoken(model, "你好。").pcm == alone != spoken(model, "你好。", "yunjian").pcm


def test_mandarin_is_as_loud_as_the_voice_of_the_utterance(speakers: list[VoiceModel]) -> None:
    """The gain of a session is that of the utterance's voice."""
    heart = read_voicepack(ROOT / "voicepacks" / "hibari" / VOICE).pack
    quiet = HibariModel(voices=[replace(speakers[1], loudness_lufs=(heart.loudness_lufs or 0.0) - 6.0)])
    usual, louder = (
        np.frombuffer(spoken(model, "你好。").pcm, np.int16) for model in (HibariModel(voices=speakers[1:2]), quiet)
    )
    assert np.allclose(louder / 10 ** (6.0 / 20), usual, atol=1)
    assert quiet.mandarin_voice(VOICE) == "xiaobei"
    assert heart.gender == "female"


def test_expression_holds_in_both_languages(model: HibariModel) -> None:
    whole = Segment.whole(TEXT)
    slow = replace(whole, expressions=((0, Expression(rate=0.5)),))
    engine = HibariEngine(model)
    usual, slower = (len(engine.speak(KEY, SynthesisParams(VOICE), [each])) for each in (whole, slow))
    assert slower == pytest.approx(2 * usual, rel=0.15)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_engine_contract_with_two_voices_in_an_utterance(check: ContractCheck, model: HibariModel) -> None:
    check(
        EngineCase(
            make=lambda: HibariEngine(model, max_utterances=10),
            params=SynthesisParams(VOICE, speed=1.5, seed=3),
            segments=segments(
                ("好的, ", Boundary.CLAUSE), ("it is 五元。", Boundary.SENTENCE), (" Bye!", Boundary.END)
            ),
            unspeakable=segments(("。。", Boundary.SENTENCE), ("… 😀", Boundary.END)),
        )
    )


def test_mandarin_needs_no_file_after_the_warm_up(model: HibariModel) -> None:
    engine = HibariEngine(model)
    engine.warm_up()
    with opened_files() as files:
        assert engine.speak(KEY, SynthesisParams(VOICE), segments(("A xyzzyq, 您好吗？", Boundary.END)))
    assert files == []
