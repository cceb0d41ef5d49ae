from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from typing import cast

import numpy as np
import pytest

from tests.unit.engine.test_hibari_text import plain
from tts_worker.audio.pcm import Floats
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.engine.hibari_model import FRAME_SAMPLES, HibariModel, Spectra
from tts_worker.engine.hibari_speech import POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES, Speech
from tts_worker.engine.hibari_text import Phrase
from tts_worker.errors import SynthesisFailed
from tts_worker.types import SAMPLE_RATE_HZ, WordTiming

MS = SAMPLE_RATE_HZ // 1000
FRAME_MS = 12.5
QUIET = 1 / 20
"""Below the loudest 20 ms of the same speech by 26 dB: a pause. Relative, since CPUs round the network differently."""

TEXTS = ["Yes.", "Hello there,", "I like cats", "Fish and chips, please!", "What is his", "Open the old oak door: now."]


def phrase_of(model: HibariModel, text: str) -> Phrase:
    (phrase,) = (item for item in model.reader.read(plain(text)) if item is not None)
    return phrase


def say(
    model: HibariModel, text: str, speed: float = 1.0, *, seed: int = 0, park: bool = False
) -> tuple[Floats, tuple[WordTiming, ...], list[int]]:
    """The sound, its words, and the lengths of its blocks."""
    speech = Speech(model, phrase_of(model, text), speed, np.random.default_rng(seed))
    blocks: list[Floats] = []
    words: tuple[WordTiming, ...] = ()
    while not speech.finished:
        block = speech.next_block()
        blocks.append(block.sound)
        assert not (words and block.words), "words are told once"
        words = words or block.words
        if park:
            speech.park()
            assert speech.parked
    sound = np.concatenate(blocks)
    assert len(sound) == speech.samples
    return sound, words, [len(block) for block in blocks]


def rms(sound: Floats) -> float:
    return float(np.sqrt(np.mean(sound**2)))


def loudest(sound: Floats) -> float:
    """RMS of the loudest 20 ms: the level against which a listener hears everything else."""
    window = 20 * MS
    return max(rms(sound[start : start + window]) for start in range(0, len(sound), window))


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("text", TEXTS)
def test_speech_begins_and_ends_where_the_waveform_does(text: str, speed: float, hibari_model: HibariModel) -> None:
    """The cut is made before there is a waveform; a detector that listens must agree."""
    sound, _, _ = say(hibari_model, text, speed)
    found = speech_range(sound, TrimOptions(pre_roll_ms=0, post_roll_ms=0))
    assert found is not None
    assert found[0] <= PRE_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    assert len(sound) - found[1] <= POST_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    # Nothing audible was cut off: both edges are at least 20 dB below the speech, which masks them.
    edge = 5 * MS
    assert max(rms(sound[:edge]), rms(sound[-edge:])) < loudest(sound) / 10


def test_nothing_of_the_raw_speech_is_lost(hibari_model: HibariModel) -> None:
    from hibari import Hibari

    library = Hibari(threads=1, g2p=hibari_model.reader.g2p)
    for text in TEXTS:
        sound, _, _ = say(hibari_model, text)
        found = speech_range(library(text, seed=0), TrimOptions(pre_roll_ms=0, post_roll_ms=0))
        assert found is not None
        spoken = found[1] - found[0]
        assert (
            spoken - 2 * FRAME_SAMPLES
            <= len(sound) - PRE_ROLL_SAMPLES - POST_ROLL_SAMPLES
            <= spoken + 2 * FRAME_SAMPLES
        )


def test_the_first_block_is_small_and_audible(hibari_model: HibariModel) -> None:
    _, _, lengths = say(hibari_model, "The first block of a long sentence does not wait for all the others to be made.")
    assert 150 * MS <= lengths[0] <= 300 * MS
    assert set(lengths[1:-1]) == {SAMPLE_RATE_HZ}


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.7])
def test_words_begin_where_pauses_end(speed: float, hibari_model: HibariModel) -> None:
    """Commas make pauses that can be seen in the waveform: the word after one begins where the audio begins again."""
    text = "Sunday, Monday, Tuesday, Thursday, and the others."
    sound, words, _ = say(hibari_model, text, speed)
    assert [text[word.start_char : word.end_char] for word in words] == text.split()
    assert words[0].start_sample <= PRE_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    assert len(sound) - words[-1].end_sample <= POST_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    quiet = QUIET * loudest(sound)
    checked = 0
    for before, word in pairwise(words):
        pause = sound[before.end_sample : word.start_sample]
        if len(pause) > 60 * MS:
            checked += 1
            inside = pause[15 * MS : -15 * MS]  # the edges are known to a frame, 12.5 ms
            assert rms(inside) < quiet, "quiet between the words"
            onset = sound[word.start_sample - 5 * MS : word.start_sample + 40 * MS]
            assert rms(onset) > quiet, "audio where the word begins"
    assert checked


@pytest.mark.parametrize("text", ["And August: never.", "Well, Mary, now, or never, Anna."])
def test_voiced_onset_after_pause_belongs_to_its_word(text: str, hibari_model: HibariModel) -> None:
    """A slow "n" or "m" is audible long before its phoneme's place: no word begins in the middle of it."""
    sound, words, _ = say(hibari_model, text, 0.5)
    quiet = QUIET * loudest(sound)
    checked = 0
    for before, word in pairwise(words):
        starts = range(before.end_sample + 15 * MS, word.start_sample, 5 * MS)
        is_quiet = [rms(sound[start : start + 5 * MS]) < quiet for start in starts]
        if any(is_quiet):
            checked += 1
            audible = is_quiet[::-1].index(True) * 5
            assert audible <= 2 * FRAME_MS, text[word.start_char : word.end_char]
    assert checked


def test_durations_tile_the_spectra(hibari_model: HibariModel) -> None:
    for text in TEXTS:
        phrase = phrase_of(hibari_model, text)
        for speed in (0.5, 1.0, 2.0):
            spectra = hibari_model.predict(phrase.ids, speed)
            assert len(spectra.duration_frames) == len(phrase.ids)
            assert spectra.duration_frames.sum() == spectra.frames


def test_the_seed_decides_about_the_noise_alone(hibari_model: HibariModel) -> None:
    one, words, _ = say(hibari_model, "Fish and chips.", seed=1)
    same, _, _ = say(hibari_model, "Fish and chips.", seed=1)
    other, other_words, _ = say(hibari_model, "Fish and chips.", seed=2)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert words == other_words


def test_parking_between_blocks_changes_nothing(hibari_model: HibariModel) -> None:
    text = "Half of this is said before a pause, and the other half is said much later."
    sound, words, _ = say(hibari_model, text)
    parked, parked_words, _ = say(hibari_model, text, park=True)
    assert np.array_equal(sound, parked)
    assert words == parked_words


class Tampered:
    """The network with something done to what it says."""

    def __init__(self, model: HibariModel, tamper: Callable[[Spectra], Spectra]) -> None:
        self._model = model
        self._tamper = tamper

    def predict(self, ids: tuple[int, ...], speed: float) -> Spectra:
        return self._tamper(self._model.predict(ids, speed))


def tampered(model: HibariModel, text: str, tamper: Callable[[Spectra], Spectra]) -> Speech:
    return Speech(cast(HibariModel, Tampered(model, tamper)), phrase_of(model, text), 1.0, np.random.default_rng(0))


def test_what_is_no_number_is_no_sound(hibari_model: HibariModel) -> None:
    def tamper(spectra: Spectra) -> Spectra:
        noise = spectra.noise.copy()
        noise[101, spectra.frames // 2] = np.nan
        return replace(spectra, noise=noise)

    speech = tampered(hibari_model, "Hello there.", tamper)
    blocks = iter(speech.next_block, None)
    with pytest.raises(SynthesisFailed, match="no sound"):
        list(islice(blocks, 10))


def test_even_speech_without_quiet_around_it_begins_and_ends_softly(hibari_model: HibariModel) -> None:
    def loud_throughout(spectra: Spectra) -> Spectra:
        return replace(spectra, noise=np.full_like(spectra.noise, 1.0))

    speech = tampered(hibari_model, "Hello there.", loud_throughout)
    blocks = []
    while not speech.finished:
        blocks.append(speech.next_block().sound)
    sound = np.concatenate(blocks)
    middle = rms(sound[len(sound) // 3 : -len(sound) // 3])
    assert middle > 0.05
    assert max(abs(sound[:5]).max(), abs(sound[-5:]).max()) < middle / 20


def test_a_phrase_that_the_network_says_in_silence_has_no_samples(hibari_model: HibariModel) -> None:
    def mute(spectra: Spectra) -> Spectra:
        silent = np.full_like(spectra.noise, -20)
        return replace(spectra, harmonic=silent, noise=silent, free=silent)

    speech = tampered(hibari_model, "Hello there.", mute)
    assert speech.samples == 0
    assert speech.finished
