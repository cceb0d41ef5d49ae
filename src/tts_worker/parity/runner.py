"""Runs every stage over a golden folder.

Unknown files, tensors that no stage compares, and files missing from the manifest are failures. Comparisons that cannot
be binding are listed as ``info`` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.config import V3
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.errors import InvalidRequest
from tts_worker.parity.compare import CheckList, Golden
from tts_worker.parity.debug_stages import check_layers
from tts_worker.parity.e2e_stages import check_text2wav, check_token2wav
from tts_worker.parity.flow_stages import check_encoder, check_estimator, check_inference, check_solver
from tts_worker.parity.front_stages import check_frontend, check_normalizer, check_speakers, check_tokenizer
from tts_worker.parity.hift_stages import check_hift
from tts_worker.parity.lm_stages import check_bistream, check_free_run, check_llm, check_sampling, check_silence
from tts_worker.parity.report import ParityReport

Stage = Callable[[Golden], None]


@torch.inference_mode()
def run_parity(
    bundle_dir: str | Path, golden_dir: str | Path, progress: Callable[[str], None] | None = None
) -> ParityReport:
    """Compare every stage of the bundle's networks with the reference outputs. Runs in float32 on the CPU.

    Args:
        bundle_dir: Model directory.
        golden_dir: Golden folder of one family; text goldens are in ``text/`` beside it.
        progress: Called with the name of each file before it is compared.

    Raises:
        BundleError: The bundle cannot be loaded.
        InvalidRequest: The golden folder does not exist.
    """
    folder = Path(golden_dir)
    if not folder.is_dir():
        raise InvalidRequest(f"{folder}: no such golden folder")
    bundle = Bundle.open(bundle_dir)
    networks = Networks.load(bundle, float32_phase=True)
    tokenizer = TextTokenizer.from_bundle(bundle)
    checks = CheckList(networks.config.sample_rate_hz)
    prompt_end = tokenizer.end_of_prompt_id if networks.config.family == V3 else None
    flow = networks.flow

    def text2wav(golden: Golden) -> None:
        frontend = folder / "frontend.safetensors"
        if not frontend.is_file():
            return checks.fail(golden.name, "prompt", "frontend.safetensors, which holds the prompt, is missing")
        check_text2wav(checks, golden, Golden(frontend), networks, bundle, tokenizer)

    stages: list[tuple[str, Stage]] = [  # by prefix of the file name; the first match is used
        ("llm_free_run", lambda g: check_free_run(checks, g, networks)),
        ("llm_", lambda g: check_llm(checks, g, networks)),
        ("bistream_", lambda g: check_bistream(checks, g, networks, prompt_end)),
        ("sampling", lambda g: check_sampling(checks, g, networks)),
        ("flow_encoder", lambda g: check_encoder(checks, g, flow)),
        ("flow_estimator", lambda g: check_estimator(checks, g, flow)),
        ("flow_cfm", lambda g: check_solver(checks, g, flow)),
        ("flow_inference", lambda g: check_inference(checks, g, flow)),
        ("hift", lambda g: check_hift(checks, g, networks)),
        ("e2e_token2wav", lambda g: check_token2wav(checks, g, networks)),
        ("e2e_text2wav", text2wav),
        ("frontend", lambda g: check_frontend(checks, g, bundle, tokenizer)),
        ("debug_layers", lambda g: check_layers(checks, g, networks)),
    ]
    for path in sorted(folder.iterdir()):
        if progress is not None:
            progress(path.name)
        if path.suffix == ".safetensors":
            _run(checks, path, stages)
        elif path.name == "silent_tokens.json":
            _guarded(checks, path.stem, partial(check_silence, checks, path, networks))
        elif path.name.startswith("spk2info") and path.suffix == ".pt":
            frontend = folder / "frontend.safetensors"
            golden = Golden(frontend) if frontend.is_file() else None
            _guarded(checks, path.name, partial(check_speakers, checks, path, bundle, golden))
        elif path.name == "manifest.json":
            _check_manifest(checks, path)
        elif path.name == "metrics.json":
            checks.info(path.stem, "", "compares the reference with itself")
        elif path.suffix == ".wav":
            checks.info(path.name, "", "input of another stage")
        else:
            checks.fail(path.name, "", "no stage knows this file")
    _check_texts(checks, folder.parent / "text", tokenizer, networks.config.tokenizer_version)
    return ParityReport(networks.config.family, tuple(checks.entries))


def _check_texts(checks: CheckList, folder: Path, tokenizer: TextTokenizer, version: str) -> None:
    if not folder.is_dir():
        return checks.info("text", "", "there is no folder text beside this one: tokenizer and normalizer not compared")
    short = "v3" if version == V3 else "v2"
    tables = folder / "tokenizer.json"
    matching = {name for name, entry in _json(tables).items() if entry["len"] == len(tokenizer)}
    # The normalizer's cases name one family's tokenizer; both families encode plain text identically.
    matching |= {f"{name.rpartition('_')[0]}_v2" for name in matching}
    for path in sorted(folder.iterdir()):
        if path == tables:
            _guarded(checks, f"text/{path.stem}", partial(check_tokenizer, checks, path, tokenizer, short))
        elif path.name == "normalize.json":
            _guarded(checks, f"text/{path.stem}", partial(check_normalizer, checks, path, tokenizer, matching))
        else:
            checks.fail(f"text/{path.name}", "", "no stage knows this file")


def _json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return loaded


def _run(checks: CheckList, path: Path, stages: list[tuple[str, Stage]]) -> None:
    stage = next((stage for prefix, stage in stages if path.stem.startswith(prefix)), None)
    if stage is None:
        return checks.fail(path.stem, "", "no stage knows this file")

    def compare() -> None:
        golden = Golden(path)
        stage(golden)
        checks.finish(golden)

    _guarded(checks, path.stem, compare)


def _guarded(checks: CheckList, file: str, compare: Callable[[], None]) -> None:
    """Turn an exception of a stage into a failed check, so that the other files are still compared."""
    try:
        compare()
    except Exception as problem:  # a malformed golden file can raise anything
        checks.fail(file, "", f"could not be compared: {type(problem).__name__}: {problem!s:.200}")


def _check_manifest(checks: CheckList, path: Path) -> None:
    for name, entry in _json(path).items():
        file = path.parent / (name if "." in name else f"{name}.safetensors")
        if not file.is_file():
            checks.fail(path.stem, name, "listed in the manifest, but missing")
        elif file.suffix == ".safetensors":
            golden = Golden(file)
            shapes = {key: list(golden[key].shape) for key in golden}
            checks.equal(path.stem, name, shapes, {key: shape for key, (shape, _) in entry["tensors"].items()})
