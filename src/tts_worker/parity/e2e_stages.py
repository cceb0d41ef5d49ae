"""End to end: tokens to sound as the reference's loop makes it, and text to sound in every mode."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.compat import Compat
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.engine.cosyvoice.tokenizer import END_OF_PROMPT, TextTokenizer
from tts_worker.engine.offline.pipeline import AudioChunk, OfflinePipeline
from tts_worker.engine.tensor_files import read_pickled
from tts_worker.parity.compare import MEL, Bench, Golden
from tts_worker.parity.hift_stages import noise_named, seed_of


@dataclass(frozen=True)
class Run:
    """One named run of the token loop, read from its name and its recorded flow calls."""

    name: str
    calls: list[dict[str, Any]]

    @property
    def stream(self) -> bool:
        return "stream" in self.name.replace("nonstream", "") or not all(call["finalize"] for call in self.calls)

    @property
    def frames(self) -> int:
        """Mel frames that are vocoded, at most."""
        return max(int(call["mel_frames_out"]) for call in self.calls)

    @property
    def speed(self) -> float:
        found = re.search(r"speed([\d.]+)", self.name)
        return float(found.group(1)) if found else 1.0

    @property
    def follows(self) -> str | None:
        """The run whose grown hop this one inherits."""
        return self.name.removesuffix("_second_request") if self.name.endswith("_second_request") else None


def check_token2wav(bench: Bench, golden: Golden, networks: Networks) -> None:
    config = networks.config
    meta = golden.meta
    file = golden.name
    request = Request(
        (), golden["embedding"][0], flow_prompt=golden.ids("prompt_token"), prompt_mel=golden["prompt_feat"][0]
    )
    tokens = golden.ids("token")
    runs = [Run(key.removesuffix("_flow_calls"), calls) for key, calls in meta.items() if key.endswith("_flow_calls")]
    named = {f"{run.name}_wav" for run in runs}
    for key in golden:
        if key.endswith("_wav") and key not in named:
            bench.fail(file, key, "its header does not say how it was made")
    made: dict[str, tuple[OfflinePipeline, list[AudioChunk]]] = {}
    for run in sorted(runs, key=lambda run: run.follows is not None):
        if run.follows is not None and run.follows not in made:
            bench.fail(file, run.name, f"follows {run.follows}, which is not there")
            continue
        harmonics = config.hift.nb_harmonics + 1
        samples = int(run.frames * config.hift.frame_samples / min(run.speed, 1.0)) + config.sample_rate_hz
        noise = noise_named(run.name, harmonics, samples)
        pipeline = made[run.follows][0] if run.follows else OfflinePipeline(networks, Compat.reference(), noise)
        given = tokens[: run.calls[-1]["tokens_in"]]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(meta))
            chunks = list(pipeline.render(request, given, stream=run.stream, speed=run.speed))
        made[run.name] = pipeline, chunks
        calls = [
            {"tokens_in": c.flow_tokens, "streaming": c.chunked, "finalize": c.final, "mel_frames_out": c.frames}
            for c in chunks
        ]
        bench.equal(file, f"{run.name}_flow_calls", calls, run.calls)
        if f"{run.name}_chunk_samples" in meta:
            sizes = [len(chunk.samples) for chunk in chunks]
            bench.equal(file, f"{run.name}_chunk_samples", sizes, meta[f"{run.name}_chunk_samples"])
        if f"{run.name}_wav" in golden:
            bench.wave(golden, f"{run.name}_wav", torch.cat([chunk.samples for chunk in chunks]))
    if "token_hop_len_after" in meta and made:
        hops = [pipeline._hop.tokens for pipeline, _ in made.values()]
        bench.equal(file, "token_hop_len_after", max(hops), meta["token_hop_len_after"])
    _check_mels(bench, golden, {name: chunks for name, (_, chunks) in made.items()})


def _check_mels(bench: Bench, golden: Golden, made: dict[str, list[AudioChunk]]) -> None:
    for key in golden:
        if not (found := re.fullmatch(r"(\w+?)_mel(?:_call(\d+))?", key)):
            continue
        # The mel of a run does not depend on its noise, so it is recorded without the noise's name.
        run = next((name for name in made if name == found.group(1) or name.startswith(f"{found.group(1)}_")), None)
        call = int(found.group(2) or 0)
        if run is None or call >= len(made[run]):
            bench.fail(golden.name, key, "belongs to no run")
        else:
            bench.close(golden, key, made[run][call].mel[None], MEL)


def check_text2wav(
    bench: Bench, golden: Golden, frontend: Golden, networks: Networks, bundle: Bundle, tokenizer: TextTokenizer
) -> None:
    """Text to sound with the prompt features of ``frontend``. Texts are in the header; the voice has no noise."""
    texts = golden.meta["texts"]
    quiet = noise_named("zero", networks.config.hift.nb_harmonics + 1, 0)
    modes = sorted({key.rpartition("_")[0] for key in golden})
    for mode in modes:
        request = _request(mode, texts, frontend, networks, bundle, tokenizer)
        if request is None:
            bench.fail(golden.name, mode, "no such mode")
            continue
        heard: list[int] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(golden.meta))
            chunks = list(OfflinePipeline(networks, Compat.reference(), quiet).speak(request, on_token=heard.append))
        if f"{mode}_tokens" in golden:
            bench.ids(golden, f"{mode}_tokens", heard)
        if f"{mode}_wav" in golden:
            bench.wave(golden, f"{mode}_wav", torch.cat([c.samples for c in chunks] or [torch.zeros(0)]))


def _request(
    mode: str,
    texts: dict[str, str],
    frontend: Golden,
    networks: Networks,
    bundle: Bundle,
    tokenizer: TextTokenizer,
) -> Request | None:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, allow_special=True))

    def prompt(name: str) -> Tensor:
        return frontend[f"zero_shot.{name}"]

    if mode == "sft":
        # CosyVoice3 speaks nothing without its tag, so it was given the text that has it.
        tagged = END_OF_PROMPT in texts["cross"]
        speakers = read_pickled(bundle.speaker_info)
        embedding = next(iter(speakers.values()))["embedding"]
        return Request(ids(texts["cross"] if tagged else texts["tts"]), embedding[0])
    if mode not in ("zero_shot", "cross_lingual", "instruct2"):
        return None
    before = {"zero_shot": "prompt", "instruct2": "instruct"}.get(mode)
    return Request(
        ids(texts["cross" if mode == "cross_lingual" else "tts"]),
        prompt("flow_embedding")[0],
        ids(texts[before]) if before else (),
        frontend.ids("zero_shot.llm_prompt_speech_token") if mode == "zero_shot" else (),
        frontend.ids("zero_shot.flow_prompt_speech_token"),
        prompt("prompt_speech_feat")[0],
    )
