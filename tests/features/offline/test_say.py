"""A model directory speaks on the command line: every mode, the audio of the engine, plain refusals."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.contract.engine_contract import EngineOutput
from tests.unit.cosyvoice.bundles import GOLDEN, ONE_FAMILY, tiny
from tests.unit.cosyvoice.speaking import Say, bundle_with_voices, shallow_weights_loaded_once, speaker
from tools.bench.engine import random_voice
from tools.random_bundle.writer import write_random_bundle
from tts_worker.cli import main
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.execution.plan import ABSENT
from tts_worker.engine.cosyvoice.loader import LoadOptions, bundle_voices, load_engine
from tts_worker.engine.cosyvoice.voices.cache import VoiceState
from tts_worker.feature_names import present
from tts_worker.features.offline.engine import load_offline_engine
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import Audio, Command, Credit, EndText, Open, SynthesisParams, Text, UtteranceKey

SAMPLES_PER_TOKEN = 960
TEXT = "Hello."
INTERLEAVED = ["--set", "engines.cosyvoice.text_mode=interleaved"]


@pytest.fixture(autouse=True, scope="module")
def weights() -> Iterator[None]:
    with shallow_weights_loaded_once():
        yield


@pytest.fixture(scope="module", params=ONE_FAMILY)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_with_voices(request.param, tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def say(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(lambda args: main(["say", "--engine", "cosyvoice", *args]), bundle, tmp_path / "out.wav", capsys)


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["say", "--engine", "cosyvoice", "--quiet", *args])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return code, captured.err


MODES: dict[str, tuple[str, list[str]]] = {
    "zero-shot": ("anna", ["--mode", "zero-shot"]),
    "cross-lingual": ("mute", ["--mode", "cross-lingual"]),
    "instruct": ("anna", ["--mode", "instruct", "--instruct", "Speak slowly."]),
    "sft": ("tiny_spk", ["--mode", "sft"]),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_reports_its_audio_length(say: Say, mode: str) -> None:
    voice, how = MODES[mode]
    said = say(TEXT, *how, voice=voice)

    chunk = said["chunks"][0]
    samples = len(said["samples"])
    assert (said["mode"], said["voice"]) == (mode, voice)
    assert samples % SAMPLES_PER_TOKEN == 0
    assert samples >= 2 * len(TEXT.split()) * SAMPLES_PER_TOKEN  # the least length is enforced, in both families
    assert said["audio_s"] == pytest.approx(samples / 24_000, abs=1e-3)
    assert (chunk["part"], chunk["text_start"], chunk["text_end"]) == (0, 0, len(TEXT))
    assert chunk["stages_ms"].keys() == {"lm", "flow", "vocoder"}
    assert np.abs(said["samples"].astype(int)).max() > 50


def test_default_mode_depends_on_the_voice(say: Say) -> None:
    assert say(TEXT)["mode"] == "zero-shot"
    assert say(TEXT, voice="mute")["mode"] == "cross-lingual"
    assert say(TEXT, voice="tiny_spk")["mode"] == "sft"
    assert say(TEXT, "--instruct", "Whisper.")["mode"] == "instruct"


def test_seed_determines_the_output(say: Say) -> None:
    first, again, other = (say(TEXT, "--seed", seed)["samples"].tolist() for seed in ("7", "7", "8"))

    assert first == again
    assert first != other


@pytest.mark.parametrize("how", [[], ["--stream"]])
def test_chunks_follow_each_other_to_the_end(say: Say, how: list[str]) -> None:
    said = say("Hello, how are you doing today, and what is the weather like?", *how, "--seed", "5")
    chunks = said["chunks"]

    assert len(chunks) > 2
    assert [chunk["index"] for chunk in chunks] == list(range(len(chunks)))
    assert [c["start_sample"] for c in chunks] == [0, *(c["end_sample"] for c in chunks[:-1])]
    assert chunks[-1]["end_sample"] == len(said["samples"])


def test_streamed_audio_equals_whole_audio(say: Say) -> None:
    whole, streamed = (say("Hello, how are you?", *how)["samples"].tolist() for how in ([], ["--stream"]))

    assert whole == streamed


def test_long_text_is_split(say: Say) -> None:
    text = "This is about the weather. It was fine. Then it rained."
    said = say(text)
    parts = [chunk["part"] for chunk in said["chunks"]]

    assert sorted(set(parts)) == [0, 1, 2]
    assert parts == sorted(parts)
    assert said["chunks"][-1]["text_end"] == len(text)
    assert said["chunks"][-1]["end_sample"] == len(said["samples"])


def test_speed_changes_the_duration(say: Say) -> None:
    plain = say(TEXT, "--seed", "3")
    fast = say(TEXT, "--seed", "3", "--speed", "2")
    frames = len(plain["samples"]) // 480

    assert len(fast["samples"]) == frames // 2 * 480


def test_interleaved_text_is_synthesized(say: Say) -> None:
    said = say("Hello, how are you doing today?", *INTERLEAVED, "--seed", "4")
    assert said["audio_s"] > 0.2


def test_voice_conversion_keeps_the_source_length(say: Say) -> None:
    source = GOLDEN["cosyvoice2"] / "prompt_44k1_stereo.wav"
    said = say("--mode", "vc", "--source", str(source))

    assert said["mode"] == "vc"
    assert abs(said["audio_s"] - soundfile.info(source).duration) < 0.1


def test_text_is_read_from_a_file_or_pipe(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    expected = say(TEXT)["samples"].tolist()
    assert say("--file", str(tmp_path / "text.txt"))["samples"].tolist() == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert say()["samples"].tolist() == expected


def test_invalid_arguments_are_reported(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "never.wav"
    base = ["--bundle", str(bundle), "--out", str(out)]
    anna = [*base, "--voice", "anna"]
    graphs = "create it with: tts-worker export onnx" if "acceleration" in present() else ABSENT
    cases: list[tuple[list[str], int, str]] = [
        ([*anna, "?!... 。"], 1, "there is nothing in this text that can be spoken"),
        ([*anna, "  "], 1, "there is nothing in this text that can be spoken"),
        ([*anna, "x" * 30_000], 2, "the text has 30000 characters; at most 20000"),
        ([*base, "--voice", "bert", TEXT], 2, 'there is no stored voice "bert"; there are: anna, mute, tiny_spk'),
        ([*base, TEXT], 2, "select a voice with --voice NAME; available: anna, mute, tiny_spk"),
        ([*base, "--voice", "../anna", TEXT], 2, "a voice's name has up to 64 letters"),
        ([*base, "--voice", "mute", "--mode", "zero-shot", TEXT], 2, "has no transcript"),
        ([*base, "--voice", "tiny_spk", "--mode", "cross-lingual", TEXT], 2, "has no prompt audio"),
        ([*anna, "--mode", "instruct", TEXT], 2, "instruct2 mode requires an instruction"),
        ([*anna, "--mode", "sft", "--instruct", "x", TEXT], 2, "instruct2 mode requires an instruction"),
        ([*anna, "--mode", "vc"], 2, "--mode vc and --source FILE must be used together"),
        ([*anna, "--source", "x.wav"], 2, "--mode vc and --source FILE must be used together"),
        ([*anna, "--mode", "vc", "--source", "x.wav", TEXT], 2, "takes no text"),
        ([*anna, "--mode", "vc", "--source", "x.wav"], 2, "x.wav: no such audio file"),
        ([*anna, "--speed", "40", TEXT], 2, "speed must be 0.5 to 2"),
        ([*anna, "--language", "tlh", TEXT], 2, "this model does not speak 'tlh'"),
        ([*anna, "--lexicon", str(tmp_path / "none.yaml"), TEXT], 2, "none.yaml"),
        ([*anna, "--set", "engines.cosyvoice.backend=onnxruntime", TEXT], 1, graphs),
        ([*anna, "--set", "engines.cosyvoice.rl=true", TEXT], 1, "llm.rl.pt: is missing"),
        ([*anna, "--set", "engines.cosyvoice.device=gpu0", TEXT], 2, "engines.cosyvoice.device"),
        ([*anna, "--set", "engines.cosyvoice.kind=tone", TEXT], 2, "engines.cosyvoice"),
        (["--bundle", str(tmp_path), TEXT], 1, "not a CosyVoice model directory"),
    ]
    for args, code, message in cases:
        got, text = refusal(capsys, *args)
        assert message in text, (args, text)
        assert got in (code, 2), (args, got)
    assert not out.exists()  # nothing is left of what was refused


def test_errors_contain_no_user_text(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = refusal(capsys, "--bundle", str(bundle), "--voice", "anna", "--speed", "99", "Geheimnis")
    assert code == 2
    assert "Geheimnis" not in text


def test_random_bundle_warns_about_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "random"
    write_random_bundle(path, "cosyvoice3")
    args = ["say", "--bundle", str(path), "--out", str(tmp_path / "noise.wav"), "Hi."]  # its only speaker

    assert main(args) == 0
    told = capsys.readouterr().err
    assert "the output is noise" in told
    assert re.search(r"real-time factor [\d.]+.* -> .*noise\.wav", told)
    assert main([*args, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["random_weights"] is True


@pytest.mark.parametrize("interleave", [False, True])
def test_offline_audio_equals_the_engine_in_a_crowd(bundle: Path, say: Say, interleave: bool) -> None:
    text = "Hello, how are you today? It is fine."
    said = say(text, "--seed", "7", "--speed", "1.25", *INTERLEAVED * interleave)
    options = LoadOptions(bundle, device="cpu", text_mode="interleaved" if interleave else "clause")
    engine = load_engine(options)
    pipeline = TextPipeline(TextOptions(by_word=interleave))
    segments = [*pipeline.feed(text), *pipeline.end()]
    outputs = {UtteranceKey("crowd", i): EngineOutput() for i in range(3)}
    for i, key in enumerate(outputs):
        engine.handle(Open(key, SynthesisParams("anna", seed=7 + i, speed=1.25), 4_800, paced=i == 0))
    for step in range(5_000):
        if all(output.ends for output in outputs.values()):
            break
        for key in outputs:  # the text arrives during the first steps, the credit in small amounts
            text_commands: list[Command] = [*(Text(key, segment) for segment in segments), EndText(key)]
            for command in (*text_commands[step : step + 1], Credit(key, 4_800)):
                engine.handle(command)
        for event in engine.step(step / 100):
            output = outputs[event.key]
            output.audio.append(event) if isinstance(event, Audio) else output.ends.append(event)
    engine.close()

    first = next(iter(outputs.values()))
    assert first.pcm == said["samples"].tobytes()
    assert [getattr(end, "truncated", "") is not None for end in first.ends] == [said["truncated"]]


def test_offline_audio_equals_the_audio_of_a_session(bundle: Path, say: Say, tmp_path: Path) -> None:
    text = "**Hello**, [sigh] how are you today? It is fine"
    engines = f"engines={{cosyvoice: {{kind: cosyvoice, bundle: {bundle}, device: cpu}}}}"
    out = tmp_path / "session.wav"
    as_generated = ["--set", "session.loudness=off"]
    args = ["--set", engines, *as_generated, "--voice", "anna", "--seed", "7", "--quiet", "--out", str(out), text]
    assert main(["say", *args]) == 0

    assert soundfile.read(out, dtype="int16")[0].tolist() == say(text, "--seed", "7")["samples"].tolist()


def test_instruction_in_the_text_is_not_spoken(say: Say) -> None:
    written = say("Whisper.<|endofprompt|>Hello.", "--seed", "1")
    assert written["samples"].tolist() == say("Hello.", "--instruct", "Whisper.", "--seed", "1")["samples"].tolist()


def test_rl_model_is_used_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "random"
    write_random_bundle(path, "cosyvoice3", seed=1)
    write_random_bundle(tmp_path / "tuned", "cosyvoice3", seed=2)
    shutil.copy(tmp_path / "tuned" / "llm.pt", path / "llm.rl.pt")
    assert main(["voice", "import", "--bundle", str(path)]) == 0

    def pcm(*args: str) -> bytes:
        out = tmp_path / "x.wav"
        assert main(["say", "--bundle", str(path), "--quiet", "--out", str(out), *args, "Hi."]) == 0
        return out.read_bytes()

    assert pcm("--set", "engines.cosyvoice.rl=true") != pcm()


def test_given_voice_precedes_the_speaker_of_the_model() -> None:
    """Otherwise a mode would have no effect on a speaker whose prompt the model directory has."""
    path = tiny("cosyvoice2")
    (name,) = bundle_voices(Bundle.open(path))
    voice = random_voice(Bundle.open(path), 25)
    engine = load_offline_engine(path, {name: voice}, device="cpu", threads=1)
    try:
        state = engine.components.voice_cache.acquire(name)
        assert isinstance(state, VoiceState)
        assert state.speaker.voice is voice
    finally:
        engine.close()
