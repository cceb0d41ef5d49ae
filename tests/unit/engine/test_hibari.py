from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.engine_contract import EngineCase, EngineDriver, EngineOutput, segments
from tests.unit.engine.shared_voices import voice_like_heart
from tts_worker.audio.pcm import to_float
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.engine.cpu.hibari import model as model_module
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import (
    BRITISH,
    MODEL_SHA256,
    VOICE,
    HibariModel,
    Spectra,
    VoiceModel,
)
from tts_worker.engine.cpu.phrases.onnx_session import open_session
from tts_worker.engine.cpu.phrases.text import MAX_PHONEMES
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


def make_driver(model: HibariModel, params: SynthesisParams = PARAMS, max_utterances: int = 64) -> EngineDriver:
    return EngineDriver(EngineCase(lambda: HibariEngine(model, max_utterances=max_utterances), params, (), ()))


def speak(model: HibariModel, *parts: tuple[str, Boundary], params: SynthesisParams = PARAMS) -> EngineOutput:
    driver = make_driver(model, params)
    output = driver.open(KEY)
    driver.send_text(KEY, segments(*parts))
    driver.drain()
    return output


def quiet_ranges(pcm: bytes, min_ms: int = 40) -> list[tuple[int, int]]:
    """Sample ranges in which the level stays below -50 dBFS for at least ``min_ms``."""
    samples = to_float(pcm)
    window = 5 * MS
    level = np.sqrt(np.mean(samples[: len(samples) // window * window].reshape(-1, window) ** 2, axis=1))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (level < 10 ** (-50 / 20)).astype(int), [0]))))
    return [(int(a) * window, int(b) * window) for a, b in edges.reshape(-1, 2) if (b - a) * window >= min_ms * MS]


# -- capabilities and loading -----------------------------------------------------------------------------------------


def test_info_describes_the_voice(hibari_model: HibariModel) -> None:
    info = HibariEngine(hibari_model, max_utterances=7).info
    assert (info.name, info.voices, info.languages) == ("hibari", ("heart",), ("en",))
    assert info.alignment is Alignment.MEASURED
    assert info.max_utterances == 7
    assert info.sample_rate_hz == SAMPLE_RATE_HZ
    assert not info.text_by_word
    assert info.speed_range == (0.5, 2.0)


def test_model_with_another_hash_is_rejected(tmp_path: Path) -> None:
    other = tmp_path / "hibari.onnx"
    other.write_bytes(b"something else")
    with pytest.raises(EngineFault, match=r"does not match .*pip install"):
        HibariModel(other)
    with pytest.raises(EngineFault, match=r"cannot be read .*pip install"):
        HibariModel(tmp_path / "missing.onnx")


def test_pinned_hash_matches_the_installed_package() -> None:
    import hibari

    data = (Path(hibari.__file__).parent / "assets" / "hibari.onnx").read_bytes()
    assert hashlib.sha256(data).hexdigest() == MODEL_SHA256


def test_missing_package_error_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hibari", None)
    with pytest.raises(EngineFault, match=r"not installed; pip install"):
        HibariModel()


def test_added_output_does_not_change_the_spectra(hibari_model: HibariModel) -> None:
    """Exposing the durations leaves the spectra bit-identical to those of the unmodified library."""
    from hibari import Hibari

    library = Hibari(threads=1, g2p=hibari_model.phonemizer.g2p)
    ids = library.ids(library.g2p("The tap changes nothing, not one bit."))
    actual = hibari_model.predict(ids, 1.25)
    reference = library.sess.run(None, {"ids": np.array([ids]), "speed": np.array([1.25], np.float32)})
    spectra = (*actual.parts.transpose(1, 2, 0), actual.f0_hz)
    for ours, theirs in zip(spectra, reference, strict=True):
        assert np.array_equal(ours, theirs[0])


@pytest.mark.parametrize(
    ("language", "accepted"),
    [(None, True), ("en", True), ("en-GB", True), ("EN_us", True), ("zh", False), ("eng", False)],
)
def test_only_english_is_accepted(language: str | None, accepted: bool, hibari_model: HibariModel) -> None:
    driver = make_driver(hibari_model)
    driver.send(Open(KEY, replace(PARAMS, language=language), 0), EndText(KEY))
    driver.drain()
    (end,) = driver.outputs[KEY].ends
    assert isinstance(end, Done) == accepted
    if isinstance(end, Failed):
        assert end.error.code is ErrorCode.INVALID_REQUEST


# -- pauses and joins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("boundary", "pause_ms"),
    [(Boundary.CLAUSE, 120), (Boundary.FLUSH, 120), (Boundary.SENTENCE, 280), (Boundary.PARAGRAPH, 450)],
)
def test_pauses_between_segments(boundary: Boundary, pause_ms: int, speed: float, hibari_model: HibariModel) -> None:
    output = speak(hibari_model, ("Maybe", boundary), (" now", Boundary.END), params=replace(PARAMS, speed=speed))
    (pause,) = [b - a for a, b in quiet_ranges(output.pcm) if 100 * MS < a < output.samples - 100 * MS]
    assert pause == pytest.approx(pause_ms / speed * MS, abs=30 * MS)


@pytest.mark.parametrize("boundary", [Boundary.WORD, Boundary.FORCED])
def test_forced_cut_adds_no_pause(boundary: Boundary, hibari_model: HibariModel) -> None:
    output = speak(hibari_model, ("Maybe", boundary), (" now", Boundary.END))
    inside = [b - a for a, b in quiet_ranges(output.pcm, 10) if 100 * MS < a < output.samples - 100 * MS]
    assert max(inside) < 90 * MS


@pytest.mark.parametrize("boundary", list(Boundary))
def test_no_pause_follows_the_last_segment(boundary: Boundary, hibari_model: HibariModel) -> None:
    with_silent_tail = speak(
        hibari_model, ("Hello there.", boundary), (" 😀", Boundary.PARAGRAPH), (" …", Boundary.END)
    )
    alone = speak(hibari_model, ("Hello there.", Boundary.END))
    assert with_silent_tail.pcm == alone.pcm


def test_silent_segment_does_not_add_its_pause(hibari_model: HibariModel) -> None:
    silent_between = speak(
        hibari_model, ("Yes.", Boundary.SENTENCE), (" 😀", Boundary.SENTENCE), (" No.", Boundary.END)
    )
    longer = speak(hibari_model, ("Yes.", Boundary.CLAUSE), (" 😀", Boundary.SENTENCE), (" No.", Boundary.END))
    plain = speak(hibari_model, ("Yes.", Boundary.SENTENCE), (" No.", Boundary.END))
    assert silent_between.samples == pytest.approx(
        plain.samples, abs=20 * MS
    )  # the noise differs, the length hardly does
    assert longer.samples == pytest.approx(plain.samples, abs=20 * MS)


def test_pauses_between_phrases_follow_punctuation(hibari_model: HibariModel) -> None:
    """A segment too long for one phrase pauses at a cut as its punctuation asks."""
    part = "the committee will publish its report on the new bridges and the old roads before the end of this long year"
    output = speak(hibari_model, (f"{part}, {part}. {part}", Boundary.END))
    first_words = [word for word in output.words if word.start_char in (len(part) + 2, 2 * len(part) + 4)]
    gaps = quiet_ranges(output.pcm, 80)
    clause, sentence = (max(b - a for a, b in gaps if abs(b - word.start_sample) < 40 * MS) for word in first_words)
    assert clause == pytest.approx(120 * MS, abs=30 * MS)
    assert sentence == pytest.approx(280 * MS, abs=30 * MS)


def test_speech_starts_within_60_ms_of_audio(hibari_model: HibariModel) -> None:
    for parts in (("Hello.",), ("Fine.",), ("Shall we?",), ("🙂 So be it.",), ("🙂.", " Very well.")):
        output = speak(hibari_model, *((text, Boundary.SENTENCE) for text in parts))
        found = speech_range(to_float(output.pcm), TrimOptions(threshold_dbfs=-45, pre_roll_ms=0))
        assert found is not None
        assert found[0] <= 60 * MS


def test_joins_between_segments_do_not_click(hibari_model: HibariModel) -> None:
    """The largest sample step at a join is far below the largest one inside speech, and both sides are quiet."""
    parts = (
        ("Well,", Boundary.CLAUSE),
        (" I think so.", Boundary.FORCED),
        (" Shall we go", Boundary.WORD),
        (" on?", Boundary.END),
    )
    output = speak(hibari_model, *parts)
    samples = np.frombuffer(output.pcm, "<i2").astype(int)
    steps = np.abs(np.diff(samples))
    joins = [
        after.meta.start_sample
        for before, after in zip(output.audio, output.audio[1:], strict=False)
        if after.meta.text_start != before.meta.text_start
    ]
    assert len(joins) == 3
    for join in joins:
        around = steps[join - 10 * MS : join + 10 * MS]
        assert around.max() <= steps.max() / 10
        assert np.sqrt(np.mean(samples[join - 20 * MS : join] ** 2)) < 100
    assert np.sqrt(np.mean(samples[-20 * MS :] ** 2)) < 100
    assert np.abs(samples[[0, -1]]).max() < 20


def test_chunks_of_a_clause_join_without_a_step(hibari_model: HibariModel) -> None:
    output = speak(hibari_model, ("A sentence that takes long enough to come in some pieces.", Boundary.END))
    samples = np.frombuffer(output.pcm, "<i2").astype(int)
    steps = np.abs(np.diff(samples))
    cuts = [chunk.meta.start_sample for chunk in output.audio[1:]]
    assert len(cuts) > 4
    second_differences = np.abs(np.diff(samples, 2))
    at_cuts = max(second_differences[cut - 3 : cut + 2].max() for cut in cuts)
    assert at_cuts <= np.percentile(second_differences[steps[1:] > 0], 99.9)


def test_speed_scales_the_duration(hibari_model: HibariModel) -> None:
    text = ("A sentence that can be said slowly, or in a hurry.", Boundary.END)
    slow, normal, fast = (
        speak(hibari_model, text, params=replace(PARAMS, speed=speed)).samples for speed in (0.5, 1.0, 2.0)
    )
    assert slow / normal == pytest.approx(2, rel=0.15)
    assert normal / fast == pytest.approx(2, rel=0.15)


def test_seed_changes_the_audio(hibari_model: HibariModel) -> None:
    text = ("Hello there.", Boundary.END)
    outputs = {speak(hibari_model, text, params=replace(PARAMS, seed=seed)).pcm for seed in (1, 2, -1)}
    assert len(outputs) == 3


def test_segment_audio_is_independent_of_earlier_text(hibari_model: HibariModel) -> None:
    first, second = segments(("Yes.", Boundary.SENTENCE), (" Hello there.", Boundary.END))

    def pcm_after(before: Segment) -> bytes:
        driver = make_driver(hibari_model)
        output = driver.open(KEY)
        driver.send_text(KEY, (before, second))
        driver.drain()
        return b"".join(chunk.pcm for chunk in output.audio if chunk.meta.text_start == second.start)

    assert pcm_after(first)[-20_000:] == pcm_after(replace(first, spans=(Span("No way", 0, 4),)))[-20_000:]


# -- words ------------------------------------------------------------------------------------------------------------


def test_words_refer_to_source_text_and_utterance_start(hibari_model: HibariModel) -> None:
    text = "Dr. Smith paid $100, on 3/4/2024. Didn't he?"
    output = speak(
        hibari_model, (text[:20], Boundary.CLAUSE), (text[20:33], Boundary.SENTENCE), (text[33:], Boundary.END)
    )
    assert [text[word.start_char : word.end_char] for word in output.words] == text.split()
    second_chunk = next(chunk for chunk in output.audio if chunk.meta.text_start == 20)
    on = next(word for word in output.words if word.start_char == 21)
    assert second_chunk.meta.start_sample + 80 * MS <= on.start_sample, "the pause comes before the word"
    assert output.words[-1].end_sample <= output.samples


def test_unspoken_words_have_no_timestamp(hibari_model: HibariModel) -> None:
    text = "Hello 你好 - world 😀"
    output = speak(hibari_model, (text, Boundary.END))
    assert [text[word.start_char : word.end_char] for word in output.words] == ["Hello", "world"]


def test_word_longer_than_a_phrase_has_one_timestamp(hibari_model: HibariModel) -> None:
    output = speak(hibari_model, ("So 1" + "7" * 120 + " ends.", Boundary.END), params=replace(PARAMS, speed=2.0))
    assert [(word.start_char, word.end_char) for word in output.words] == [(0, 2), (3, 124), (125, 130)]


# -- unusual and hostile text -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=30), max_size=4), st.sampled_from([0.5, 1.0, 2.0]))
def test_any_text_ends_with_done_or_typed_error(hibari_model: HibariModel, texts: list[str], speed: float) -> None:
    output = speak(hibari_model, *((text, Boundary.CLAUSE) for text in texts), params=replace(PARAMS, speed=speed))
    (end,) = output.ends
    if isinstance(end, Failed):
        assert end.error.code is ErrorCode.UNSPEAKABLE_TEXT
        assert not output.audio
    else:
        assert bool(output.audio) == bool(output.samples)


def test_huge_segment_is_bounded_by_credit(hibari_model: HibariModel) -> None:
    driver = make_driver(hibari_model)
    output = driver.open(KEY, credit_samples=SAMPLE_RATE_HZ)
    driver.send_text(KEY, segments(("and so on " * 10_000, Boundary.END)))
    driver.drain()
    assert output.samples == SAMPLE_RATE_HZ
    # No audio was rendered beyond the phrase in progress.
    max_phrase_samples = MAX_PHONEMES * SAMPLE_RATE_HZ // 5
    for _ in range(5):
        driver.send(Credit(KEY, SAMPLE_RATE_HZ))
        driver.drain()
    assert output.samples == 6 * SAMPLE_RATE_HZ
    for chunk in output.audio:
        assert chunk.samples <= SAMPLE_RATE_HZ // 2
    engine = cast(HibariEngine, driver.engine)
    (utterance,) = engine.sequences.values()
    assert utterance.output.waiting_samples < max_phrase_samples


# -- scheduling and memory --------------------------------------------------------------------------------------------


def test_stream_closest_to_underrun_is_served_first(hibari_model: HibariModel) -> None:
    driver = make_driver(hibari_model)
    ahead = UtteranceKey("a-ahead", 1)
    behind = UtteranceKey("b-behind", 1)
    for key in (ahead, behind):
        driver.open(key)
        driver.send_text(key, segments(("Yes.", Boundary.SENTENCE)), end=False)
        driver.drain()
    driver.send(Credit(behind, driver.outputs[behind].samples - 10 * MS))  # nearly all of it has been played
    for key in (ahead, behind):
        driver.send_text(key, segments(("Yes.", Boundary.SENTENCE), (" And then", Boundary.END))[1:])
    before = driver.outputs[behind].samples
    order = [event.key for _ in range(3) for event in driver.step() if isinstance(event, Audio)]
    assert order[0] == behind
    assert driver.outputs[behind].samples > before


def test_small_credits_are_coalesced_into_chunks(hibari_model: HibariModel) -> None:
    driver = make_driver(hibari_model)
    output = driver.open(KEY, credit_samples=SAMPLE_RATE_HZ)
    driver.send_text(KEY, segments(("This is long enough to wait for a client that plays in real time.", Boundary.END)))
    while not output.ends:
        driver.drain()
        driver.send(Credit(KEY, 20 * MS))
    later = [chunk.samples for chunk in output.audio if chunk.meta.start_sample >= SAMPLE_RATE_HZ]
    assert len(later) >= 5
    assert np.mean(later) >= 80 * MS


def test_spectra_are_bounded_under_load(hibari_model: HibariModel, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2_000
    monkeypatch.setattr(HibariEngine, "MAX_SPECTRA_FRAMES", limit)
    driver = make_driver(hibari_model)
    keys = [UtteranceKey(f"s{number}", 1) for number in range(24)]
    for key in keys:
        driver.open(key)
        driver.send_text(key, segments(("This takes a few seconds to say, and all say it at once.", Boundary.END)))
    engine = cast(HibariEngine, driver.engine)
    most_frames = 0
    while engine.has_work:
        driver.step()
        most_frames = max(most_frames, sum(sequence.spectra_frames for sequence in engine.sequences.values()))
    assert limit <= most_frames < limit + 1_000  # one phrase may exceed it
    assert all(driver.outputs[key].ends == [Done(key)] for key in keys)


def test_held_utterance_frees_its_spectra(hibari_model: HibariModel) -> None:
    driver = make_driver(hibari_model)
    driver.open(KEY)
    driver.send_text(KEY, segments(("This takes a few seconds to say, but there is an interruption.", Boundary.END)))
    driver.step()
    engine = cast(HibariEngine, driver.engine)
    synthesis = engine.sequences[KEY].synthesis
    assert synthesis is not None
    assert not synthesis.suspended
    driver.send(Hold(KEY))
    assert synthesis.suspended


# -- faults -----------------------------------------------------------------------------------------------------------


class FaultyModel:
    """A model that fails or returns silence after a number of calls."""

    def __init__(self, model: HibariModel, error: Exception | None = None, after_calls: int = 0) -> None:
        self._model = model
        self.voices, self.mixable = model.voices, model.mixable
        self.speaks_mandarin = model.speaks_mandarin
        self._error = error
        self._good_calls = after_calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict(self, ids: tuple[int, ...], speed: float, voice: str) -> Spectra:
        spectra = self._model.predict(ids, speed, voice)
        if self._good_calls:
            self._good_calls -= 1
            return spectra
        if self._error is not None:
            raise self._error
        return replace(spectra, parts=np.full_like(spectra.parts, -20))


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("said: secret words"), ErrorCode.SYNTHESIS_FAILED), (MemoryError(), ErrorCode.OUT_OF_MEMORY)],
)
def test_fault_fails_only_its_utterance(error: Exception, code: ErrorCode, hibari_model: HibariModel) -> None:
    driver = make_driver(cast(HibariModel, FaultyModel(hibari_model, error, after_calls=1)))
    healthy = driver.open(KEY)
    faulty = driver.open(UtteranceKey("other", 1))
    driver.send_text(KEY, segments(("Yes.", Boundary.END)))
    driver.step()
    driver.send_text(UtteranceKey("other", 1), segments(("No.", Boundary.END)))
    driver.drain()
    assert healthy.ends == [Done(KEY)]
    (end,) = faulty.ends
    assert isinstance(end, Failed)
    assert end.error.code is code
    assert "secret" not in end.error.message


@pytest.mark.parametrize(("error", "message"), [(RuntimeError("x"), "cannot speak"), (None, "cannot speak|silent")])
def test_warm_up_fails_if_the_voice_cannot_speak(
    error: Exception | None, message: str, hibari_model: HibariModel
) -> None:
    engine = HibariEngine(model=cast(HibariModel, FaultyModel(hibari_model, error)))
    with pytest.raises(EngineFault, match=message):
        engine.warm_up()


def test_open_without_text_has_no_work(hibari_model: HibariModel) -> None:
    driver = make_driver(hibari_model)
    driver.open(KEY)
    assert not driver.engine.has_work
    driver.send(Text(KEY, segments(("Hello.", Boundary.END))[0]))
    assert driver.engine.has_work


# -- further voices ---------------------------------------------------------------------------------------------------

HIGHER_HZ = 40.0


@pytest.fixture(scope="module")
def higher_voice(tmp_path_factory: pytest.TempPathFactory) -> VoiceModel:
    """A voice that differs from ``heart`` in its pitch only: by a constant in its vector."""
    return voice_like_heart(tmp_path_factory.mktemp("voices") / "higher", higher_hz=HIGHER_HZ)


@pytest.fixture(scope="module")
def two_voices(higher_voice: VoiceModel) -> HibariModel:
    return HibariModel(voices=[higher_voice])


def test_each_voice_has_its_weights(two_voices: HibariModel, hibari_model: HibariModel) -> None:
    assert two_voices.voices == HibariEngine(two_voices).info.voices == ("heart", "higher")
    ids = next(phrase for phrase in hibari_model.phonemizer.phonemize(Segment.whole("Good morning.")) if phrase).ids
    alone, heart, higher = (
        hibari_model.predict(ids, 1.0),
        two_voices.predict(ids, 1.0),
        two_voices.predict(ids, 1.0, "higher"),
    )
    assert np.array_equal(heart.parts, alone.parts)
    assert np.array_equal(heart.f0_hz, alone.f0_hz)
    voiced = heart.f0_hz > 60
    assert np.allclose((higher.f0_hz - heart.f0_hz)[voiced], HIGHER_HZ, atol=0.1)


def test_level_of_heart_is_that_of_its_voice_pack(
    higher_voice: VoiceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = [replace(higher_voice, loudness_lufs=-20.0)]
    shipped = HibariModel(voices=voices).level_change_db("higher", like=VOICE)
    heart = tmp_path / "voicepacks" / "hibari" / VOICE
    heart.mkdir(parents=True)
    (heart / "metadata.yaml").write_text("loudness_lufs: -23.0\n")
    monkeypatch.setattr(sys.modules["tts_worker.settings.packaged"], "packaged", tmp_path.joinpath)
    changed = HibariModel(voices=voices).level_change_db("higher", like=VOICE)
    assert (shipped, changed) == (pytest.approx(-5.9, abs=0.3), -3.0)


def test_level_of_a_mix_is_that_of_its_parts(higher_voice: VoiceModel) -> None:
    levels = {"anna": -20.0, "bella": -30.0, "carla": None}
    model = HibariModel(voices=[replace(higher_voice, name=name, loudness_lufs=lufs) for name, lufs in levels.items()])
    assert model.level_change_db("anna", like="anna+bella(3)") == pytest.approx(-7.5)
    assert model.level_change_db("anna", like="bella+carla") == 0.0, "its level is not known"


def test_utterances_of_two_voices_equal_themselves_alone(two_voices: HibariModel, hibari_model: HibariModel) -> None:
    text = ("One engine speaks with both voices. They take turns.", Boundary.SENTENCE)
    driver = make_driver(two_voices)
    outputs = {name: driver.outputs.setdefault(UtteranceKey(name, 1), EngineOutput()) for name in two_voices.voices}
    for name in outputs:
        driver.send(Open(UtteranceKey(name, 1), replace(PARAMS, voice=name), 10 * SAMPLE_RATE_HZ))
        driver.send_text(UtteranceKey(name, 1), segments(text))
    driver.drain()
    assert outputs["heart"].pcm == speak(hibari_model, text).pcm
    assert outputs["higher"].pcm == speak(two_voices, text, params=replace(PARAMS, voice="higher")).pcm
    assert outputs["higher"].pcm != outputs["heart"].pcm


def test_each_voice_has_the_phonemes_of_its_accent(higher_voice: VoiceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = HibariModel(voices=[replace(higher_voice, language=BRITISH)])
    said = {}
    predict = HibariModel.predict

    def record(model: HibariModel, ids: Sequence[int], speed: float, voice: str = VOICE) -> Spectra:
        said[voice] = "".join(letters[number] for number in ids)
        return predict(model, ids, speed, voice)

    monkeypatch.setattr(HibariModel, "predict", record)
    letters = {number: char for char, number in model.phonemizer.vocabulary.items()} | {0: ""}
    for voice in model.voices:
        assert speak(model, ("A hot bath.", Boundary.SENTENCE), params=replace(PARAMS, voice=voice)).pcm
    assert said == {VOICE: "ɐ hˈɑt bˈæθ.", "higher": "ɐ hˈɒt bˈɑːθ."}


def test_unknown_voice_fails_the_utterance(two_voices: HibariModel) -> None:
    output = speak(two_voices, ("Hello.", Boundary.SENTENCE), params=replace(PARAMS, voice="lower"))
    assert [end.error.code for end in output.ends if isinstance(end, Failed)] == [ErrorCode.UNKNOWN_VOICE]


def test_warm_up_covers_all_voices(two_voices: HibariModel, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    predict = HibariModel.predict

    def record(model: HibariModel, ids: object, speed: float, voice: str = VOICE) -> Spectra:
        used.add(voice)
        return predict(model, ids, speed, voice)

    monkeypatch.setattr(HibariModel, "predict", record)
    HibariEngine(two_voices).warm_up()
    assert used == {"heart", "higher"}


def test_further_model_with_another_hash_is_rejected(higher_voice: VoiceModel) -> None:
    with pytest.raises(EngineFault, match=r"voice higher does not match .*install the package"):
        HibariModel(voices=[replace(higher_voice, sha256="0" * 64)])
    for missing in ({"network": Path("network.onnx")}, {"vector": Path("voice.npy")}):
        with pytest.raises(EngineFault, match=r"(network.onnx|voice.npy) of the voice higher cannot be read"):
            HibariModel(voices=[replace(higher_voice, **missing)])


def test_mix_lies_between_its_voices(tmp_path: Path) -> None:
    """One of three parts of a voice that is 40 Hz higher."""
    lower, higher = (voice_like_heart(tmp_path / name, higher_hz=hz) for name, hz in (("anna", 0.0), ("bella", 40.0)))
    model = HibariModel(voices=[lower, higher, voice_like_heart(tmp_path / "of another network" / "cleo")])
    assert model.mixable == HibariEngine(model).info.mixable == (("anna", "bella"),)
    ids = next(phrase for phrase in model.phonemizer.phonemize(Segment.whole("Good morning.")) if phrase).ids
    mixed, plain = model.predict(ids, 1.0, "anna(2)+bella").f0_hz, model.predict(ids, 1.0, "anna").f0_hz
    assert float(np.median((mixed - plain)[plain > 60])) == pytest.approx(40 / 3, abs=1)
    text = ("Good morning.", Boundary.SENTENCE)
    pcm = [speak(model, text, params=replace(PARAMS, voice=name)).pcm for name in ("anna(2)+bella", "anna", "bella")]
    assert all(pcm)
    assert len(set(pcm)) == 3
    for of_two_networks in ("anna+heart", "anna+cleo"):
        output = speak(model, text, params=replace(PARAMS, voice=of_two_networks))
        assert [end.error.code for end in output.ends if isinstance(end, Failed)] == [ErrorCode.UNKNOWN_VOICE]


def test_mix_has_its_han_characters_said_by_a_mandarin_voice(tmp_path: Path) -> None:
    pytest.importorskip("pypinyin", reason="reads Mandarin")
    voices = [voice_like_heart(tmp_path / name) for name in ("anna", "bella")]
    model = HibariModel(voices=[*voices, voice_like_heart(tmp_path / "chen", language="zh")])
    output = speak(model, ("Hello \u4f60\u597d.", Boundary.SENTENCE), params=replace(PARAMS, voice="anna+bella"))
    assert not [end for end in output.ends if isinstance(end, Failed)]
    assert len(output.pcm) > len(speak(model, ("Hello.", Boundary.SENTENCE)).pcm)


def test_damaged_vector_is_rejected(higher_voice: VoiceModel, tmp_path: Path) -> None:
    vector = tmp_path / "voice.npy"
    vector.write_bytes(b"no numbers")
    digest = hashlib.sha256(higher_voice.network.read_bytes() + b"no numbers").hexdigest()
    with pytest.raises(EngineFault, match=r"voice.npy of the voice higher is damaged"):
        HibariModel(voices=[replace(higher_voice, vector=vector, sha256=digest)])


def test_voices_share_a_network(higher_voice: VoiceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their vectors are their own: a further voice costs 0.15 MB of memory."""
    opened = []
    monkeypatch.setattr(model_module, "open_session", lambda *args, **kw: opened.append(1) or open_session(*args, **kw))
    model = HibariModel(voices=[replace(higher_voice, name=name) for name in ("anna", "bella", "carla")])
    assert model.voices == ("heart", "anna", "bella", "carla")
    assert len(opened) == 2
    assert len(np.load(higher_voice.vector)) * 4 < 150_000
