"""Recordings with transcripts teach a voice: ``heart`` is recorded, whose durations and pitch are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tools.train import fast
from tools.train.config import StageConfig
from tools.train.fast.acoustics import energy_of, fit_energy
from tools.train.fast.alignment import whole_durations
from tools.train.fast.evaluate import file_hash
from tools.train.fast.network import load_network
from tools.train.fast.pitch import UNVOICED_HZ, VOICED_HZ, track_pitch
from tools.train.fast.recordings import RecordedData, Say
from tools.train.fast.runner import FastConfig, FastTraining
from tools.train.fast.teacher import SpokenPhrase
from tts_worker.audio.pcm import Floats, to_pcm
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel, Spectra, VoiceModel, default_model_path
from tts_worker.engine.cpu.hibari.vocoder import Vocoder
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import ConfigError
from tts_worker.types import SAMPLE_RATE_HZ, Segment
from tts_worker.voices.installed import CPU_NETWORK, CPU_VECTOR

VOICES = Path(__file__).parents[3] / "packages/tts-worker-voices/tts_worker_voices/voicepacks/hibari"
OTHER = "am_michael"
SENTENCES = (
    "The boat left the harbor before sunrise, and no one on the pier had seen who was steering it. When the fishermen "
    "came back in the evening, with empty nets and wet feet, all of them said that the water had been smooth as glass.",
    "Could you send me the second page again?",
    "My sister keeps bees behind the old school.",
    "It rains, but the children want to play outside.",
    "We found seven keys under the carpet.",
    "Thank you, that is all I need for today.",
)
TEMPO = 0.85
PAUSE_FRAMES = 30


@pytest.fixture(scope="module")
def model() -> HibariModel:
    network, vector = VOICES / CPU_NETWORK, VOICES / OTHER / CPU_VECTOR
    return HibariModel(voices=[VoiceModel(OTHER, network, vector, file_hash(network, vector))])


def silent(line: str) -> None:
    pass


def phrases_of(model: HibariModel, text: str) -> list[Phrase]:
    return [phrase for phrase in model.phonemizer.phonemize(Segment.whole(text)) if phrase is not None]


def render(spectra: Spectra) -> Floats:
    audio = Vocoder(spectra, np.random.default_rng(0)).render(spectra.frames)
    return np.pad(audio, (0, spectra.frames * FRAME_SAMPLES - len(audio)))


@dataclass(frozen=True)
class Truth:
    """A phrase as ``heart`` said it: where each id begins, in frames, and the pitch."""

    ids: tuple[int, ...]
    begins: np.ndarray
    f0_hz: Floats


def record(model: HibariModel, text: str, path: Path) -> list[Truth]:
    """Let ``heart`` say a text slowly, with a pause behind the second word, in a noisy room, at another rate."""
    soxr = pytest.importorskip("soxr")
    soundfile = pytest.importorskip("soundfile")
    audio, truths = [], []
    for phrase in phrases_of(model, text):
        spectra = model.predict(phrase.ids, TEMPO)
        word = phrase.words[2].first_id
        begins = np.cumsum(spectra.duration_frames) - spectra.duration_frames
        cut = int(begins[word])
        pause = np.zeros(PAUSE_FRAMES * FRAME_SAMPLES, np.float32)
        audio.append(np.insert(render(spectra), cut * FRAME_SAMPLES, pause))
        begins[word:] += PAUSE_FRAMES
        f0_hz = np.insert(spectra.f0_hz, cut, np.zeros(PAUSE_FRAMES, np.float32))
        truths.append(Truth(phrase.ids, begins, f0_hz))
    samples = soxr.resample(np.concatenate(audio), SAMPLE_RATE_HZ, 44_100)
    noise = np.random.default_rng(len(text)).standard_normal(len(samples))
    soundfile.write(path, 0.5 * samples + 2e-4 * noise, 44_100)
    return truths


def write_manifest(folder: Path, rows: Sequence[tuple[str, str]]) -> Path:
    manifest = folder / "recordings.jsonl"
    manifest.write_text("\n".join(json.dumps({"audio": audio, "text": text}) for audio, text in rows), "utf-8")
    return manifest


@dataclass(frozen=True)
class Studio:
    """Recordings of ``heart`` in a folder."""

    folder: Path
    rows: tuple[tuple[str, str], ...]
    truths: tuple[tuple[Truth, ...], ...]


@pytest.fixture(scope="module")
def studio(model: HibariModel, tmp_path_factory: pytest.TempPathFactory) -> Studio:
    folder = tmp_path_factory.mktemp("studio")
    rows, truths = [], []
    for number, text in enumerate(SENTENCES):
        rows.append((f"{number}.wav", text))
        truths.append(tuple(record(model, text, folder / rows[-1][0])))
    return Studio(folder, tuple(rows), tuple(truths))


def speakers(model: HibariModel, *names: str) -> dict[str, Say]:
    return {name: partial(model.predict, voice=name) for name in names}


def recorded(
    model: HibariModel, manifest: Path, run: Path, *names: str, report: Callable[[str], None] = silent
) -> RecordedData:
    run.mkdir(exist_ok=True)
    return RecordedData(run, manifest, model.phonemizer, lambda: speakers(model, *names or (OTHER,)), report=report)


@pytest.fixture(scope="module")
def aligned(model: HibariModel, studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> RecordedData:
    """The recordings, aligned to another voice."""
    data = recorded(model, write_manifest(studio.folder, studio.rows), tmp_path_factory.mktemp("aligned"))
    data.held_out()
    return data


# -- alignment --------------------------------------------------------------------------------------------------------


def test_alignment_to_another_voice_finds_phonemes_and_pitch(aligned: RecordedData, studio: Studio) -> None:
    phrases = aligned.spoken(0) + aligned.held_out()
    assert aligned.sentences() == list(SENTENCES[-2:])
    truths = [truth for own in studio.truths for truth in own]
    errors_ms, pitch_errors, voicing_errors = [], [], []
    for phrase, truth in zip(phrases, truths, strict=True):
        assert tuple(phrase.ids) == truth.ids
        assert 2 * phrase.durations.sum() == phrase.frames == len(phrase.energy)
        assert len(phrase.samples) == phrase.frames * FRAME_SAMPLES
        begins = 2 * (np.cumsum(phrase.durations, dtype=np.int64) - phrase.durations)
        shifts = (begins - truth.begins)[1:-2]
        shift = int(np.median(shifts))
        errors_ms.append(12.5 * np.abs(shifts - shift))
        ours = phrase.f0_hz[max(0, shift) :]
        theirs = truth.f0_hz[max(0, -shift) :]
        frames = min(len(ours), len(theirs))
        ours, theirs = ours[:frames], theirs[:frames]
        both = (ours > VOICED_HZ) & (theirs > VOICED_HZ)
        pitch_errors.append(np.abs(ours[both] / theirs[both] - 1))
        voicing_errors.append((ours > VOICED_HZ) != (theirs > VOICED_HZ))
    errors = np.concatenate(errors_ms)
    assert np.median(errors) <= 25
    assert (errors <= 50).mean() > 0.9
    assert np.median(np.concatenate(pitch_errors)) < 0.03
    assert np.concatenate(voicing_errors).mean() < 0.12


def test_phrases_of_one_recording_have_the_silence_of_the_teacher(model: HibariModel, aligned: RecordedData) -> None:
    phrases = aligned.spoken(0)
    assert len(phrases) == len(SENTENCES) - 2 + 1, "the first recording has two phrases"
    for phrase in phrases:
        lead = model.predict(tuple(phrase.ids), 1.0, OTHER).duration_frames[0]
        levels = np.abs(phrase.samples.astype(np.int64)).reshape(-1, FRAME_SAMPLES).max(1)
        loud = np.flatnonzero(levels > 0.1 * levels.max())
        assert lead - 8 <= loud[0] <= lead + 8
        assert levels[: lead - 8].max() == 0
        assert levels[-1] < 0.02 * levels.max()


def test_nearest_voice_says_the_transcripts(model: HibariModel, studio: Studio, tmp_path: Path) -> None:
    lines: list[str] = []
    recorded(model, write_manifest(studio.folder, studio.rows), tmp_path, OTHER, VOICE, report=lines.append).held_out()
    assert "6 recordings are compared with heart" in lines
    assert any("6 of 6 recordings" in line for line in lines)


def test_recordings_are_aligned_once(model: HibariModel, studio: Studio, tmp_path: Path) -> None:
    lines: list[str] = []
    data = recorded(model, write_manifest(studio.folder, studio.rows[2:]), tmp_path, VOICE, report=lines.append)
    first = data.spoken(0)
    assert lines
    lines.clear()
    assert [phrase.durations.tolist() for phrase in data.prosody(0)] == [each.durations.tolist() for each in first]
    assert not lines


# -- what cannot be used ----------------------------------------------------------------------------------------------


def test_unusable_recordings_are_left_out_with_the_reason(model: HibariModel, studio: Studio, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    folder = studio.folder
    speech, rate_hz = soundfile.read(folder / "1.wav")
    soundfile.write(folder / "loud.wav", np.clip(40 * speech, -1, 1), rate_hz)
    soundfile.write(folder / "short.wav", speech[rate_hz : rate_hz + rate_hz // 5], rate_hz)
    soundfile.write(folder / "silent.wav", np.zeros(rate_hz), rate_hz)
    (folder / "text.wav").write_text("This is no audio.")
    wrong = "A friend of mine sold this bicycle for cash."
    rows = (
        *studio.rows,
        ("2.wav", wrong),
        ("5.wav", "Thank you."),
        ("loud.wav", SENTENCES[1]),
        ("short.wav", "Yes."),
        ("silent.wav", "Yes."),
        ("text.wav", "Yes."),
        ("gone.wav", "Yes."),
        ("1.wav", "..."),
    )
    lines: list[str] = []
    recorded(model, write_manifest(folder, rows), tmp_path, report=lines.append).held_out()
    left_out = [line.removeprefix("left out: ") for line in lines if line.startswith("left out: ")]
    assert any(line.startswith("6 of 14 recordings") for line in lines), lines
    for reason in (
        "2.wav: what is said is not the transcript",
        "5.wav: it is spoken",
        "loud.wav: the audio is clipped",
        "short.wav: it has",
        "silent.wav: it is silent",
        "text.wav: the audio cannot be read",
        "gone.wav: no such audio file",
        "1.wav: the transcript has nothing to say",
    ):
        assert sum(reason in line for line in left_out) == 1, (reason, left_out)


def test_too_few_recordings_are_refused(model: HibariModel, studio: Studio, tmp_path: Path) -> None:
    manifest = write_manifest(studio.folder, [*studio.rows[:3], ("gone.wav", "Yes.")])
    data = recorded(model, manifest, tmp_path)
    with pytest.raises(ConfigError, match=r"3 of 4 recordings can be used, at least 4 .*gone\.wav: no such audio file"):
        data.spoken(0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["[1]", "{}", '{"audio": 1, "text": "a"}', "no JSON"])
def test_malformed_manifest_is_refused(model: HibariModel, tmp_path: Path, line: str) -> None:
    manifest = tmp_path / "recordings.jsonl"
    manifest.write_text(f'\n{{"audio": "a.wav", "text": "Yes."}}\n{line}\n')
    with pytest.raises(ConfigError, match="line 3: must be"):
        recorded(model, manifest, tmp_path / "run").spoken(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        recorded(model, tmp_path / "none", tmp_path / "run").spoken(0)


# -- measures ---------------------------------------------------------------------------------------------------------


@given(
    begins=st.lists(st.integers(0, 60), min_size=1, max_size=20).map(sorted),
    more=st.integers(0, 40),
)
def test_whole_durations_fill_the_phrase_near_the_boundaries(begins: list[int], more: int) -> None:
    frames = 2 * max(len(begins), begins[-1] // 2 + 1) + 2 * more
    durations = whole_durations(np.array(begins), frames)
    assert durations.min() >= 1
    assert 2 * durations.sum() == frames
    starts = np.cumsum(durations) - durations
    gaps = np.diff([*begins, frames])
    if begins[0] == 0 and gaps.min() >= 2:
        assert np.abs(2 * starts - begins).max() <= 1, "nothing but rounding"


def test_energy_is_that_of_the_network(model: HibariModel) -> None:
    """The network of ``heart`` learned the teacher's energy."""
    pytest.importorskip("onnx", reason="reads the graph")
    network = load_network(default_model_path())
    phrases = []
    for text in SENTENCES[1:5]:
        ids = np.array(phrases_of(model, text)[0].ids)
        spectra = network.predict(ids)
        durations = torch.from_numpy(spectra.duration_frames // 2)[None]
        with torch.no_grad():
            mask = torch.ones(1, 1, len(ids))
            encoded, _ = network.pn.encode(torch.from_numpy(ids)[None], mask)
            _, energy = network.pn.curves(encoded, durations, torch.ones(1, 1, int(durations.sum())))
        samples = np.frombuffer(to_pcm(render(spectra)), "<i2")
        phrases.append(
            SpokenPhrase(
                ids.astype(np.int16), durations[0].numpy().astype(np.int16), spectra.f0_hz, energy[0].numpy(), samples
            )
        )
    slope, _, error = fit_energy(phrases)
    assert slope == pytest.approx(0.97, abs=0.1)
    assert error < 0.7
    louder = [energy_of(gain * phrases[0].samples / np.float32(32768), phrases[0].frames).max() for gain in (1, 2)]
    assert louder[1] - louder[0] == pytest.approx(slope * np.log(4), abs=0.15)


@given(st.floats(70, 300), st.floats(-0.2, 0.2))
def test_pitch_of_a_glide_is_found(start_hz: float, octaves: float) -> None:
    frames = 40
    at = np.arange(frames * FRAME_SAMPLES) / (frames * FRAME_SAMPLES)
    hz = start_hz * 2 ** (octaves * at)
    phase = 2 * np.pi * np.cumsum(hz) / SAMPLE_RATE_HZ
    tone = sum(np.sin(number * phase) / number for number in range(1, 9)).astype(np.float32)
    tone[: 10 * FRAME_SAMPLES] = 0
    curve = track_pitch(0.2 * tone, frames)
    assert np.abs(curve[13:-3] / hz[::FRAME_SAMPLES][13:-3] - 1).max() < 0.03
    assert (curve[:8] == UNVOICED_HZ).all()


# -- training ---------------------------------------------------------------------------------------------------------


def test_example_is_valid() -> None:
    config = FastConfig.load(Path(fast.__file__).with_name("own.yaml"))
    assert set(config.recordings) == set(config.voices)
    assert all(stage.option("matrices", 1) == 0 for stage in config.stages.values())
    assert (VOICES.parents[3] / config.start.removeprefix("../packages/")) == VOICES


def test_recordings_teach_a_voice(studio: Studio, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    write_manifest(studio.folder, studio.rows)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"voices: [af_anna]\nstart: {VOICES}\nrecordings: {{af_anna: {studio.folder}/recordings.jsonl}}\n"
    )
    settings = StageConfig(batch=300, options={"matrices": 0})
    loaded = FastConfig.load(config)
    lines: list[str] = []
    plan = FastConfig(loaded.voices, loaded.recordings, start=loaded.start, stages={"prosody": settings})
    training = FastTraining(plan, tmp_path / "run", torch.device("cpu"), report=lines.append)
    training.prepare()
    assert any("compared with af_" in line for line in lines), "American voices whose pitch is near"
    stage = training.stage("prosody")
    before = stage.held_out()["f0_hz"]
    for _ in range(4):
        stage.update()
    assert stage.held_out()["f0_hz"] < before
    config.write_text("voices: [af_anna]\nrecordings: {af_bert: a.jsonl}\n")
    with pytest.raises(ConfigError, match="af_bert is not one of the voices"):
        FastConfig.load(config)
