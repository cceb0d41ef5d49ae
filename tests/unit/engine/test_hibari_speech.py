from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest

from tests.unit.engine.test_phrase_text import plain
from tts_worker.audio.pcm import Floats
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.engine.cpu.hibari.model import NOISE, HibariModel, Spectra
from tts_worker.engine.cpu.hibari.speech import HibariSynthesis
from tts_worker.engine.cpu.phrases.network import POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import SynthesisFailed
from tts_worker.types import SAMPLE_RATE_HZ, WordTiming

MS = SAMPLE_RATE_HZ // 1000
FRAME_MS = 12.5
QUIET = 1 / 20
"""A pause is 26 dB below the loudest 20 ms of the same speech; relative, because CPUs round the network differently."""

TEXTS = ["Yes.", "Hello there,", "I like cats", "Fish and chips, please!", "What is his", "Open the old oak door: now."]


def make_phrase(model: HibariModel, text: str) -> Phrase:
    (phrase,) = (item for item in model.phonemizer.phonemize(plain(text)) if item is not None)
    return phrase


def synthesize(
    model: HibariModel, text: str, speed: float = 1.0, *, seed: int = 0, suspend: bool = False
) -> tuple[Floats, tuple[WordTiming, ...], list[int]]:
    """Return the samples, the words and the lengths of the blocks."""
    phrase = make_phrase(model, text)
    spectra = model.predict(phrase.ids, speed)
    speech = HibariSynthesis(phrase, spectra, speed, np.random.default_rng(seed))
    blocks: list[Floats] = []
    words: tuple[WordTiming, ...] = ()
    while not speech.finished:
        block = speech.next_block()
        begin = sum(map(len, blocks))
        blocks.append(block.samples)
        end = begin + len(block.samples)
        assert all(begin <= word.start_sample < end for word in block.words), "words are reported where they begin"
        words += block.words
        if suspend:
            speech.suspend()
            assert speech.suspended
            speech.resume(spectra)
    samples = np.concatenate(blocks)
    assert len(samples) == speech.total_samples
    return samples, words, [len(block) for block in blocks]


def rms(samples: Floats) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def peak_rms(samples: Floats) -> float:
    """RMS of the loudest 20 ms, the reference for audibility."""
    window = 20 * MS
    return max(rms(samples[start : start + window]) for start in range(0, len(samples), window))


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("text", TEXTS)
def test_speech_range_agrees_with_the_waveform(text: str, speed: float, hibari_model: HibariModel) -> None:
    """The trim is computed before there is a waveform; a level detector on the waveform must agree."""
    samples, _, _ = synthesize(hibari_model, text, speed)
    found = speech_range(samples, TrimOptions(pre_roll_ms=0, post_roll_ms=0))
    assert found is not None
    assert found[0] <= PRE_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    assert len(samples) - found[1] <= POST_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    # No audible part is cut off: both edges are at least 20 dB below the speech, which masks them.
    edge = 5 * MS
    assert max(rms(samples[:edge]), rms(samples[-edge:])) < peak_rms(samples) / 10


def test_trimming_preserves_all_speech(hibari_model: HibariModel) -> None:
    from hibari import Hibari

    library = Hibari(threads=1, g2p=hibari_model.phonemizer.g2p)
    for text in TEXTS:
        samples, _, _ = synthesize(hibari_model, text)
        found = speech_range(library(text, seed=0), TrimOptions(pre_roll_ms=0, post_roll_ms=0))
        assert found is not None
        spoken = found[1] - found[0]
        assert (
            spoken - 2 * FRAME_SAMPLES
            <= len(samples) - PRE_ROLL_SAMPLES - POST_ROLL_SAMPLES
            <= spoken + 2 * FRAME_SAMPLES
        )


def test_first_block_is_short(hibari_model: HibariModel) -> None:
    _, _, lengths = synthesize(
        hibari_model, "The first block of a long sentence does not wait for all the others to be made."
    )
    assert 150 * MS <= lengths[0] <= 300 * MS
    assert set(lengths[1:-1]) == {SAMPLE_RATE_HZ}


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.7])
def test_words_begin_where_pauses_end(speed: float, hibari_model: HibariModel) -> None:
    """Commas make pauses that are visible in the waveform; the word after one begins where the audio resumes."""
    text = "Sunday, Monday, Tuesday, Thursday, and the others."
    samples, words, _ = synthesize(hibari_model, text, speed)
    assert [text[word.start_char : word.end_char] for word in words] == text.split()
    assert words[0].start_sample <= PRE_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    assert len(samples) - words[-1].end_sample <= POST_ROLL_SAMPLES + 2 * FRAME_SAMPLES
    quiet = QUIET * peak_rms(samples)
    checked = 0
    for before, word in pairwise(words):
        pause = samples[before.end_sample : word.start_sample]
        if len(pause) > 60 * MS:
            checked += 1
            inside = pause[15 * MS : -15 * MS]  # the edges are accurate to one frame, 12.5 ms
            assert rms(inside) < quiet, "quiet between the words"
            onset = samples[word.start_sample - 5 * MS : word.start_sample + 40 * MS]
            assert rms(onset) > quiet, "audio where the word begins"
    assert checked


@pytest.mark.parametrize("text", ["And August: never.", "Well, Mary, now, or never, Anna."])
def test_voiced_onset_after_pause_belongs_to_its_word(text: str, hibari_model: HibariModel) -> None:
    """A slow "n" or "m" is audible before its nominal position; a word must not begin in the middle of it."""
    samples, words, _ = synthesize(hibari_model, text, 0.5)
    quiet = QUIET * peak_rms(samples)
    checked = 0
    for before, word in pairwise(words):
        starts = range(before.end_sample + 15 * MS, word.start_sample, 5 * MS)
        is_quiet = [rms(samples[start : start + 5 * MS]) < quiet for start in starts]
        if any(is_quiet):
            checked += 1
            audible = is_quiet[::-1].index(True) * 5
            assert audible <= 2 * FRAME_MS, text[word.start_char : word.end_char]
    assert checked


def test_durations_sum_to_the_frames(hibari_model: HibariModel) -> None:
    for text in TEXTS:
        phrase = make_phrase(hibari_model, text)
        for speed in (0.5, 1.0, 2.0):
            spectra = hibari_model.predict(phrase.ids, speed)
            assert len(spectra.duration_frames) == len(phrase.ids)
            assert spectra.duration_frames.sum() == spectra.frames


def test_seed_affects_only_the_noise(hibari_model: HibariModel) -> None:
    one, words, _ = synthesize(hibari_model, "Fish and chips.", seed=1)
    same, _, _ = synthesize(hibari_model, "Fish and chips.", seed=1)
    other, other_words, _ = synthesize(hibari_model, "Fish and chips.", seed=2)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert words == other_words


def test_suspending_between_blocks_changes_nothing(hibari_model: HibariModel) -> None:
    text = "Half of this is said before a pause, and the other half is said much later."
    samples, words, _ = synthesize(hibari_model, text)
    suspended, suspended_words, _ = synthesize(hibari_model, text, suspend=True)
    assert np.array_equal(samples, suspended)
    assert words == suspended_words


def modified_synthesis(model: HibariModel, text: str, modify: Callable[[Spectra], Spectra]) -> HibariSynthesis:
    phrase = make_phrase(model, text)
    return HibariSynthesis(phrase, modify(model.predict(phrase.ids, 1.0)), 1.0, np.random.default_rng(0))


def test_nan_output_raises_synthesis_failed(hibari_model: HibariModel) -> None:
    def modify(spectra: Spectra) -> Spectra:
        parts = spectra.parts.copy()
        parts[spectra.frames // 2, NOISE, 101] = np.nan
        return replace(spectra, parts=parts)

    speech = modified_synthesis(hibari_model, "Hello there.", modify)
    blocks = iter(speech.next_block, None)
    with pytest.raises(SynthesisFailed, match="NaN or infinite"):
        list(islice(blocks, 10))


def test_loud_edges_are_faded(hibari_model: HibariModel) -> None:
    def loud_throughout(spectra: Spectra) -> Spectra:
        parts = spectra.parts.copy()
        parts[:, NOISE] = 1.0
        return replace(spectra, parts=parts)

    speech = modified_synthesis(hibari_model, "Hello there.", loud_throughout)
    blocks = []
    while not speech.finished:
        blocks.append(speech.next_block().samples)
    samples = np.concatenate(blocks)
    middle = rms(samples[len(samples) // 3 : -len(samples) // 3])
    assert middle > 0.05
    assert max(abs(samples[:5]).max(), abs(samples[-5:]).max()) < middle / 20


def test_silent_phrase_has_no_samples(hibari_model: HibariModel) -> None:
    def mute(spectra: Spectra) -> Spectra:
        return replace(spectra, parts=np.full_like(spectra.parts, -20))

    speech = modified_synthesis(hibari_model, "Hello there.", mute)
    assert speech.total_samples == 0
    assert speech.finished
