"""End-to-end stages: speech tokens to waveform with the reference's loop, and text to waveform in every mode."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.parity.compare import MEL, CheckList, Golden
from tools.parity.hift_stages import noise_named, seed_of
from tools.reference.compat import Compat
from tools.reference.pipeline import AudioChunk, OfflinePipeline
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_pickled
from tts_worker.engine.cosyvoice.networks.hift import Noise
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.speaker import Request
from tts_worker.front_end.instruction import END_OF_PROMPT


@dataclass(frozen=True)
class ReferenceRun:
    """One named run of the token loop, described by its name and its recorded flow calls."""

    name: str
    calls: list[dict[str, Any]]

    @property
    def is_streaming(self) -> bool:
        return "stream" in self.name.replace("nonstream", "") or not all(call["finalize"] for call in self.calls)

    @property
    def frames(self) -> int:
        """Largest number of mel frames passed to the vocoder."""
        return max(int(call["mel_frames_out"]) for call in self.calls)

    @property
    def speed(self) -> float:
        found = re.search(r"speed([\d.]+)", self.name)
        return float(found.group(1)) if found else 1.0

    @property
    def predecessor(self) -> str | None:
        """The run from which this one inherits the grown hop."""
        return self.name.removesuffix("_second_request") if self.name.endswith("_second_request") else None


class _SharedMels(OfflinePipeline):
    """A pipeline for runs that differ in noise and speed: the flow computes the same call of several runs once."""

    def __init__(self, networks: Networks, noise: Noise, mels: dict[object, Tensor]) -> None:
        super().__init__(networks, Compat.reference(), noise)
        self._mels = mels

    def _mel(self, request: Request, generated: list[int], final: bool, chunked: bool) -> Tensor:
        call = tuple(generated), final, chunked
        if call not in self._mels:
            self._mels[call] = super()._mel(request, generated, final, chunked)
        return self._mels[call]


def check_token2wav(checks: CheckList, golden: Golden, networks: Networks) -> None:
    config = networks.config
    meta = golden.meta
    file = golden.name
    request = Request(
        (), golden["embedding"][0], flow_prompt=golden.ids("prompt_token"), prompt_mel=golden["prompt_feat"][0]
    )
    tokens = golden.ids("token")
    runs = [
        ReferenceRun(key.removesuffix("_flow_calls"), calls)
        for key, calls in meta.items()
        if key.endswith("_flow_calls")
    ]
    named = {f"{run.name}_wav" for run in runs}
    for key in golden:
        if key.endswith("_wav") and key not in named:
            checks.fail(file, key, "the header does not record the flow calls of this run")
    results: dict[str, tuple[OfflinePipeline, list[AudioChunk]]] = {}
    mels: dict[object, Tensor] = {}
    for run in sorted(runs, key=lambda run: run.predecessor is not None):
        if run.predecessor is not None and run.predecessor not in results:
            checks.fail(file, run.name, f"follows {run.predecessor}, which is missing")
            continue
        harmonics = config.hift.nb_harmonics + 1
        samples = int(run.frames * config.hift.frame_samples / min(run.speed, 1.0)) + config.sample_rate_hz
        noise = noise_named(run.name, harmonics, samples)
        pipeline = results[run.predecessor][0] if run.predecessor else _SharedMels(networks, noise, mels)
        run_tokens = tokens[: run.calls[-1]["tokens_in"]]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(meta))
            chunks = list(pipeline.render(request, run_tokens, stream=run.is_streaming, speed=run.speed))
        results[run.name] = pipeline, chunks
        calls = [
            {"tokens_in": c.flow_tokens, "streaming": c.chunked, "finalize": c.final, "mel_frames_out": c.frames}
            for c in chunks
        ]
        checks.equal(file, f"{run.name}_flow_calls", calls, run.calls)
        if f"{run.name}_chunk_samples" in meta:
            sizes = [len(chunk.samples) for chunk in chunks]
            checks.equal(file, f"{run.name}_chunk_samples", sizes, meta[f"{run.name}_chunk_samples"])
        if f"{run.name}_wav" in golden:
            checks.wave(golden, f"{run.name}_wav", torch.cat([chunk.samples for chunk in chunks]))
    if "token_hop_len_after" in meta and results:
        hops = [pipeline._hop.tokens for pipeline, _ in results.values()]
        checks.equal(file, "token_hop_len_after", max(hops), meta["token_hop_len_after"])
    _check_mels(checks, golden, {name: chunks for name, (_, chunks) in results.items()})


def _check_mels(checks: CheckList, golden: Golden, results: dict[str, list[AudioChunk]]) -> None:
    for key in golden:
        if not (found := re.fullmatch(r"(\w+?)_mel(?:_call(\d+))?", key)):
            continue
        # The mel of a run does not depend on its noise, so the noise is not part of the key.
        run = next((name for name in results if name == found.group(1) or name.startswith(f"{found.group(1)}_")), None)
        call = int(found.group(2) or 0)
        if run is None or call >= len(results[run]):
            checks.fail(golden.name, key, "belongs to no run")
        else:
            checks.close(golden, key, results[run][call].mel[None], MEL)


def check_text2wav(
    checks: CheckList, golden: Golden, frontend: Golden, networks: Networks, bundle: Bundle, tokenizer: TextTokenizer
) -> None:
    """Compare text to waveform, with the prompt features of ``frontend``, the header's texts and zero noise."""
    texts = golden.meta["texts"]
    quiet = noise_named("zero", networks.config.hift.nb_harmonics + 1, 0)
    modes = sorted({key.rpartition("_")[0] for key in golden})
    for mode in modes:
        request = _request(mode, texts, frontend, networks, bundle, tokenizer)
        if request is None:
            checks.fail(golden.name, mode, "no such mode")
            continue
        tokens: list[int] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(golden.meta))
            chunks = list(OfflinePipeline(networks, Compat.reference(), quiet).speak(request, on_token=tokens.append))
        if f"{mode}_tokens" in golden:
            checks.ids(golden, f"{mode}_tokens", tokens)
        if f"{mode}_wav" in golden:
            checks.wave(golden, f"{mode}_wav", torch.cat([c.samples for c in chunks] or [torch.zeros(0)]))


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
        # CosyVoice3 needs its tag in the text.
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
