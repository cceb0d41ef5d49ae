"""CosyVoice-300M in the streaming engine: modes, batches, chunks and the sample rate of the worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cosyvoice.networks import load_shallow
from tools.random_bundle import v1
from tools.random_bundle.writer import write_random_bundle
from tts_worker.engine.cosyvoice.bundle.config import WHISPER_CHARACTERS
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.enrolled import EnrolledVoices
from tts_worker.engine.cosyvoice.voices.speaker import Mode, Speaker
from tts_worker.errors import BundleError, ConfigError
from tts_worker.types import Audio, Done, EndText, Open, Segment, SynthesisParams, Text, UtteranceKey, WordTiming
from tts_worker.voices.files import Voice

TEXTS = {"random": "Hi.", "anna": "Hello world.", "mute": "Well."}
LONG = UtteranceKey("long", 0)
LONG_TOKENS = [i * 97 % 4096 for i in range(230)]


@pytest.fixture(autouse=True, scope="module")
def networks_have_few_layers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "load", load_shallow)
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_random_bundle(tmp_path_factory.mktemp("first") / "x", "cosyvoice1", prompt_models=False)


def voice(bundle: Bundle, transcript: str) -> Voice:
    generator = np.random.default_rng(1)
    ids = TextTokenizer.from_bundle(bundle).encode(transcript)
    return Voice(
        family="cosyvoice1",
        prompt_text=transcript,
        prompt_text_ids=np.array(ids, np.int32),
        tokens=generator.integers(0, 4096, 40, dtype=np.int32),
        mel=generator.normal(-5.0, 2.0, (69, 80)).astype(np.float32),
        embedding=generator.normal(size=192).astype(np.float32),
        seconds=0.8,
    )


def script(key: UtteranceKey, run: int) -> Sequence[int]:
    return (*LONG_TOKENS, 4096) if key == LONG else ()


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Iterator[CosyVoiceEngine]:
    enrolled = EnrolledVoices(bundle.path)
    enrolled.store("anna", voice(bundle, "Hello the world."))
    enrolled.store("mute", voice(bundle, ""))
    options = LoadOptions(bundle.path, device="cpu", max_utterances=4, smooth_start=False)
    loaded = load_engine(options, script, enrolled=enrolled)
    yield loaded
    loaded.close()


def speak(
    engine: CosyVoiceEngine, params: dict[UtteranceKey, tuple[SynthesisParams, str]]
) -> dict[UtteranceKey, tuple[list[bytes], list[WordTiming]]]:
    for key, (each, text) in params.items():
        engine.handle(Open(key, each, 1 << 40, paced=False))
        engine.handle(Text(key, Segment.whole(text)))
        engine.handle(EndText(key))
    spoken: dict[UtteranceKey, tuple[list[bytes], list[WordTiming]]] = {key: ([], []) for key in params}
    done = 0
    while done < len(params):
        for event in engine.step(0.0):
            assert isinstance(event, Audio | Done), event
            if isinstance(event, Done):
                done += 1
            else:
                spoken[event.key][0].append(event.pcm)
                spoken[event.key][1].extend(event.words)
    return spoken


def test_crowd_says_what_each_says_alone(engine: CosyVoiceEngine) -> None:
    calls = {
        UtteranceKey(name, 0): (SynthesisParams(name, seed=3, instruct="A calm man." if i == 2 else None), text)
        for i, (name, text) in enumerate(TEXTS.items())
    }
    together = speak(engine, calls)
    for key, call in calls.items():
        alone = speak(engine, {key: call})[key]
        assert b"".join(alone[0]) == b"".join(together[key][0])
        assert alone[1] == together[key][1]


def test_stream_has_the_frames_of_its_parts(engine: CosyVoiceEngine) -> None:
    flow = engine.components.networks.config.flow
    pcm, words = speak(engine, {LONG: (SynthesisParams("anna"), "Hello the big world.")})[LONG]
    overlap = flow.frames(20)
    new = flow.frames(120) - overlap
    frames = 2 * new + flow.frames(30)
    samples = sum(map(len, pcm)) // 2
    assert samples == -(-frames * 256 * 24_000 // 22_050)
    assert [word.start_char for word in words] == [0, 6, 10, 14]
    assert all(0 <= word.start_sample <= word.end_sample <= samples for word in words)
    assert np.abs(np.frombuffer(b"".join(pcm), "<i2").astype(int)).max() > 100


def test_pace_changes_the_length(engine: CosyVoiceEngine) -> None:
    pcm, words = speak(engine, {LONG: (SynthesisParams("random", speed=2.0), "Hello.")})[LONG]
    samples = sum(map(len, pcm)) // 2
    assert samples / 24_000 == pytest.approx(len(LONG_TOKENS) / 50 / 2, abs=0.05)
    assert words[-1].end_sample <= samples


def test_model_of_25_hz_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published CosyVoice-300M-25Hz: half the tokens, and another vocabulary."""
    monkeypatch.setattr(v1, "WHISPER", WHISPER_CHARACTERS)  # for the rows of its special tokens
    path = write_random_bundle(tmp_path / "x", "cosyvoice1", prompt_models=False).path
    yaml = path / "cosyvoice.yaml"
    text = yaml.read_text("utf-8").replace("input_frame_rate: 50", "input_frame_rate: 25")
    yaml.write_text(text.replace("whisper.tokenizer.", "cosyvoice.tokenizer.tokenizer."), "utf-8")
    (path / "multilingual.tiktoken").rename(path / "multilingual_zh_ja_yue_char_del.tiktoken")
    subject = load_engine(LoadOptions(path, device="cpu", max_utterances=2, smooth_start=False), script)
    pcm, words = speak(subject, {LONG: (SynthesisParams("random"), "Hello 世界.")})[LONG]
    samples = sum(map(len, pcm)) // 2
    subject.close()
    assert samples / 24_000 == pytest.approx(len(LONG_TOKENS) / 25, abs=0.1)
    assert words[-1].end_sample <= samples


def test_modes_tell_the_language_model_what_the_reference_tells(bundle: Bundle) -> None:
    tokenizer = TextTokenizer.from_bundle(bundle)
    anna = Speaker(voice(bundle, "Hello."), bundle.config, tokenizer)
    zero_shot = anna.request("Hi.")
    assert zero_shot.with_speaker
    assert list(zero_shot.prompt_text) == tokenizer.encode("Hello.")
    assert len(zero_shot.lm_prompt) == len(zero_shot.flow_prompt) == 40
    cross = anna.request("Hi.", mode=Mode.CROSS_LINGUAL, language="en-GB")
    assert cross.with_speaker
    assert [tokenizer.special_ids["<|en|>"]] == list(cross.prompt_text)
    assert not cross.lm_prompt
    assert len(cross.flow_prompt) == 40
    sft = anna.request("Hi.", mode=Mode.SFT)
    assert sft.with_speaker
    assert not sft.prompt_text
    assert not sft.flow_prompt
    empty = np.zeros(0, np.int32)
    speaker = Voice("cosyvoice1", "", empty, empty, np.zeros((0, 80), np.float32), np.ones(192, np.float32), 0.0)
    instruct = Speaker(speaker, bundle.config, tokenizer).request("Hi.", instruction="A calm man.")
    assert not instruct.with_speaker
    assert list(instruct.prompt_text) == tokenizer.encode("A calm man.<|endofprompt|>")


@pytest.mark.parametrize(
    ("option", "complaint"),
    [({"text_mode": "interleaved"}, "text_mode: .* whole clauses"), ({"backend": "onnxruntime"}, "backend: .* torch")],
)
def test_what_the_family_cannot_do_is_refused(bundle: Bundle, option: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_engine(LoadOptions(bundle.path, device="cpu", **option))  # type: ignore[arg-type]


def test_directory_without_vocabulary_says_how_to_get_it(bundle: Bundle, tmp_path: Path) -> None:
    for file in bundle.path.iterdir():
        if file.suffix != ".tiktoken":
            (tmp_path / file.name).symlink_to(file)
    copy = Bundle.open(tmp_path)
    assert any("voicepack pull cosyvoice-300m" in problem.what for problem in copy.validate(values=False).problems)
    with pytest.raises(BundleError, match="voicepack pull cosyvoice-300m"):
        TextTokenizer.from_bundle(copy)
