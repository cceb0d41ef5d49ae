"""Recordings become voices or a plain message; texts get what the models want around them and nothing leaks in."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.recordings import SAID, speech, wav
from tests.unit.cosyvoice.bundles import ONE_FAMILY, tiny
from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.prompt import usable_speech
from tts_worker.engine.cosyvoice.bundle.config import V3
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.voices.enroll import enroll, plain_transcript
from tts_worker.engine.cosyvoice.voices.speaker import Mode, Speaker, bundled_voices, instruct_ids, prompt_ids
from tts_worker.errors import BundleError, InvalidRequest, TextTooLong, UnknownVoice
from tts_worker.front_end.instruction import END_OF_PROMPT
from tts_worker.voices.files import Voice, load_voice, save_voice


@pytest.fixture(scope="module", params=ONE_FAMILY)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return Bundle.open(tiny(request.param))


@pytest.fixture(scope="module")
def frontend(bundle: Bundle) -> PromptFrontend:
    return PromptFrontend(bundle)


@pytest.fixture(scope="module")
def tokenizer(bundle: Bundle) -> TextTokenizer:
    return TextTokenizer.from_bundle(bundle)


@pytest.fixture(scope="module")
def voice(bundle: Bundle, frontend: PromptFrontend) -> Voice:
    return enroll(bundle, frontend, speech(4), SAID)


def test_good_recording_gives_a_valid_voice(bundle: Bundle, voice: Voice, tokenizer: TextTokenizer) -> None:
    speaker = Speaker(voice, bundle.config, tokenizer)

    assert 90 <= len(voice.tokens) <= 101
    assert voice.mel.shape == (2 * len(voice.tokens), 80)
    assert voice.embedding.shape == (192,)
    assert (voice.prompt_text, voice.notes, voice.gain_db) == (SAID, (), 0.0)
    assert speaker.mode is Mode.ZERO_SHOT


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_common_audio_formats_are_read(
    bundle: Bundle, frontend: PromptFrontend, tmp_path: Path, kind: str, channels: int
) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(wav(speech(3.5, 44_100), channels, kind))

    voice = enroll(bundle, frontend, file, SAID)

    assert 3.2 <= voice.seconds <= 3.7


def test_same_recording_gives_the_same_voice(bundle: Bundle, frontend: PromptFrontend, voice: Voice) -> None:
    assert enroll(bundle, frontend, speech(4), SAID).content_hash == voice.content_hash
    assert enroll(bundle, frontend, speech(4), SAID + " More.").content_hash != voice.content_hash


@settings(deadline=None, max_examples=20)
@given(before_s=st.floats(0, 4), after_s=st.floats(0, 4), level=st.floats(0.02, 0.3))
def test_silence_is_trimmed_but_not_speech(before_s: float, after_s: float, level: float) -> None:
    ready, _ = usable_speech(speech(4, level=level, before_s=before_s, after_s=after_s))

    assert 3.9 <= ready.seconds <= 4.0 + min(before_s, 0.1) + min(after_s, 0.2) + 0.05


@settings(deadline=None, max_examples=20)
@given(level=st.floats(0.006, 0.35))
def test_level_is_normalized_without_clipping(level: float) -> None:
    original = speech(3.5, level=level)

    ready, gain_db = usable_speech(original)

    loudest = float(np.abs(ready.samples).max())
    assert loudest <= max(0.951, float(np.abs(original.samples).max()) + 0.01)
    if gain_db > 0:
        assert loudest <= 0.951
    if level < 0.02:
        assert gain_db > 6
    if gain_db == 0:
        assert 0.03 <= float(np.sqrt(np.square(ready.samples).mean())) <= 0.5 or loudest > 0.9


@pytest.mark.parametrize(
    ("audio", "complaint"),
    [
        (lambda: wav(speech(1)), r"1\.0 s of speech; use 3 to 30 s"),
        (lambda: wav(speech(1, before_s=3, after_s=3)), r"1\.\d s of speech; use 3 to 30 s"),
        (lambda: wav(speech(60, 16_000)), r"60\.0 s long; use 3 to 30 s"),
        (lambda: wav(speech(5, 8_000)), "sample rate of the audio is 8000 Hz; a prompt needs at least 16000 Hz"),
        (lambda: wav(Recording(np.zeros(120_000, np.float32), 24_000)), "silent"),
        (lambda: wav(Recording(np.full(120_000, 0.5, np.float32), 24_000)), "silent"),
        (lambda: wav(speech(5, level=1e-5)), "silent"),
        (lambda: wav(Recording(np.zeros(0, np.float32), 24_000)), "contains no samples"),
        (lambda: wav(speech(5))[:30], "cannot be read"),
        (lambda: b"RIFF\x00\x00\x00\x00WAVEgarbage", "cannot be read"),
        (lambda: b"", "cannot be read"),
        (lambda: b"\x80\x04\x95" + b"not audio" * 100, "cannot be read"),
        (lambda: b"x" * (65 << 20), "65 MiB"),
    ],
)
def test_bad_recording_is_refused(
    bundle: Bundle, frontend: PromptFrontend, audio: Callable[[], bytes], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        enroll(bundle, frontend, audio(), SAID)


def test_float_file_with_nan_is_refused() -> None:
    samples = speech(4).samples
    samples[1000] = np.nan
    out = io.BytesIO()
    soundfile.write(out, samples, 24_000, format="WAV", subtype="FLOAT")

    with pytest.raises(InvalidRequest, match="NaN or infinite"):
        read_recording(out.getvalue())
    with pytest.raises(InvalidRequest, match="no such audio file"):
        read_recording("/nowhere/prompt.wav")
    with pytest.raises(InvalidRequest, match="longer than 2 s"):
        read_recording(wav(speech(3)), max_s=2)


@pytest.mark.parametrize(
    ("recording", "text", "note"),
    [
        (speech(4, 16_000), SAID, "duller"),
        (Recording(np.clip(speech(4, level=0.4).samples, -1, 1), 24_000), SAID, "clipped"),
        (speech(4), "", "no transcript"),
        (speech(4), "  \n ", "no transcript"),
    ],
)
def test_doubtful_recording_gets_a_note(
    bundle: Bundle, frontend: PromptFrontend, recording: Recording, text: str, note: str
) -> None:
    assert any(note in said for said in enroll(bundle, frontend, recording, text).notes)


@pytest.mark.parametrize(("text", "rate"), [("x" * 400, "100.0 .* at most 35"), ("Hi.", "0.8 .* at least 3")])
def test_transcript_of_another_recording_is_refused(
    bundle: Bundle, frontend: PromptFrontend, text: str, rate: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{rate} are plausible"):
        enroll(bundle, frontend, speech(4), text)


def test_voice_without_transcript_is_cross_lingual(bundle: Bundle, voice: Voice, tokenizer: TextTokenizer) -> None:
    mute = replace(voice, prompt_text="", prompt_text_ids=np.zeros(0, np.int32))
    speaker = Speaker(mute, bundle.config, tokenizer)

    assert speaker.mode is Mode.CROSS_LINGUAL
    assert speaker.request("Hello").lm_prompt == ()
    with pytest.raises(InvalidRequest, match="no transcript"):
        speaker.request("Hello", mode=Mode.ZERO_SHOT)


def test_transcript_may_contain_the_reference_tags() -> None:
    assert plain_transcript(f"You are a helpful assistant.{END_OF_PROMPT} What\nwas  said. ") == "What was said."
    with pytest.raises(TextTooLong):
        plain_transcript("x" * 1001)


def test_transcript_is_encoded_as_the_reference_does(
    bundle: Bundle, frontend: PromptFrontend, tokenizer: TextTokenizer
) -> None:
    """Text with tags, which every prompt of CosyVoice3 has, passes its front end unchanged."""
    voice = enroll(bundle, frontend, speech(4), "I paid 25 pounds,\nand 3 more.")

    spoken = "I paid 25 pounds, and 3 more."
    if bundle.config.family != V3:
        spoken = "I paid twenty-five pounds, and three more."

    assert voice.prompt_text.replace("twenty five", "twenty-five") == spoken
    assert voice.prompt_text_ids.tolist() == prompt_ids(tokenizer, bundle.config, voice.prompt_text)


def spelled(tokenizer: TextTokenizer, ids: tuple[int, ...]) -> str:
    """The text of ``ids`` with the end of prompt shown as |."""
    end = tokenizer.end_of_prompt_id
    parts = []
    current = list[int]()
    for i in ids:
        if i == end:
            parts.append(tokenizer.decode(current) + "|")
            current = []
        else:
            current.append(i)
    return "".join(parts) + tokenizer.decode(current)


SYSTEM = {"cosyvoice2": "", "cosyvoice3": "You are a helpful assistant.|"}


def test_each_mode_builds_the_reference_inputs(bundle: Bundle, voice: Voice, tokenizer: TextTokenizer) -> None:
    speaker = Speaker(voice, bundle.config, tokenizer)
    system = SYSTEM[bundle.config.family]
    tokens = tuple(voice.tokens.tolist())

    for mode, prompt_text, lm_prompt, flow_prompt in (
        (Mode.ZERO_SHOT, system + SAID, tokens, tokens),
        (Mode.CROSS_LINGUAL, system, (), tokens),
        (Mode.SFT, system, (), ()),
        (Mode.INSTRUCT, system.rstrip("|") + (" " if system else "") + "Speak softly|", (), tokens),
    ):
        instruction = "Speak softly" if mode is Mode.INSTRUCT else ""
        request = speaker.request("Hello there", mode=mode, instruction=instruction)
        assert spelled(tokenizer, request.text) == "Hello there"
        assert spelled(tokenizer, request.prompt_text) == prompt_text
        assert (request.lm_prompt, request.flow_prompt) == (lm_prompt, flow_prompt)
        assert request.prompt_mel.shape == (2 * len(flow_prompt), 80)
        assert torch.equal(request.embedding, torch.from_numpy(voice.embedding))
    assert speaker.request("x", instruction="y").lm_prompt == ()


@pytest.mark.parametrize(
    "instruction",
    ["Speak softly", f"Speak softly{END_OF_PROMPT}", f"You are a helpful assistant. Speak softly{END_OF_PROMPT}"],
)
def test_instruction_is_equal_with_and_without_tags(bundle: Bundle, tokenizer: TextTokenizer, instruction: str) -> None:
    assert instruct_ids(tokenizer, bundle.config, instruction) == instruct_ids(tokenizer, bundle.config, "Speak softly")


@settings(deadline=None, max_examples=40)
@given(text=st.lists(st.sampled_from([END_OF_PROMPT, "<|im_end|>", "[laughter]", "Hello ", "你好", "<|"]), max_size=6))
def test_spoken_text_cannot_become_an_instruction(
    bundle: Bundle, voice: Voice, tokenizer: TextTokenizer, text: list[str]
) -> None:
    request = Speaker(voice, bundle.config, tokenizer).request("".join(text))

    assert not set(request.text) & set(tokenizer.special_ids.values())
    assert spelled(tokenizer, request.text) == "".join(text)


def test_special_tokens_can_be_allowed(bundle: Bundle, voice: Voice, tokenizer: TextTokenizer) -> None:
    request = Speaker(voice, bundle.config, tokenizer).request("[laughter]", allow_special=True)

    assert request.text == (tokenizer.special_ids["[laughter]"],)


@pytest.mark.parametrize(
    ("mode", "instruction", "complaint"),
    [(Mode.ZERO_SHOT, "do", "requires an instruction"), (Mode.INSTRUCT, "", "requires")],
)
def test_contradictory_modes_are_refused(
    bundle: Bundle, voice: Voice, tokenizer: TextTokenizer, mode: Mode, instruction: str, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        Speaker(voice, bundle.config, tokenizer).request("x", mode=mode, instruction=instruction)


def test_stored_voice_works_with_its_own_model_only(
    bundle: Bundle, voice: Voice, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    save_voice(tmp_path, "zoe", voice)
    other = "cosyvoice2" if bundle.config.family == "cosyvoice3" else "cosyvoice3"

    loaded = Speaker(load_voice(tmp_path, "zoe"), bundle.config, tokenizer).request("Hello")

    direct = Speaker(voice, bundle.config, tokenizer).request("Hello")
    tensors = {"embedding": None, "prompt_mel": None}  # from Python 3.13 on, dataclasses compare even the same object
    assert replace(loaded, **tensors) == replace(direct, **tensors)
    assert torch.equal(loaded.prompt_mel, direct.prompt_mel)
    with pytest.raises(BundleError, match=f"made for {bundle.config.family}, not {other}"):
        Speaker(load_voice(tmp_path, "zoe"), Bundle.open(tiny(other)).config, tokenizer)
    with pytest.raises(UnknownVoice):
        load_voice(tmp_path, "zoë")


def test_bundled_speakers_have_no_prompt(bundle: Bundle, tokenizer: TextTokenizer) -> None:
    speaker = Speaker(bundled_voices(bundle.speaker_info, bundle.config)["tiny_spk"], bundle.config, tokenizer)

    assert speaker.mode is Mode.SFT
    assert speaker.request("Hello").flow_prompt == ()
    with pytest.raises(InvalidRequest, match="no prompt audio"):
        speaker.request("Hello", mode=Mode.CROSS_LINGUAL)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([1], "is not a table of speakers"),
        ({"a": 1}, "'a' has an unknown format"),
        ({"a": {}}, "'a' has an unknown format"),
        ({"a": {"embedding": "x"}}, "'a' has an unknown format"),
        ({"a": {"embedding": torch.tensor([float("nan")] * 192)}}, "'a' contains values that are not finite"),
        ({"a": {"embedding": torch.ones(192), "prompt_speech_feat": torch.ones(1, 7)}}, "'a' has an unknown format"),
    ],
)
def test_malformed_speaker_file_names_the_speaker(
    bundle: Bundle, tmp_path: Path, content: object, complaint: str
) -> None:
    torch.save(content, tmp_path / "spk2info.pt")

    with pytest.raises(BundleError, match=complaint):
        bundled_voices(tmp_path / "spk2info.pt", bundle.config)
