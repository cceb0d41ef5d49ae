"""CPU voices perform the rate, volume, pitch and mood of a span, without a click or a jump where it begins."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from tests.fakes.reading import read
from tts_worker.audio.pcm import Floats, to_float
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import HibariModel
from tts_worker.engine.cpu.hibari.moods import MOODS, mood_of, with_mood
from tts_worker.text.tables import words
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Audio,
    Command,
    Credit,
    EndText,
    Express,
    Expression,
    Hold,
    Open,
    Release,
    SynthesisParams,
    Text,
    UtteranceKey,
    WordTiming,
)

KEY = UtteranceKey("expression", 1)
SENTENCE = "The river runs along the valley and it comes down to the sea."
SPAN = "it comes down to the sea"


def marked(tag: str) -> str:
    return SENTENCE.replace(SPAN, f"{tag}{SPAN}</prosody>")


def speak(model: HibariModel, text: str, on_step: Callable[[HibariEngine, int], None] | None = None) -> Speech:
    engine = HibariEngine(model)
    engine.handle(Open(KEY, SynthesisParams("heart"), credit_samples=60 * SAMPLE_RATE_HZ))
    for segment in read(text):
        engine.handle(Text(KEY, segment))
    engine.handle(EndText(KEY))
    pcm, words = b"", []
    while KEY in engine.sequences:
        for event in engine.step(0.0):
            if isinstance(event, Audio):
                pcm += event.pcm
                words += event.words
        if on_step is not None:
            on_step(engine, len(pcm) // 2)
    return Speech(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, words, text)


class Speech:
    """Audio of a text, and its words."""

    def __init__(self, samples: Floats, words: list[WordTiming], text: str) -> None:
        self.samples = samples
        self.words = words
        self.span_start = next(word for word in words if text[word.start_char :].startswith("it")).start_sample

    @property
    def parts(self) -> tuple[Floats, Floats]:
        """The audio before the span, and that of the span."""
        return self.samples[: self.span_start], self.samples[self.span_start : self.words[-1].end_sample]


def level_db(samples: Floats) -> float:
    return float(10 * np.log10(np.mean(samples**2)))


def pitches_hz(samples: Floats) -> Floats:
    """Return the pitch of each 40 ms by autocorrelation between 100 and 400 Hz, NaN where it is unvoiced."""
    found = []
    for start in range(0, len(samples) - 960, 480):
        frame = samples[start : start + 960] - samples[start : start + 960].mean()
        correlation = np.correlate(frame, frame, "full")[959:]
        lag = 60 + int(np.argmax(correlation[60:240]))
        found.append(SAMPLE_RATE_HZ / lag if correlation[lag] > 0.5 * correlation[0] > 0 else np.nan)
    return np.array(found, np.float32)


def semitones_between(one: Floats, other: Floats) -> float:
    """Return the median interval from ``one`` to ``other``, whose times are the same."""
    return float(12 * np.log2(np.nanmedian(pitches_hz(other) / pitches_hz(one))))


@pytest.fixture(scope="module")
def plain(hibari_model: HibariModel) -> Speech:
    return speak(hibari_model, SENTENCE)


@pytest.mark.parametrize(("rate", "factor"), [("50%", 2.0), ("80%", 1.25), ("150%", 1 / 1.5)])
def test_rate_changes_the_length_of_the_span(
    rate: str, factor: float, plain: Speech, hibari_model: HibariModel
) -> None:
    spoken = speak(hibari_model, marked(f"<prosody rate='{rate}'>"))
    before, span = spoken.parts
    assert len(before) == pytest.approx(len(plain.parts[0]), rel=0.05)
    assert len(span) == pytest.approx(len(plain.parts[1]) * factor, rel=0.12)
    assert len(spoken.words) == len(plain.words)


@pytest.mark.parametrize("db", [-12, -6, 6])
def test_volume_changes_the_level_of_the_span(db: int, plain: Speech, hibari_model: HibariModel) -> None:
    spoken = speak(hibari_model, marked(f"<prosody volume='{db:+}dB'>"))
    before, span = spoken.parts
    assert level_db(before) == pytest.approx(level_db(plain.parts[0]), abs=0.5)
    assert level_db(span) - level_db(plain.parts[1]) == pytest.approx(db, abs=0.7)
    assert [word.start_sample for word in spoken.words] == [word.start_sample for word in plain.words]


@pytest.mark.parametrize("semitones", [-3, 2, 4])
def test_pitch_changes_that_of_the_span(semitones: int, plain: Speech, hibari_model: HibariModel) -> None:
    spoken = speak(hibari_model, marked(f"<prosody pitch='{semitones:+}st'>"))
    before, span = spoken.parts
    assert semitones_between(plain.parts[0], before) == pytest.approx(0, abs=0.3)
    assert semitones_between(plain.parts[1], span) == pytest.approx(semitones, abs=0.5)
    assert level_db(span) == pytest.approx(level_db(plain.parts[1]), abs=1.5)


def test_span_begins_without_a_click_or_a_jump(plain: Speech, hibari_model: HibariModel) -> None:
    spoken = speak(hibari_model, marked("<prosody rate='80%' volume='+6dB' pitch='+3st'>"))
    window = SAMPLE_RATE_HZ // 50
    around = spoken.samples[spoken.span_start - window : spoken.span_start + window]
    # 6 dB more in the whole audio bound the steps between its samples.
    assert np.abs(np.diff(around)).max() <= 2 * np.abs(np.diff(plain.samples)).max()
    # Nowhere is it silent between the words, as it would be between two phrases.
    levels = [level_db(part) for part in np.array_split(around, 4)]
    assert min(levels) > level_db(plain.samples) - 40


def test_neutral_element_changes_no_sample(plain: Speech, hibari_model: HibariModel) -> None:
    assert np.array_equal(speak(hibari_model, marked("<prosody rate='medium'>")).samples, plain.samples)


def test_pause_inside_a_span_is_exact_to_the_sample(hibari_model: HibariModel) -> None:
    text = marked("<prosody rate='80%' volume='-6dB' pitch='+2st'>")

    held: list[int] = []

    def hold(engine: HibariEngine, samples: int) -> None:
        if samples and KEY in engine.sequences and samples not in held:
            held.append(samples)
            engine.handle(Hold(KEY))
            engine.step(0.0)
            engine.handle(Release(KEY))
            engine.handle(Credit(KEY, 0))

    assert np.array_equal(speak(hibari_model, text, hold).samples, speak(hibari_model, text).samples)
    assert len(held) > 2


def heights(samples: Floats) -> Floats:
    """Return the pitch of the voiced parts, in semitones."""
    found = pitches_hz(samples)
    return np.asarray(12 * np.log2(found[~np.isnan(found)]), np.float32)


def spread(samples: Floats) -> float:
    return float(np.subtract(*np.percentile(heights(samples), [90, 10])))


def test_moods_change_rate_level_pitch_and_range(plain: Speech, hibari_model: HibariModel) -> None:
    wrong = []
    for name, mood in MOODS.items():
        spoken = speak(hibari_model, f"<emotion value='{name}'/>{SENTENCE}")
        changes = {
            # Durations have steps of 25 ms, so that a small change of the rate has an effect on few phonemes.
            "rate": (np.log(len(plain.samples) / len(spoken.samples)), np.log(mood.rate), 0.12),
            # A change of the pitch or of its range changes the level by up to a decibel.
            "level": (level_db(spoken.samples) - level_db(plain.samples), mood.volume_db, 1.5),
            "pitch": (
                float(np.median(heights(spoken.samples)) - np.median(heights(plain.samples))),
                mood.pitch_semitones,
                0.6,
            ),
            "range": (spread(spoken.samples) / spread(plain.samples) - 1, mood.pitch_range - 1, 0.2),
        }
        for what, (got, wanted, tolerance) in changes.items():
            if abs(got - wanted) > tolerance or got * wanted < 0:
                wrong.append(f"{name}: {what} {got:.2f}, not {wanted:.2f}")
    assert not wrong, "\n".join(wrong)


def test_mood_adds_to_prosody_and_an_unknown_one_changes_nothing(plain: Speech, hibari_model: HibariModel) -> None:
    quiet, sad = Expression(0.8, -6.0, -1.0, "say it sadly"), MOODS["sad"]
    assert with_mood(quiet) == (0.8 * sad.rate, -6 + sad.volume_db, -1 + sad.pitch_semitones, "say it sadly")
    unknown = speak(hibari_model, f"<emotion value='sarcastic'/>{SENTENCE}")
    assert np.array_equal(unknown.samples, plain.samples)
    known = {mood_of(word) for word in words("directions")["delivery"]}
    assert known >= set(MOODS.values()), "a direction such as [happy] must not be read"


def test_mood_begins_in_the_middle_of_a_phrase(plain: Speech, hibari_model: HibariModel) -> None:
    text = SENTENCE.replace(SPAN, f"[excited] {SPAN}")
    spoken = speak(hibari_model, text)
    before, span = spoken.parts
    assert semitones_between(plain.parts[0], before) == pytest.approx(0, abs=0.2)
    assert np.median(heights(span)) > np.median(heights(plain.parts[1])) + 0.4
    assert spread(span) > 1.1 * spread(plain.parts[1])
    assert [text[word.start_char : word.end_char] for word in spoken.words] == SENTENCE.split()


def change_while_it_speaks(model: HibariModel, *commands: Command) -> tuple[bytes, list[WordTiming], int]:
    """Send ``commands`` after the first audio; return the audio, its words, and the samples before the commands."""
    engine = HibariEngine(model)
    engine.handle(Open(KEY, SynthesisParams("heart"), credit_samples=60 * SAMPLE_RATE_HZ))
    for segment in read(SENTENCE):
        engine.handle(Text(KEY, segment))
    engine.handle(EndText(KEY))
    pcm, timings = b"", []

    def step() -> None:
        nonlocal pcm
        for event in engine.step(0.0):
            if isinstance(event, Audio):
                pcm += event.pcm
                timings.extend(event.words)

    while not pcm:
        step()
    before = len(pcm) // 2
    for command in commands:
        engine.handle(command)
        if isinstance(command, Hold):
            step()
            assert len(pcm) == 2 * before
    while KEY in engine.sequences:
        step()
    return pcm, timings, before


def test_pause_beside_a_change_of_the_session_is_exact_to_the_sample(plain: Speech, hibari_model: HibariModel) -> None:
    """In either order: the words from the next one on change, and RESUME goes on at the next sample."""
    express = Express(KEY, Expression(rate=0.7, volume_db=-9, pitch_semitones=3, style="sad"))
    changed, timings, before = change_while_it_speaks(hibari_model, express)
    assert 0 < before < timings[-1].start_sample
    assert np.array_equal(to_float(changed)[: before - 1200], plain.samples[: before - 1200])
    assert len(changed) // 2 > 1.2 * len(plain.samples)
    for commands in ((express, Hold(KEY), Release(KEY)), (Hold(KEY), express, Release(KEY))):
        assert change_while_it_speaks(hibari_model, *commands) == (changed, timings, before), commands


@pytest.mark.parametrize("at_s", [0.0, 0.3, 1.5])
def test_session_changes_from_the_next_word(at_s: float, plain: Speech, hibari_model: HibariModel) -> None:
    sent: list[int] = []

    def express(engine: HibariEngine, samples: int) -> None:
        if not sent and samples >= at_s * SAMPLE_RATE_HZ and KEY in engine.sequences:
            sent.append(engine.sequences[KEY].output.rendered_samples)
            engine.handle(Express(KEY, Expression(rate=0.7, volume_db=-9, pitch_semitones=3)))

    spoken = speak(hibari_model, SENTENCE, express)
    # What was rendered, up to the overlap of the vocoder, is as it was.
    done = max(0, sent[0] - 1200)
    assert np.array_equal(spoken.samples[:done], plain.samples[:done])
    # The words from the next one on are slower.
    first = next(number for number, word in enumerate(plain.words) if word.start_sample >= sent[0] + 2000)
    length, plain_length = (each.words[-1].end_sample - each.words[first].start_sample for each in (spoken, plain))
    assert length == pytest.approx(plain_length / 0.7, rel=0.1)
    assert all(one.end_sample <= two.start_sample for one, two in pairwise(spoken.words))
    change = level_db(spoken.samples[spoken.words[first].start_sample :]) - level_db(
        plain.samples[plain.words[first].start_sample :]
    )
    assert change == pytest.approx(-9, abs=1.5)
    assert np.abs(np.diff(spoken.samples)).max() <= 1.2 * np.abs(np.diff(plain.samples)).max()


def test_expression_before_the_text_applies_to_all_of_it(plain: Speech, hibari_model: HibariModel) -> None:
    expression = Expression(rate=0.8)
    engine = HibariEngine(hibari_model)
    engine.handle(Open(KEY, SynthesisParams("heart"), credit_samples=60 * SAMPLE_RATE_HZ))
    engine.handle(Express(KEY, expression))
    for segment in read(SENTENCE):
        engine.handle(Text(KEY, segment))
    engine.handle(EndText(KEY))
    samples = 0
    while KEY in engine.sequences:
        samples += sum(event.samples for event in engine.step(0.0) if isinstance(event, Audio))
    assert samples == pytest.approx(len(plain.samples) / 0.8, rel=0.06)
