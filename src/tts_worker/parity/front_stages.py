"""Front end stages: features of prompt audio, complete model inputs, saved speakers, tokenizer and normaliser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.engine.cosyvoice.audio_frontend import PromptFeatures, PromptFrontend
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.enrol import bundled_voices
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.features import WHISPER_RATE_HZ, KaldiFbank
from tts_worker.engine.tensor_files import read_pickled
from tts_worker.errors import MissingExtra
from tts_worker.parity.compare import FEATURES, Bench, Golden
from tts_worker.text.reference_normalizer import normalize, normalize_and_split, wetext_rewriter

ACROSS_RELEASES = "its grammars differ between releases"
_PROMPT = ["flow_embedding", "flow_prompt_speech_token", "prompt_speech_feat"]
# What the reference's models are given in each mode, lengths aside.
MODEL_INPUTS = {
    "zero_shot": [*_PROMPT, "llm_embedding", "llm_prompt_speech_token", "prompt_text", "text"],
    "cross_lingual": [*_PROMPT, "llm_embedding", "text"],
    "instruct2": [*_PROMPT, "llm_embedding", "prompt_text", "text"],
    "sft": ["flow_embedding", "llm_embedding", "text"],
    "vc": [*_PROMPT, "source_speech_token"],
}


def with_lengths(keys: list[str]) -> list[str]:
    return sorted(keys + [f"{key}_len" for key in keys if not key.endswith("embedding")])


def check_frontend(bench: Bench, golden: Golden, bundle: Bundle, tokenizer: TextTokenizer) -> None:
    """Everything that comes of the recordings beside the golden file, resampled as the reference does."""
    frontend = PromptFrontend(bundle, reference=True)
    clips = {path.stem: read_recording(path) for path in sorted(golden.path.parent.glob("*.wav"))}
    for name, clip in clips.items():
        _check_clip(bench, golden, frontend, name, clip)
    for mode, keys in golden.meta.get("model_input_keys", {}).items():
        bench.equal(golden.name, f"inputs of {mode}", with_lengths(MODEL_INPUTS.get(mode, [])), sorted(keys))
    texts = golden.meta.get("texts", {})
    wanted = {"text": "tts", "prompt_text": "prompt"}
    ids = {key: tokenizer.encode(texts[t], allow_special=True) for key, t in wanted.items() if t in texts}
    speaker = _clip_of(golden, clips, "spk_embedding", "zero_shot.flow_embedding")
    _check_inputs(bench, golden, "zero_shot", {**_prompt(frontend, speaker), **ids})
    source = _clip_of(golden, clips, "speech_token", "vc.source_speech_token")
    spoken = {"source_speech_token": frontend.tokens(source).tolist()} if source else {}
    target = _clip_of(golden, clips, "spk_embedding", "vc.flow_embedding")
    _check_inputs(bench, golden, "vc", {**_prompt(frontend, target, trim=False), **spoken})


def _check_clip(bench: Bench, golden: Golden, frontend: PromptFrontend, name: str, clip: Recording) -> None:
    def at(rate_hz: int) -> Tensor:
        return frontend.resample(clip, rate_hz)

    ways: dict[str, Callable[[], Tensor]] = {
        "mel": lambda: frontend.mel(clip)[None],
        "whisper_mel": lambda: frontend.whisper_mel(at(WHISPER_RATE_HZ)),
        "spk_embedding": lambda: frontend.embedding(clip)[None],
    }
    for key in golden:
        kind = key.removeprefix(f"{name}_")
        if kind == key:
            continue
        if kind == "speech_token":
            bench.ids(golden, key, frontend.tokens(clip).tolist())
        elif found := re.fullmatch(r"(\d+)k", kind):
            bench.close(golden, key, at(1000 * int(found.group(1))), FEATURES)
        elif kind == "fbank":  # quiet bands are the rounding error of a float32 transform, and so of the processor
            banks = KaldiFbank(fft_dtype=torch.float32), frontend.fbank
            bench.nearest(golden, key, [bank(at(WHISPER_RATE_HZ)) for bank in banks], FEATURES)
        elif kind in ways:
            bench.close(golden, key, ways[kind](), FEATURES)


def _clip_of(golden: Golden, clips: dict[str, Recording], kind: str, key: str) -> Recording | None:
    """The recording that a model input was made of: the one whose own tensor is the same; else the first."""
    if key not in golden:
        return None
    same = (clip for name, clip in clips.items() if f"{name}_{kind}" in golden and _same(golden, f"{name}_{kind}", key))
    return next(same, next(iter(clips.values()), None))


def _same(golden: Golden, a: str, b: str) -> bool:
    return torch.equal(golden.peek(a), golden.peek(b))


def _prompt(frontend: PromptFrontend, clip: Recording | None, *, trim: bool = True) -> dict[str, Any]:
    if clip is None:
        return {}
    features: PromptFeatures = frontend.prompt(clip, trim=trim)
    ids = features.tokens.tolist()
    return {
        "llm_prompt_speech_token": ids,
        "flow_prompt_speech_token": ids,
        "prompt_speech_feat": features.mel[None],
        "llm_embedding": features.embedding[None],
        "flow_embedding": features.embedding[None],
    }


def _check_inputs(bench: Bench, golden: Golden, mode: str, inputs: dict[str, Any]) -> None:
    """The complete input of a mode: ids, features, and how long they say they are."""
    for key in golden:
        if not key.startswith(f"{mode}."):
            continue
        field = key.removeprefix(f"{mode}.")
        value = inputs.get(field.removesuffix("_len"))
        if value is None:
            continue  # nobody's tensor: reported as such
        if field.endswith("_len"):
            bench.ids(golden, key, [value.shape[1] if isinstance(value, Tensor) else len(value)])
        elif isinstance(value, Tensor):
            bench.close(golden, key, value, FEATURES)
        else:
            bench.ids(golden, key, value)


def check_speakers(bench: Bench, path: Path, bundle: Bundle, frontend: Golden | None) -> None:
    """Speakers as the reference saves them: our voices hold the same, and it is what our front end makes."""
    raw: dict[str, dict[str, Tensor]] = read_pickled(path)
    for name, voice in bundled_voices(path, bundle.config).items():
        entry = raw[name]
        embedding = entry.get("embedding", entry.get("flow_embedding"))
        assert embedding is not None  # or it would not have become a voice
        held = {
            "flow_embedding": (torch.from_numpy(voice.embedding)[None], embedding),
            "prompt_text": (torch.from_numpy(voice.prompt_text_ids)[None], entry.get("prompt_text")),
            "flow_prompt_speech_token": (torch.from_numpy(voice.tokens)[None], entry.get("flow_prompt_speech_token")),
            "prompt_speech_feat": (torch.from_numpy(voice.mel)[None], entry.get("prompt_speech_feat")),
        }
        for key, (got, saved) in held.items():
            if saved is not None:
                bench.measure(path.name, f"{name}.{key}", got, saved, 0.0)
        if frontend is not None and "prompt_text" in entry:
            _check_remade(bench, path.name, name, {key: saved for key, (_, saved) in held.items()}, frontend)


def _check_remade(bench: Bench, file: str, name: str, saved: dict[str, Tensor | None], frontend: Golden) -> None:
    """A speaker saved from the prompt of the front end's golden holds what that golden, and so ours, does."""
    tokens = saved["flow_prompt_speech_token"]
    key = "zero_shot.flow_prompt_speech_token"
    if tokens is None or key not in frontend or not torch.equal(tokens.long(), frontend[key].long()):
        return bench.info(file, f"{name} remade", "made from another prompt")
    for key, value in saved.items():
        if value is not None and f"zero_shot.{key}" in frontend:
            bench.measure(file, f"{name}.{key} remade", frontend[f"zero_shot.{key}"], value, FEATURES)


def check_tokenizer(bench: Bench, path: Path, tokenizer: TextTokenizer, version: str) -> None:
    """Ids of texts with and without special tokens, for the vocabularies that this bundle's tokenizer is."""
    for name, entry in json.loads(path.read_text("utf-8")).items():
        file = f"text/{path.stem}"
        if not name.endswith(f"_{version}") or entry["len"] != len(tokenizer):
            bench.info(file, name, "of another vocabulary")
            continue
        bench.equal(file, f"{name} special ids", tokenizer.special_ids, entry["special_ids"])
        cases = entry["encode"]
        got = [tokenizer.encode(text, allow_special=True) for text, _ in cases]
        bench.equal(file, f"{name} encode", got, [ids for _, ids in cases])
        cases = entry.get("decode", [])
        bench.equal(file, f"{name} decode", [tokenizer.decode(ids) for ids, _ in cases], [text for _, text in cases])


def check_normaliser(bench: Bench, path: Path, tokenizer: TextTokenizer, own: set[str]) -> None:
    """The reference's normaliser. ``own``: the vocabularies that are this bundle's, by which English is measured."""
    file = f"text/{path.stem}"
    given = json.loads(path.read_text("utf-8"))
    try:
        rewrite = wetext_rewriter()
    except MissingExtra:
        rewrite = None
    for i, case in enumerate(given["cases"]):
        name = f"{case['tokenizer']} {case['normalizer']} {i}"
        if case["normalizer"] != "none" and rewrite is None:
            bench.info(file, name, "wetext is not installed")
            continue
        way = rewrite if case["normalizer"] != "none" else None
        text = case["text"]
        off = normalize_and_split(text, len, enabled=False)
        got: dict[str, object] = {"nosplit": normalize(text, rewrite=way), "frontend_off": off}
        expected = {key: case[key] for key in got if key in case}
        if case["tokenizer"] in own:
            expected["split"] = case["split"]
            got["split"] = normalize_and_split(
                text, lambda piece: len(tokenizer.encode(piece, allow_special=True)), rewrite=way
            )
        good = all(got[key] == value for key, value in expected.items())
        if case["normalizer"] == "none":
            bench.add(
                file,
                name,
                good,
                "" if good else "differs in " + ", ".join(k for k in expected if got[k] != expected[k]),
            )
        else:
            bench.info(file, name, "identical" if good else ACROSS_RELEASES)
    if "units" in given:
        bench.info(file, "units", "single rules of the reference; held by the cases above")
