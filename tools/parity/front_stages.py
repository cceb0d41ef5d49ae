"""Front-end stages: features of prompt audio, complete model inputs, saved speakers, tokenizer, normalizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.parity.compare import FEATURES, CheckList, Golden
from tools.reference.algorithms import ReferenceFrontend
from tools.reference.text import normalize_and_split, wetext_rewriter
from tts_worker.audio.decode import Recording, read_recording
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_pickled
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFeatures
from tts_worker.engine.cosyvoice.voices.enroll import normalize
from tts_worker.engine.cosyvoice.voices.features import WHISPER_RATE_HZ, KaldiFbank
from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices
from tts_worker.errors import MissingExtra

ACROSS_RELEASES = "its grammars differ between releases"
_PROMPT = ["flow_embedding", "flow_prompt_speech_token", "prompt_speech_feat"]
# Inputs of the reference's models in each mode, without lengths.
MODEL_INPUTS = {
    "zero_shot": [*_PROMPT, "llm_embedding", "llm_prompt_speech_token", "prompt_text", "text"],
    "cross_lingual": [*_PROMPT, "llm_embedding", "text"],
    "instruct2": [*_PROMPT, "llm_embedding", "prompt_text", "text"],
    "sft": ["flow_embedding", "llm_embedding", "text"],
    "vc": [*_PROMPT, "source_speech_token"],
}


def with_lengths(keys: list[str]) -> list[str]:
    return sorted(keys + [f"{key}_len" for key in keys if not key.endswith("embedding")])


def check_frontend(checks: CheckList, golden: Golden, bundle: Bundle, tokenizer: TextTokenizer) -> None:
    """Compare all features of the recordings beside the golden file, resampled as in the reference."""
    frontend = ReferenceFrontend(bundle)
    clips = {path.stem: read_recording(path) for path in sorted(golden.path.parent.glob("*.wav"))}
    for name, clip in clips.items():
        _check_clip(checks, golden, frontend, name, clip)
    for mode, keys in golden.meta.get("model_input_keys", {}).items():
        checks.equal(golden.name, f"inputs of {mode}", with_lengths(MODEL_INPUTS.get(mode, [])), sorted(keys))
    texts = golden.meta.get("texts", {})
    wanted = {"text": "tts", "prompt_text": "prompt"}
    ids = {key: tokenizer.encode(texts[t], allow_special=True) for key, t in wanted.items() if t in texts}
    speaker = _clip_of(golden, clips, "spk_embedding", "zero_shot.flow_embedding")
    _check_inputs(checks, golden, "zero_shot", {**_prompt(frontend, speaker), **ids})
    source = _clip_of(golden, clips, "speech_token", "vc.source_speech_token")
    spoken = {"source_speech_token": frontend.tokens(source).tolist()} if source else {}
    target = _clip_of(golden, clips, "spk_embedding", "vc.flow_embedding")
    _check_inputs(checks, golden, "vc", {**_prompt(frontend, target, trim=False), **spoken})


def _check_clip(checks: CheckList, golden: Golden, frontend: ReferenceFrontend, name: str, clip: Recording) -> None:
    def at(rate_hz: int) -> Tensor:
        return frontend.resample(clip, rate_hz)

    features: dict[str, Callable[[], Tensor]] = {
        "mel": lambda: frontend.mel(clip)[None],
        "whisper_mel": lambda: frontend.whisper_mel(at(WHISPER_RATE_HZ)),
        "spk_embedding": lambda: frontend.embedding(clip)[None],
    }
    for key in golden:
        kind = key.removeprefix(f"{name}_")
        if kind == key:
            continue
        if kind == "speech_token":
            checks.ids(golden, key, frontend.tokens(clip).tolist())
        elif found := re.fullmatch(r"(\d+)k", kind):
            checks.close(golden, key, at(1000 * int(found.group(1))), FEATURES)
        elif kind == "fbank":  # quiet bands hold the rounding error of a float32 FFT, which depends on the processor
            banks = KaldiFbank(fft_dtype=torch.float32), frontend.fbank
            checks.nearest(golden, key, [bank(at(WHISPER_RATE_HZ)) for bank in banks], FEATURES)
        elif kind in features:
            checks.close(golden, key, features[kind](), FEATURES)


def _clip_of(golden: Golden, clips: dict[str, Recording], kind: str, key: str) -> Recording | None:
    """The recording from which a model input was computed: the one with the same tensor, else the first."""
    if key not in golden:
        return None
    same = (clip for name, clip in clips.items() if f"{name}_{kind}" in golden and _same(golden, f"{name}_{kind}", key))
    return next(same, next(iter(clips.values()), None))


def _same(golden: Golden, a: str, b: str) -> bool:
    return torch.equal(golden.peek(a), golden.peek(b))


def _prompt(frontend: ReferenceFrontend, clip: Recording | None, *, trim: bool = True) -> dict[str, Any]:
    if clip is None:
        return {}
    features: PromptFeatures = frontend.prompt(clip) if trim else frontend.untrimmed_prompt(clip)
    ids = features.tokens.tolist()
    return {
        "llm_prompt_speech_token": ids,
        "flow_prompt_speech_token": ids,
        "prompt_speech_feat": features.mel[None],
        "llm_embedding": features.embedding[None],
        "flow_embedding": features.embedding[None],
    }


def _check_inputs(checks: CheckList, golden: Golden, mode: str, inputs: dict[str, Any]) -> None:
    """Compare the complete input of a mode: ids, features and lengths."""
    for key in golden:
        if not key.startswith(f"{mode}."):
            continue
        field = key.removeprefix(f"{mode}.")
        value = inputs.get(field.removesuffix("_len"))
        if value is None:
            continue  # reported as not compared
        if field.endswith("_len"):
            checks.ids(golden, key, [value.shape[1] if isinstance(value, Tensor) else len(value)])
        elif isinstance(value, Tensor):
            checks.close(golden, key, value, FEATURES)
        else:
            checks.ids(golden, key, value)


def check_speakers(checks: CheckList, path: Path, bundle: Bundle, frontend: Golden | None) -> None:
    """Compare speakers saved by the reference with the imported voices and with the front end's output."""
    raw: dict[str, dict[str, Tensor]] = read_pickled(path)
    for name, voice in bundled_voices(path, bundle.config).items():
        entry = raw[name]
        embedding = entry.get("embedding", entry.get("flow_embedding"))
        assert embedding is not None  # required by bundled_voices
        pairs = {
            "flow_embedding": (torch.from_numpy(voice.embedding)[None], embedding),
            "prompt_text": (torch.from_numpy(voice.prompt_text_ids)[None], entry.get("prompt_text")),
            "flow_prompt_speech_token": (torch.from_numpy(voice.tokens)[None], entry.get("flow_prompt_speech_token")),
            "prompt_speech_feat": (torch.from_numpy(voice.mel)[None], entry.get("prompt_speech_feat")),
        }
        for key, (got, saved) in pairs.items():
            if saved is not None:
                checks.measure(path.name, f"{name}.{key}", got, saved, 0.0)
        if frontend is not None and "prompt_text" in entry:
            _check_remade(checks, path.name, name, {key: saved for key, (_, saved) in pairs.items()}, frontend)


def _check_remade(checks: CheckList, file: str, name: str, saved: dict[str, Tensor | None], frontend: Golden) -> None:
    """Compare a speaker saved from the prompt of the front end's golden with that golden."""
    tokens = saved["flow_prompt_speech_token"]
    key = "zero_shot.flow_prompt_speech_token"
    if tokens is None or key not in frontend or not torch.equal(tokens.long(), frontend[key].long()):
        return checks.info(file, f"{name} remade", "computed from another prompt")
    for key, value in saved.items():
        if value is not None and f"zero_shot.{key}" in frontend:
            checks.measure(file, f"{name}.{key} remade", frontend[f"zero_shot.{key}"], value, FEATURES)


def check_tokenizer(checks: CheckList, path: Path, tokenizer: TextTokenizer, version: str) -> None:
    """Compare encoded and decoded texts, for the vocabularies that equal this bundle's tokenizer."""
    for name, entry in json.loads(path.read_text("utf-8")).items():
        file = f"text/{path.stem}"
        if not name.endswith(f"_{version}") or entry["len"] != len(tokenizer):
            checks.info(file, name, "belongs to another vocabulary")
            continue
        checks.equal(file, f"{name} special ids", tokenizer.special_ids, entry["special_ids"])
        cases = entry["encode"]
        got = [tokenizer.encode(text, allow_special=True) for text, _ in cases]
        checks.equal(file, f"{name} encode", got, [ids for _, ids in cases])
        cases = entry.get("decode", [])
        checks.equal(file, f"{name} decode", [tokenizer.decode(ids) for ids, _ in cases], [text for _, text in cases])


def check_normalizer(checks: CheckList, path: Path, tokenizer: TextTokenizer, matching: set[str]) -> None:
    """Compare text normalization.

    Args:
        checks: Collects the results.
        path: Golden file.
        tokenizer: The bundle's tokenizer.
        matching: Names of vocabularies equal to the bundle's; sentence splitting is compared for these only.
    """
    file = f"text/{path.stem}"
    goldens = json.loads(path.read_text("utf-8"))
    try:
        rewrite = wetext_rewriter()
    except MissingExtra:
        rewrite = None
    for i, case in enumerate(goldens["cases"]):
        name = f"{case['tokenizer']} {case['normalizer']} {i}"
        if case["normalizer"] != "none" and rewrite is None:
            checks.info(file, name, "wetext is not installed")
            continue
        case_rewrite = rewrite if case["normalizer"] != "none" else None
        text = case["text"]
        disabled = normalize_and_split(text, len, enabled=False)
        got: dict[str, object] = {"nosplit": normalize(text, rewrite=case_rewrite), "frontend_off": disabled}
        expected = {key: case[key] for key in got if key in case}
        if case["tokenizer"] in matching:
            expected["split"] = case["split"]
            got["split"] = normalize_and_split(
                text, lambda part: len(tokenizer.encode(part, allow_special=True)), rewrite=case_rewrite
            )
        different = [key for key, value in expected.items() if got[key] != value]
        if case["normalizer"] == "none":
            checks.add(file, name, not different, f"differs in {', '.join(different)}" if different else "")
        else:
            checks.info(file, name, ACROSS_RELEASES if different else "identical")
    if "units" in goldens:
        checks.info(file, "units", "single rules of the reference, covered by the cases above")
