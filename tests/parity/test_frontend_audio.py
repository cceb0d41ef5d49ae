"""What the networks are given for a prompt: every recorded feature, token and model input of the reference."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import soundfile
import soxr
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.unit.cosyvoice.bundles import FAMILIES, GOLDEN, tiny
from torch import Tensor

from tools.reference.algorithms import ReferenceFrontend, SincResampler
from tts_worker.audio.decode import Recording, read_recording
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
from tts_worker.engine.cosyvoice.voices.features import KaldiFbank, MelSpectrogram, WhisperMel, slaney_filters
from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices
from tts_worker.errors import BundleError, InvalidRequest

LIMIT = 1e-4
PROMPTS = ("prompt_24k", "prompt_44k1_stereo")


@dataclass
class Reference:
    """One family: what was recorded, and our front end in the reference's ways."""

    family: str
    tensors: dict[str, Tensor]
    texts: dict[str, str]
    bundle: Bundle
    frontend: ReferenceFrontend

    def prompt(self, name: str) -> Recording:
        return read_recording(GOLDEN[self.family] / f"{name}.wav")

    def near(self, name: str, ours: Tensor) -> None:
        """Equal to the recorded tensor within the limit."""
        recorded = self.tensors[name]
        assert tuple(ours.shape) == tuple(recorded.shape)
        assert float((ours - recorded).abs().max()) <= LIMIT

    def ids(self, name: str, ours: Tensor) -> None:
        recorded = self.tensors[name]
        assert ours.dtype == torch.int32
        assert ours.tolist() == recorded[0].tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request: pytest.FixtureRequest) -> Reference:
    with safe_open(GOLDEN[request.param] / "frontend.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        meta = json.loads(file.metadata()["meta"])
    bundle = Bundle.open(tiny(request.param))
    return Reference(request.param, tensors, meta["texts"], bundle, ReferenceFrontend(bundle))


def test_prompt_features_match_the_reference(reference: Reference) -> None:
    frontend = reference.frontend
    seen = 0
    for name in PROMPTS:
        prompt = reference.prompt(name)
        at_16k = frontend.resample(prompt, 16_000)
        at_24k = frontend.resample(prompt, 24_000)
        features = {
            "16k": at_16k,
            "24k": at_24k,
            "mel": frontend.mel(prompt)[None],
            "whisper_mel": frontend.whisper_mel(at_16k),
            "fbank": frontend.fbank(at_16k),
            "spk_embedding": frontend.embedding(prompt)[None],
        }
        for kind, ours in features.items():
            if f"{name}_{kind}" in reference.tensors:
                reference.near(f"{name}_{kind}", ours)
                seen += 1
        reference.ids(f"{name}_speech_token", frontend.tokens(prompt))
    assert seen == len([key for key in reference.tensors if key.startswith("prompt_")]) - len(PROMPTS)


def test_zero_shot_inputs_match_the_reference(reference: Reference) -> None:
    features = reference.frontend.prompt(reference.prompt("prompt_24k"))
    tokenizer = TextTokenizer.from_bundle(reference.bundle)
    lengths = {"text": 0, "prompt_text": 0}
    for key, text in (("text", reference.texts["tts"]), ("prompt_text", reference.texts["prompt"])):
        ids = tokenizer.encode(text, allow_special=True)
        reference.ids(f"zero_shot.{key}", torch.tensor(ids, dtype=torch.int32))
        lengths[key] = len(ids)
    for consumer in ("llm", "flow"):
        reference.ids(f"zero_shot.{consumer}_prompt_speech_token", features.tokens)
        reference.near(f"zero_shot.{consumer}_embedding", features.embedding[None])
        lengths[f"{consumer}_prompt_speech_token"] = len(features.tokens)
    reference.near("zero_shot.prompt_speech_feat", features.mel[None])
    lengths["prompt_speech_feat"] = len(features.mel)

    for key, length in lengths.items():
        assert reference.tensors[f"zero_shot.{key}_len"].tolist() == [length]
    recorded = {key.partition(".")[2] for key in reference.tensors if key.startswith("zero_shot.")}
    assert recorded == {*lengths, *(f"{key}_len" for key in lengths), "llm_embedding", "flow_embedding"}


def test_voice_conversion_inputs_match_the_reference(reference: Reference) -> None:
    features = reference.frontend.untrimmed_prompt(reference.prompt("prompt_24k"))
    source = reference.frontend.tokens(reference.prompt("prompt_44k1_stereo"))

    reference.ids("vc.source_speech_token", source)
    reference.ids("vc.flow_prompt_speech_token", features.tokens)
    reference.near("vc.prompt_speech_feat", features.mel[None])
    reference.near("vc.flow_embedding", features.embedding[None])
    assert reference.tensors["vc.prompt_speech_feat_len"].tolist() == [len(features.mel)]
    assert len(features.mel) == 2 * len(features.tokens) - 1  # the reference's own quirk


def test_reference_speakers_become_voices(reference: Reference) -> None:
    voices = bundled_voices(GOLDEN[reference.family] / "spk2info_with_zero_shot.pt", reference.bundle.config)
    saved = voices["my_zero_shot_spk"]
    speaker = voices["tiny_spk"]

    assert saved.prompt_text_ids.tolist() == reference.tensors["zero_shot.prompt_text"][0].tolist()
    assert saved.tokens.tolist() == reference.tensors["zero_shot.llm_prompt_speech_token"][0].tolist()
    assert np.array_equal(saved.mel, reference.tensors["zero_shot.prompt_speech_feat"][0].numpy())
    assert np.array_equal(saved.embedding, reference.tensors["zero_shot.flow_embedding"][0].numpy())
    assert speaker.embedding.shape == (192,)
    assert (speaker.tokens.size, speaker.mel.shape) == (0, (0, 80))


def test_default_resampler_gives_close_features(reference: Reference) -> None:
    ours = PromptFrontend(reference.bundle)
    prompt = reference.prompt("prompt_44k1_stereo")

    assert ours.tokens(prompt).shape == reference.frontend.tokens(prompt).shape
    difference = (ours.mel(prompt) - reference.frontend.mel(prompt)).abs()[:, :70]  # below the filters' edges
    assert float(difference.median()) < 0.02


@settings(deadline=None, max_examples=25)
@given(
    source=st.sampled_from([16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000]),
    target=st.sampled_from([16_000, 24_000]),
    samples=st.integers(1000, 4000),
    share=st.floats(0.02, 0.6),
)
def test_sinc_resampler_preserves_a_tone(source: int, target: int, samples: int, share: float) -> None:
    hz = share * min(source, target) / 2

    def tone(rate: int, n: int) -> np.ndarray:
        return np.sin(2 * np.pi * hz * np.arange(n) / rate).astype(np.float32)

    out = SincResampler(source, target)(torch.from_numpy(tone(source, samples))[None])[0].numpy()

    assert abs(len(out) - samples * target / source) < 1
    middle = slice(len(out) // 4, len(out) * 3 // 4)
    assert np.abs(out - tone(target, len(out)))[middle].max() < 0.02
    other = soxr.resample(tone(source, samples), source, target)
    assert np.abs(out[middle] - other[middle]).max() < 0.02


@settings(deadline=None, max_examples=20)
@given(
    rate=st.sampled_from([16_000, 24_000]),
    n_fft=st.sampled_from([400, 512, 1920]),
    bins=st.integers(20, 128),
    low=st.floats(0, 300),
    high=st.one_of(st.none(), st.floats(4000, 8000)),
)
def test_mel_filters_are_equal_area_triangles(rate: int, n_fft: int, bins: int, low: float, high: float | None) -> None:
    filters = slaney_filters(rate, n_fft, bins, low, high).double()
    hz = torch.linspace(0, rate / 2, n_fft // 2 + 1, dtype=torch.double)

    assert filters.shape == (bins, n_fft // 2 + 1)
    assert bool((filters >= 0).all())
    assert not bool(filters[:, hz > (high or rate / 2) + 1e-6].any())
    assert not bool(filters[:, hz < low].any())
    wide = filters[(filters > 0).sum(dim=1) > 12]  # the sum says nothing about filters of a few points
    assert bool(((wide.sum(dim=1) * hz[1] - 1).abs() < 0.1).all())
    peaks = (filters * hz).sum(dim=1) / filters.sum(dim=1).clamp(min=1e-12)
    assert bool((peaks[filters.sum(dim=1) > 0].diff() >= -1e-9).all())  # narrow filters may share a point


@settings(deadline=None, max_examples=15)
@given(samples=st.integers(2000, 9000), gain=st.floats(0.2, 0.9), seed=st.integers(0, 99))
def test_feature_lengths_and_level_response(samples: int, gain: float, seed: int) -> None:
    audio = torch.randn(1, samples, generator=torch.Generator().manual_seed(seed)) * 0.3
    mel = MelSpectrogram(24_000, 1920, 1920, 480, 80, 0, None)
    fbank = KaldiFbank()

    assert mel(audio).shape == (1, samples // 480, 80)
    assert WhisperMel()(audio).shape == (1, 128, samples // 160)
    assert fbank(audio).shape == (1 + (samples - 400) // 160, 80)
    # Log magnitude falls by log(gain), log power by twice that.
    assert float((mel(audio) - mel(audio * gain) + np.log(gain)).abs().max()) < 0.02
    assert float((fbank(audio) - fbank(audio * gain) + 2 * np.log(gain)).abs().max()) < 0.02


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_too_short_audio_is_refused(reference: Reference, seconds: float) -> None:
    with pytest.raises(InvalidRequest, match=r"shorter than 0\.1 s"):
        reference.frontend.prompt(Recording(np.zeros(int(seconds * 24_000), np.float32), 24_000))


def test_speech_tokenizer_limits(reference: Reference) -> None:
    with pytest.raises(InvalidRequest, match=r"31\.0 s long; at most 30 s"):
        reference.frontend.tokens(Recording(np.zeros(31 * 16_000, np.float32), 16_000))
    with pytest.raises(InvalidRequest, match="sample rate of the audio is 8000 Hz; a prompt needs at least 16000 Hz"):
        reference.frontend.tokens(Recording(np.zeros(8_000, np.float32), 8_000))


def test_wrong_prompt_models_are_refused(reference: Reference, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from tests.unit.cosyvoice.bundles import copy_of

    path = copy_of(reference.family, tmp_path)
    bundle = Bundle.open(path)
    bundle.campplus.rename(tmp_path / "kept")
    with pytest.raises(BundleError, match=r"campplus\.onnx: is missing; without it no voice can be added"):
        PromptFrontend(bundle).embedding(reference.prompt("prompt_24k"))
    bundle.speech_tokenizer.rename(bundle.campplus)
    with pytest.raises(BundleError, match="takes 2 inputs, not 1"):
        PromptFrontend(bundle).embedding(reference.prompt("prompt_24k"))
    bundle.campplus.write_bytes(b"no model")
    with pytest.raises(BundleError, match="onnxruntime cannot load it"):
        PromptFrontend(bundle).embedding(reference.prompt("prompt_24k"))


def test_recordings_read_like_libsndfile(tmp_path) -> None:  # type: ignore[no-untyped-def]
    tone = (0.3 * np.sin(np.arange(24_000) / 9)).astype(np.float32)
    for kind in ("wav", "flac"):
        soundfile.write(tmp_path / f"x.{kind}", np.stack([tone, -0.5 * tone], axis=1), 24_000, subtype="PCM_24")
        recording = read_recording((tmp_path / f"x.{kind}").read_bytes())
        assert recording.rate_hz == 24_000
        assert np.abs(recording.samples - 0.25 * tone).max() < 1e-6
