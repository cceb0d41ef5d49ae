"""Record numbers of CosyVoice-300M's networks: ``python -m tools.record_v1 BUNDLE GOLDEN``.

Runs the reference's own modules (https://github.com/FunAudioLLM/CosyVoice, with its requirements, on ``PYTHONPATH``)
as the YAML in the folder BUNDLE describes them, with random weights. Writes the weights to BUNDLE and inputs and
results, stage by stage, to safetensors files in the folder GOLDEN, which ``python -m tools.parity`` compares.
Random draws of the reference's flow and vocoder are replaced by this project's noise, which need not be stored.
``--keys YAML FILE`` adds the keys of the official networks to ``tests/data/cosyvoice/fullsize_keys.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.parity.v1_stages import HOP_TOKENS, SAMPLE_STRIDE, SPEECH_SEED
from tts_worker.engine.cosyvoice.networks.flow import initial_noise
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise

HARMONICS = 9
PROMPT_TOKENS = 8
PROMPT_FRAMES = 14
STREAM_TOKENS = 95
PITCH_HZ = 180.0
SOURCE_TOKENS = 130  # two parts
FLOW_PROMPT = ("flow_prompt_speech_token", "prompt_speech_feat")


def load(file: Path) -> dict[str, Any]:
    """The reference's networks as a YAML file describes them."""
    from hyperpyyaml import load_hyperpyyaml

    text = file.read_text("utf-8")
    after = re.compile(r"^\w", re.MULTILINE).search(text, text.index("\nhift:") + 2)
    text = text[: after.start() if after else None]  # without training and front end
    return {name: part.eval() for name, part in load_hyperpyyaml(text).items() if name in ("llm", "flow", "hift")}


def build(bundle: Path) -> dict[str, Any]:
    """The reference's networks with the dimensions of the YAML and random weights."""
    networks = load(bundle / "cosyvoice.yaml")
    randomize_lm(networks["llm"])
    for name in ("flow", "hift"):
        randomize(networks[name])
    return networks


def record_keys(official: Path, keys: Path) -> None:
    """Add the keys and shapes of the official sizes to the file ``keys``."""
    known = json.loads(keys.read_text("utf-8"))
    with torch.device("meta"):
        networks = load(official)
    for name, network in networks.items():
        known[f"cosyvoice1/{name}"] = {key: list(value.shape) for key, value in network.state_dict().items()}
    keys.write_text(json.dumps(known, separators=(",", ":")), "utf-8")


@torch.no_grad()
def randomize_lm(lm: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in lm.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(1, parameter.shape[-1]) ** 0.5)


@torch.no_grad()
def randomize(network: nn.Module) -> None:
    """Fill with values that keep activations near 1 and the pitch in the range of a voice."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in network.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            is_scale = name.endswith(("weight", "alpha"))
            parameter.copy_(is_scale + 0.1 * drawn)
        elif name.endswith("original0"):  # the norm of a filter
            parameter.copy_(1 + 0.1 * drawn)
        else:
            parameter.copy_(drawn / (parameter.numel() / parameter.shape[0]) ** 0.5)
        if name == "f0_predictor.classifier.bias":
            parameter.fill_(PITCH_HZ)
        if name == "f0_predictor.classifier.weight":
            parameter.mul_(60)


def record_lm(lm: Any, with_speaker: bool) -> dict[str, Tensor]:
    """Run the reference's inference; return its inputs, encoded text, drawn ids and the scores of each draw."""
    lm.sampling = lambda scores, decoded, count: int(scores.argmax())
    spk = lm.spk_embed_affine_layer.in_features
    generator = torch.Generator().manual_seed(2)
    prompt_text = torch.randint(0, lm.text_embedding.num_embeddings, (1, 3), generator=generator)
    text = torch.randint(0, lm.text_embedding.num_embeddings, (1, 5), generator=generator)
    speech = torch.randint(0, lm.speech_token_size, (1, 7), generator=generator)
    embedding = torch.randn(1, spk, generator=generator) if with_speaker else torch.zeros(0, spk)
    encoded: list[Tensor] = []
    scores: list[Tensor] = []
    encode, sample = lm.encode, lm.sampling_ids

    def note_text(*args: Any) -> Any:
        result = encode(*args)
        encoded.append(result[0])
        return result

    def note_scores(logp: Tensor, *args: Any, **options: Any) -> Any:
        scores.append(logp.clone())
        return sample(logp, *args, **options)

    with mock.patch.object(lm, "encode", note_text), mock.patch.object(lm, "sampling_ids", note_scores):
        drawn = list(
            lm.inference(
                text,
                torch.tensor([text.shape[1]], dtype=torch.int32),
                prompt_text,
                torch.tensor([prompt_text.shape[1]], dtype=torch.int32),
                speech,
                torch.tensor([speech.shape[1]], dtype=torch.int32),
                embedding,
                max_token_text_ratio=4,
            )
        )
    return {
        "text": torch.cat([prompt_text, text], dim=1),
        "speech": speech,
        "embedding": embedding,
        "encoded": encoded[0],
        "drawn": torch.tensor(drawn),
        "scores": torch.stack(scores),
    }


class Draws:
    """Replaces the random draws of flow and vocoder, and keeps the phases."""

    def __init__(self, mel: int) -> None:
        self.noise = initial_noise(mel)  # [frames, mel]
        self.first_frame = 0  # of the speech in the current part
        self.prompt_frames = 0
        self.seed = 0
        self.phases: list[Tensor] = []

    def like(self, x: Tensor, **options: Any) -> Tensor:
        if x.shape[1] == HARMONICS:
            noise = HashedNoise(torch.tensor([self.seed]), normal=True)
            return noise(torch.zeros(1, dtype=torch.long), x.shape[2], HARMONICS).transpose(1, 2)
        if x.shape[1] != self.noise.shape[1]:
            return torch.zeros_like(x)  # drawn for a result that is not used
        speech = self.prompt_frames + self.first_frame + torch.arange(x.shape[2] - self.prompt_frames)
        index = torch.cat([torch.arange(self.prompt_frames), speech])
        return self.noise[index].T[None]

    def sample(self, sample_shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(100 + self.seed)
        phase = (torch.rand(sample_shape, generator=generator) * 2 - 1) * math.pi
        cycles = phase.double() / (2 * math.pi)
        cycles[:, 0] = 0
        self.phases.append(cycles.flatten(1))  # [1, harmonics]
        return phase

    @contextmanager
    def replaced(self) -> Iterator[None]:
        uniform = mock.Mock(return_value=mock.Mock(sample=self.sample))
        with (
            mock.patch("torch.randn_like", self.like),
            mock.patch("cosyvoice.hifigan.generator.Uniform", uniform),
        ):
            yield


@torch.inference_mode()
def record_estimator(flow: Any) -> dict[str, Tensor]:
    """Steps of the estimator over an odd and an even number of frames."""
    generator = torch.Generator().manual_seed(4)
    found: dict[str, Tensor] = {}
    for frames in (13, 12):
        x, mu, cond = (torch.randn(1, 80, frames, generator=generator) for _ in range(3))
        spk = torch.randn(1, 80, generator=generator)
        time = torch.full([1], frames / 20)
        out = flow.decoder.estimator(x, torch.ones(1, 1, frames), mu, time, spk, cond)
        named = {"x": x, "mu": mu, "cond": cond, "spk": spk, "time": time, "out": out}
        found |= {f"estimator_{frames}.{key}": value for key, value in named.items()}
    return found


@torch.inference_mode()
def record_stream(flow: Any, hift: Any, draws: Draws) -> dict[str, Tensor]:
    """Overlapping parts of an utterance through flow and vocoder, with the reference's caches and cross-fades."""
    from cosyvoice.cli.model import CosyVoiceModel

    model = CosyVoiceModel(nn.Module(), flow, hift)
    generator = torch.Generator().manual_seed(5)
    prompt = torch.randint(0, flow.vocab_size, (1, PROMPT_TOKENS), generator=generator)
    tokens = torch.randint(0, flow.vocab_size, (1, STREAM_TOKENS), generator=generator)
    prompt_mel = torch.randn(1, PROMPT_FRAMES, 80, generator=generator) - 4
    embedding = torch.randn(1, flow.spk_embed_affine_layer.in_features, generator=generator)
    found = {"prompt": prompt, "tokens": tokens, "prompt_mel": prompt_mel, "embedding": embedding}
    encode, regulate = flow.encoder.forward, flow.length_regulator.inference
    infer, vocode = flow.inference, hift.inference
    part = 0

    def note(key: str, value: Tensor) -> None:
        found[f"{key}_{part}"] = value

    def note_encoded(*args: Any) -> Any:
        result = encode(*args)
        note("encoded", result[0])
        return result

    def note_regulated(*args: Any) -> Any:
        result = regulate(*args)
        note("regulated", result[0].clone())  # the reference overwrites it
        return result

    def note_mel(**args: Any) -> Any:
        mel, cache = infer(**args)
        note("mel", mel)
        note("known", cache[:, :, :, 1])
        return mel, cache

    def note_audio(speech_feat: Tensor, cache_source: Tensor) -> Any:
        note("vocoder_mel", speech_feat)
        audio, source = vocode(speech_feat=speech_feat, cache_source=cache_source)
        note("pitch", hift.f0_predictor(speech_feat))
        return audio, source

    draws.prompt_frames = PROMPT_FRAMES
    model.hift_cache_dict["x"] = None
    model.mel_overlap_dict["x"] = torch.zeros(1, 80, 0)
    model.flow_cache_dict["x"] = torch.zeros(1, 80, 0, 2)
    with (
        mock.patch.object(flow.encoder, "forward", note_encoded),
        mock.patch.object(flow.length_regulator, "inference", note_regulated),
        mock.patch.object(flow, "inference", note_mel),
        mock.patch.object(hift, "inference", note_audio),
    ):
        begin = 0
        while True:
            end = begin + HOP_TOKENS + model.token_overlap_len
            final = end >= STREAM_TOKENS
            draws.seed = part
            speech = model.token2wav(tokens[:, begin:end], prompt, prompt_mel, embedding, "x", finalize=final)
            note("speech", speech)
            note("phase", draws.phases[-1])
            draws.first_frame += found[f"mel_{part}"].shape[2] - model.mel_overlap_len
            if final:
                return found
            begin += HOP_TOKENS
            part += 1


def record_speech(networks: dict[str, Any]) -> dict[str, Tensor]:
    """Text to audio at once, and speech tokens to streamed audio, with the reference's draws from a seed."""
    from cosyvoice.cli.model import CosyVoiceModel

    model = CosyVoiceModel(networks["llm"], networks["flow"], networks["hift"])
    generator = torch.Generator().manual_seed(7)

    def ids(below: int, count: int) -> Tensor:
        return torch.randint(0, below, (1, count), generator=generator, dtype=torch.int32)

    texts, codes = networks["llm"].text_embedding.num_embeddings, networks["flow"].vocab_size
    embedding = torch.randn(1, networks["flow"].spk_embed_affine_layer.in_features, generator=generator)
    prompt = {
        "prompt_text": ids(texts, 4),
        "llm_prompt_speech_token": ids(codes, PROMPT_TOKENS),
        "flow_prompt_speech_token": ids(codes, PROMPT_TOKENS),
        "prompt_speech_feat": torch.randn(1, PROMPT_FRAMES, 80, generator=generator) - 4,
    }
    text = ids(texts, 6)
    source = ids(codes, SOURCE_TOKENS)
    found = {**prompt, "text": text, "source": source, "embedding": embedding}
    flow_prompt = {key: value for key, value in prompt.items() if key in FLOW_PROMPT}
    spoken: list[int] = []
    decode = model.llm_job

    def note_tokens(*args: Any) -> None:
        decode(*args)
        spoken.extend(model.tts_speech_token_dict[args[-1]])

    runs: dict[str, dict[str, Any]] = {
        "zero_shot": {**prompt, "text": text, "llm_embedding": embedding},
        "instruct": {"prompt_text": prompt["prompt_text"], "text": text},
        "conversion": {**flow_prompt, "source_speech_token": source, "stream": True},
    }
    for name, options in runs.items():
        spoken.clear()
        torch.manual_seed(SPEECH_SEED)
        with mock.patch.object(model, "llm_job", note_tokens):
            parts = [part["tts_speech"] for part in model.tts(flow_embedding=embedding, **options)]
        found[f"{name}.tokens"] = torch.tensor(spoken)
        found[f"{name}.part_samples"] = torch.tensor([part.shape[1] for part in parts])
        found[f"{name}.every_fifth_sample"] = torch.cat(parts, dim=1)[:, ::SAMPLE_STRIDE]
    return found


def record_prompt_mel() -> dict[str, Tensor]:
    """The mel spectrogram of a prompt."""
    from matcha.utils.audio import mel_spectrogram

    audio = torch.rand(1, 4000, generator=torch.Generator().manual_seed(6)) - 0.5
    mel = mel_spectrogram(audio, 1024, 80, 22_050, 256, 1024, 0, 8000, center=False)
    return {"prompt_audio": audio, "prompt_audio_mel": mel}


def save(file: Path, tensors: dict[str, Tensor]) -> None:
    save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, str(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("golden", type=Path, nargs="?")
    parser.add_argument("--keys", type=Path, nargs=2, metavar=("YAML", "FILE"), help="only record the official keys")
    args = parser.parse_args()
    if args.keys:
        record_keys(*args.keys)
        return
    networks = build(args.bundle)
    for name, network in networks.items():
        torch.save(network.state_dict(), args.bundle / f"{name}.pt")
    draws = Draws(networks["flow"].output_size)
    with draws.replaced():
        stream = record_stream(networks["flow"], networks["hift"], draws)
    speech = record_speech(networks)
    lm: dict[str, Tensor] = {}
    for name, with_speaker in (("zero_shot", True), ("instruct", False)):
        lm |= {f"{name}.{key}": value for key, value in record_lm(networks["llm"], with_speaker).items()}
    save(args.golden / "llm.safetensors", lm)
    save(args.golden / "stream.safetensors", stream)
    save(args.golden / "speech.safetensors", speech)
    save(args.golden / "flow.safetensors", {**record_estimator(networks["flow"]), **record_prompt_mel()})


if __name__ == "__main__":
    main()
