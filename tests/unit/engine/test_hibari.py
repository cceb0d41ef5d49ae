from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.engine_contract import EngineCase, EngineDriver, EngineOutput, segments
from tts_worker.audio.pcm import to_float
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.engine.hibari import VOICE, HibariEngine, HibariSettings
from tts_worker.engine.hibari_model import MODEL_SHA256, HibariModel, Spectra
from tts_worker.engine.hibari_text import MAX_PHONEMES, Reader
from tts_worker.errors import EngineFault, ErrorCode
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Audio,
    Boundary,
    Credit,
    Done,
    EndText,
    Failed,
    Hold,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

MS = SAMPLE_RATE_HZ // 1000
PARAMS = SynthesisParams(VOICE)
KEY = UtteranceKey("s", 1)


def driver(model: HibariModel, params: SynthesisParams = PARAMS, most: int = 64) -> EngineDriver:
    return EngineDriver(EngineCase(lambda: HibariEngine(HibariSettings(max_utterances=most), model), params, (), ()))


def speak(model: HibariModel, *parts: tuple[str, Boundary], params: SynthesisParams = PARAMS) -> EngineOutput:
    drive = driver(model, params)
    heard = drive.open(KEY)
    drive.say(KEY, segments(*parts))
    drive.drain()
    return heard


def quiet_stretches(pcm: bytes, least_ms: int = 40) -> list[tuple[int, int]]:
    """Ranges of samples inside the sound where it stays below -50 dBFS for at least so long."""
    sound = to_float(pcm)
    window = 5 * MS
    level = np.sqrt(np.mean(sound[: len(sound) // window * window].reshape(-1, window) ** 2, axis=1))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (level < 10 ** (-50 / 20)).astype(int), [0]))))
    return [(int(a) * window, int(b) * window) for a, b in edges.reshape(-1, 2) if (b - a) * window >= least_ms * MS]


# -- what it is -------------------------------------------------------------------------------------------------------


def test_it_says_what_it_can_do(hibari_model: HibariModel) -> None:
    info = HibariEngine(HibariSettings(max_utterances=7), hibari_model).info
    assert (info.name, info.voices, info.languages) == ("hibari", ("heart",), ("en",))
    assert info.alignment is Alignment.MEASURED
    assert info.max_utterances == 7
    assert info.sample_rate_hz == SAMPLE_RATE_HZ
    assert not info.text_by_word
    assert info.speed_range == (0.5, 2.0)


def test_a_model_that_is_not_the_tested_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "hibari.onnx"
    other.write_bytes(b"something else")
    with pytest.raises(EngineFault, match=r"not the one .*pip install"):
        HibariModel(other)
    with pytest.raises(EngineFault, match=r"cannot be read .*pip install"):
        HibariModel(tmp_path / "missing.onnx")


def test_the_pinned_hash_is_that_of_the_package() -> None:
    import hibari

    data = (Path(hibari.__file__).parent / "assets" / "hibari.onnx").read_bytes()
    assert hashlib.sha256(data).hexdigest() == MODEL_SHA256


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hibari", None)
    with pytest.raises(EngineFault, match=r"not installed; pip install"):
        HibariModel()


def test_the_tap_changes_nothing_that_the_network_says(hibari_model: HibariModel) -> None:
    """Spectra with the durations made visible are those of the untouched library, to the bit."""
    from hibari import Hibari

    library = Hibari(threads=1, g2p=hibari_model.reader.g2p)
    ids = library.ids(library.g2p("The tap changes nothing, not one bit."))
    ours = hibari_model.predict(ids, 1.25)
    theirs = library.sess.run(None, {"ids": np.array([ids]), "speed": np.array([1.25], np.float32)})
    for one, other in zip(
        (ours.harmonic, ours.harmonic_phase, ours.noise, ours.free, ours.free_phase, ours.f0_hz), theirs, strict=True
    ):
        assert np.array_equal(one, other[0])


@pytest.mark.parametrize(
    ("language", "taken"), [(None, True), ("en", True), ("en-GB", True), ("EN_us", True), ("zh", False), ("eng", False)]
)
def test_it_speaks_english_only(language: str | None, taken: bool, hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    drive.do(Open(KEY, replace(PARAMS, language=language), 0), EndText(KEY))
    drive.drain()
    (end,) = drive.heard[KEY].ends
    assert isinstance(end, Done) == taken
    if isinstance(end, Failed):
        assert end.error.code is ErrorCode.INVALID_REQUEST


# -- how it sounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("boundary", "pause_ms"),
    [(Boundary.CLAUSE, 120), (Boundary.FLUSH, 120), (Boundary.SENTENCE, 280), (Boundary.PARAGRAPH, 450)],
)
def test_pauses_between_segments(boundary: Boundary, pause_ms: int, speed: float, hibari_model: HibariModel) -> None:
    heard = speak(hibari_model, ("Maybe", boundary), (" now", Boundary.END), params=replace(PARAMS, speed=speed))
    (pause,) = [b - a for a, b in quiet_stretches(heard.pcm) if 100 * MS < a < heard.samples - 100 * MS]
    assert pause == pytest.approx(pause_ms / speed * MS, abs=30 * MS)


@pytest.mark.parametrize("boundary", [Boundary.WORD, Boundary.FORCED])
def test_where_a_text_is_only_cut_there_is_hardly_a_pause(boundary: Boundary, hibari_model: HibariModel) -> None:
    heard = speak(hibari_model, ("Maybe", boundary), (" now", Boundary.END))
    inside = [b - a for a, b in quiet_stretches(heard.pcm, 10) if 100 * MS < a < heard.samples - 100 * MS]
    assert max(inside) < 90 * MS


@pytest.mark.parametrize("boundary", list(Boundary))
def test_no_pause_follows_the_last_segment(boundary: Boundary, hibari_model: HibariModel) -> None:
    with_silent_tail = speak(
        hibari_model, ("Hello there.", boundary), (" 😀", Boundary.PARAGRAPH), (" …", Boundary.END)
    )
    alone = speak(hibari_model, ("Hello there.", Boundary.END))
    assert with_silent_tail.pcm == alone.pcm


def test_a_silent_segment_does_not_add_its_pause_to_the_other(hibari_model: HibariModel) -> None:
    silent_between = speak(
        hibari_model, ("Yes.", Boundary.SENTENCE), (" 😀", Boundary.SENTENCE), (" No.", Boundary.END)
    )
    longer = speak(hibari_model, ("Yes.", Boundary.CLAUSE), (" 😀", Boundary.SENTENCE), (" No.", Boundary.END))
    plain = speak(hibari_model, ("Yes.", Boundary.SENTENCE), (" No.", Boundary.END))
    assert silent_between.samples == pytest.approx(plain.samples, abs=20 * MS)  # noise differs, length hardly
    assert longer.samples == pytest.approx(plain.samples, abs=20 * MS)


def test_pauses_inside_a_segment_that_is_said_in_several_phrases(hibari_model: HibariModel) -> None:
    """Where the network cannot say it at once, the cut sounds like the punctuation that it follows."""
    part = "the committee will publish its report on the new bridges and the old roads before the end of this long year"
    heard = speak(hibari_model, (f"{part}, {part}. {part}", Boundary.END))
    first_words = [word for word in heard.words if word.start_char in (len(part) + 2, 2 * len(part) + 4)]
    gaps = quiet_stretches(heard.pcm, 80)
    clause, sentence = (max(b - a for a, b in gaps if abs(b - word.start_sample) < 40 * MS) for word in first_words)
    assert clause == pytest.approx(120 * MS, abs=30 * MS)
    assert sentence == pytest.approx(280 * MS, abs=30 * MS)


def test_it_begins_at_once(hibari_model: HibariModel) -> None:
    for parts in (("Hello.",), ("Fine.",), ("Shall we?",), ("🙂 So be it.",), ("🙂.", " Very well.")):
        heard = speak(hibari_model, *((text, Boundary.SENTENCE) for text in parts))
        found = speech_range(to_float(heard.pcm), TrimOptions(threshold_dbfs=-45, pre_roll_ms=0))
        assert found is not None
        assert found[0] <= 60 * MS


def test_seams_do_not_click(hibari_model: HibariModel) -> None:
    """No step at a seam is larger than the steps inside the clauses, by far; both sides are quiet."""
    parts = (
        ("Well,", Boundary.CLAUSE),
        (" I think so.", Boundary.FORCED),
        (" Shall we go", Boundary.WORD),
        (" on?", Boundary.END),
    )
    heard = speak(hibari_model, *parts)
    sound = np.frombuffer(heard.pcm, "<i2").astype(int)
    steps = np.abs(np.diff(sound))
    seams = [
        after.meta.start_sample
        for before, after in zip(heard.audio, heard.audio[1:], strict=False)
        if after.meta.text_start != before.meta.text_start
    ]
    assert len(seams) == 3
    for seam in seams:
        around = steps[seam - 10 * MS : seam + 10 * MS]
        assert around.max() <= steps.max() / 10
        assert np.sqrt(np.mean(sound[seam - 20 * MS : seam] ** 2)) < 100
    assert np.sqrt(np.mean(sound[-20 * MS :] ** 2)) < 100
    assert np.abs(sound[[0, -1]]).max() < 20


def test_chunks_inside_a_clause_join_without_a_trace(hibari_model: HibariModel) -> None:
    heard = speak(hibari_model, ("A sentence that takes long enough to come in some pieces.", Boundary.END))
    sound = np.frombuffer(heard.pcm, "<i2").astype(int)
    steps = np.abs(np.diff(sound))
    cuts = [chunk.meta.start_sample for chunk in heard.audio[1:]]
    assert len(cuts) > 4
    second_differences = np.abs(np.diff(sound, 2))
    at_cuts = max(second_differences[cut - 3 : cut + 2].max() for cut in cuts)
    assert at_cuts <= np.percentile(second_differences[steps[1:] > 0], 99.9)


def test_speed_changes_the_length(hibari_model: HibariModel) -> None:
    text = ("A sentence that can be said slowly, or in a hurry.", Boundary.END)
    slow, normal, fast = (
        speak(hibari_model, text, params=replace(PARAMS, speed=speed)).samples for speed in (0.5, 1.0, 2.0)
    )
    assert slow / normal == pytest.approx(2, rel=0.15)
    assert normal / fast == pytest.approx(2, rel=0.15)


def test_the_seed_is_part_of_what_is_said(hibari_model: HibariModel) -> None:
    text = ("Hello there.", Boundary.END)
    one, two, negative = (speak(hibari_model, text, params=replace(PARAMS, seed=seed)).pcm for seed in (1, 2, -1))
    assert len({one, two, negative}) == 3


def test_a_segment_sounds_the_same_whatever_was_said_before(hibari_model: HibariModel) -> None:
    said = segments(("Yes.", Boundary.SENTENCE), (" Hello there.", Boundary.END))

    def second(first: Segment) -> bytes:
        drive = driver(hibari_model)
        heard = drive.open(KEY)
        drive.say(KEY, (first, said[1]))
        drive.drain()
        return b"".join(chunk.pcm for chunk in heard.audio if chunk.meta.text_start == said[1].start)

    assert second(said[0])[-20_000:] == second(replace(said[0], spans=(Span("No way", 0, 4),)))[-20_000:]


# -- words ------------------------------------------------------------------------------------------------------------


def test_words_refer_to_the_original_and_count_from_the_start(hibari_model: HibariModel) -> None:
    text = "Dr. Smith paid $100, on 3/4/2024. Didn't he?"
    heard = speak(
        hibari_model, (text[:20], Boundary.CLAUSE), (text[20:33], Boundary.SENTENCE), (text[33:], Boundary.END)
    )
    assert [text[word.start_char : word.end_char] for word in heard.words] == text.split()
    second = next(chunk for chunk in heard.audio if chunk.meta.text_start == 20)
    on = next(word for word in heard.words if word.start_char == 21)
    assert second.meta.start_sample + 80 * MS <= on.start_sample, "the pause comes before the word"
    assert heard.words[-1].end_sample <= heard.samples


def test_words_without_a_sound_have_no_time(hibari_model: HibariModel) -> None:
    text = "Hello 你好 - world 😀"
    heard = speak(hibari_model, (text, Boundary.END))
    assert [text[word.start_char : word.end_char] for word in heard.words] == ["Hello", "world"]


def test_a_word_longer_than_a_phrase_is_told_once(hibari_model: HibariModel) -> None:
    heard = speak(hibari_model, ("So 1" + "7" * 120 + " ends.", Boundary.END), params=replace(PARAMS, speed=2.0))
    assert [(word.start_char, word.end_char) for word in heard.words] == [(0, 2), (3, 124), (125, 130)]


# -- strange and hostile text -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=30), max_size=4), st.sampled_from([0.5, 1.0, 2.0]))
def test_any_text_ends_well(hibari_model: HibariModel, texts: list[str], speed: float) -> None:
    heard = speak(hibari_model, *((text, Boundary.CLAUSE) for text in texts), params=replace(PARAMS, speed=speed))
    (end,) = heard.ends
    if isinstance(end, Failed):
        assert end.error.code is ErrorCode.UNSPEAKABLE_TEXT
        assert not heard.audio
    else:
        assert bool(heard.audio) == bool(heard.samples)


def test_a_huge_segment_comes_in_bounded_steps_and_waits_for_credit(hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    heard = drive.open(KEY, credit_samples=SAMPLE_RATE_HZ)
    drive.say(KEY, segments(("and so on " * 10_000, Boundary.END)))
    drive.drain()
    assert heard.samples == SAMPLE_RATE_HZ
    # No more was made than the phrase that was begun.
    longest_samples = MAX_PHONEMES * SAMPLE_RATE_HZ // 5
    for _ in range(5):
        drive.do(Credit(KEY, SAMPLE_RATE_HZ))
        drive.drain()
    assert heard.samples == 6 * SAMPLE_RATE_HZ
    for chunk in heard.audio:
        assert chunk.samples <= SAMPLE_RATE_HZ // 2
    engine = cast(HibariEngine, drive.engine)
    (utterance,) = engine._utterances.values()
    assert utterance.output.waiting_samples < longest_samples


# -- whose turn it is -------------------------------------------------------------------------------------------------


def test_who_runs_dry_first_is_served_first(hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    rich = UtteranceKey("a-rich", 1)
    poor = UtteranceKey("b-poor", 1)
    for key in (rich, poor):
        drive.open(key)
        drive.say(key, segments(("Yes.", Boundary.SENTENCE)), end=False)
        drive.drain()
    drive.do(Credit(poor, drive.heard[poor].samples - 10 * MS))  # its listener has heard nearly all
    for key in (rich, poor):
        drive.say(key, segments(("Yes.", Boundary.SENTENCE), (" And then", Boundary.END))[1:])
    before = drive.heard[poor].samples
    order = [event.key for _ in range(3) for event in drive.step() if isinstance(event, Audio)]
    assert order[0] == poor
    assert drive.heard[poor].samples > before


def test_a_listeners_every_frame_does_not_become_a_chunk(hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    heard = drive.open(KEY, credit_samples=SAMPLE_RATE_HZ)
    drive.say(KEY, segments(("This is long enough to wait for somebody who listens in real time.", Boundary.END)))
    while not heard.ends:
        drive.drain()
        drive.do(Credit(KEY, 20 * MS))
    later = [chunk.samples for chunk in heard.audio if chunk.meta.start_sample >= SAMPLE_RATE_HZ]
    assert len(later) >= 5
    assert np.mean(later) >= 80 * MS


def test_few_phrases_are_in_memory_however_many_speak(hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    keys = [UtteranceKey(f"s{number}", 1) for number in range(24)]
    for key in keys:
        drive.open(key)
        drive.say(key, segments(("This takes a few seconds to say, and all say it at once.", Boundary.END)))
    engine = cast(HibariEngine, drive.engine)
    most = 0
    while engine.has_work:
        drive.step()
        speeches = [u.speech for u in engine._utterances.values() if u.speech is not None]
        most = max(most, sum(not speech.parked for speech in speeches))
    assert 1 < most <= 8
    assert all(drive.heard[key].ends == [Done(key)] for key in keys)


def test_pauses_hold_no_spectra(hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    drive.open(KEY)
    drive.say(KEY, segments(("This takes a few seconds to say, but somebody interrupts.", Boundary.END)))
    drive.step()
    engine = cast(HibariEngine, drive.engine)
    speech = engine._utterances[KEY].speech
    assert speech is not None
    assert not speech.parked
    drive.do(Hold(KEY))
    assert speech.parked


# -- when something breaks --------------------------------------------------------------------------------------------


class Broken:
    """A model whose network fails, or falls silent."""

    def __init__(self, model: HibariModel, error: Exception | None = None, after_calls: int = 0) -> None:
        self._model = model
        self._error = error
        self._calls_left = after_calls

    @property
    def reader(self) -> Reader:
        return self._model.reader

    def predict(self, ids: tuple[int, ...], speed: float) -> Spectra:
        spectra = self._model.predict(ids, speed)
        if self._calls_left:
            self._calls_left -= 1
            return spectra
        if self._error is not None:
            raise self._error
        silent = np.full_like(spectra.noise, -20)
        return replace(spectra, harmonic=silent, noise=silent, free=silent)


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("said: secret words"), ErrorCode.SYNTHESIS_FAILED), (MemoryError(), ErrorCode.OUT_OF_MEMORY)],
)
def test_a_fault_ends_its_utterance_alone(error: Exception, code: ErrorCode, hibari_model: HibariModel) -> None:
    drive = driver(cast(HibariModel, Broken(hibari_model, error, after_calls=1)))
    well = drive.open(KEY)
    ill = drive.open(UtteranceKey("other", 1))
    drive.say(KEY, segments(("Yes.", Boundary.END)))
    drive.step()
    drive.say(UtteranceKey("other", 1), segments(("No.", Boundary.END)))
    drive.drain()
    assert well.ends == [Done(KEY)]
    (end,) = ill.ends
    assert isinstance(end, Failed)
    assert end.error.code is code
    assert "secret" not in end.error.message


@pytest.mark.parametrize(("error", "message"), [(RuntimeError("x"), "cannot speak"), (None, "cannot speak|silent")])
def test_a_voice_that_cannot_speak_does_not_become_ready(
    error: Exception | None, message: str, hibari_model: HibariModel
) -> None:
    engine = HibariEngine(model=cast(HibariModel, Broken(hibari_model, error)))
    with pytest.raises(EngineFault, match=message):
        engine.warm_up()


def test_text_that_comes_late_costs_nothing_before(hibari_model: HibariModel) -> None:
    drive = driver(hibari_model)
    drive.open(KEY)
    assert not drive.engine.has_work
    drive.do(Text(KEY, segments(("Hello.", Boundary.END))[0]))
    assert drive.engine.has_work
