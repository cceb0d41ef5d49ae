"""Runs every stage over a golden folder. A file that no stage knows, a tensor that none looked at and a file that the
manifest promises and the folder lacks are failures; what cannot bind is listed as such, with the reason."""

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
from tts_worker.parity.compare import Bench, Golden
from tts_worker.parity.debug_stages import check_layers
from tts_worker.parity.e2e_stages import check_text2wav, check_token2wav
from tts_worker.parity.flow_stages import check_encoder, check_estimator, check_inference, check_solver
from tts_worker.parity.front_stages import check_frontend, check_normaliser, check_speakers, check_tokenizer
from tts_worker.parity.hift_stages import check_hift
from tts_worker.parity.lm_stages import check_bistream, check_free_run, check_llm, check_sampling, check_silence
from tts_worker.parity.report import ParityReport

Stage = Callable[[Golden], None]


@torch.inference_mode()
def run_parity(
    bundle_dir: str | Path, golden_dir: str | Path, progress: Callable[[str], None] | None = None
) -> ParityReport:
    """Compare every stage of the bundle's networks with the reference's numbers in ``golden_dir`` (one family's folder;
    text goldens lie beside it in ``text/``). ``progress`` is called with the name of each file before it is compared.

    Runs in float32 on the CPU. Raises BundleError if the bundle cannot be loaded, InvalidRequest if the golden folder
    is not one.
    """
    folder = Path(golden_dir)
    if not folder.is_dir():
        raise InvalidRequest(f"{folder}: no such golden folder")
    bundle = Bundle.open(bundle_dir)
    networks = Networks.load(bundle, float32_phase=True)
    tokenizer = TextTokenizer.from_bundle(bundle)
    bench = Bench(networks.config.sample_rate_hz)
    prompt_end = tokenizer.end_of_prompt_id if networks.config.family == V3 else None
    flow = networks.flow

    def text2wav(golden: Golden) -> None:
        beside = folder / "frontend.safetensors"
        if not beside.is_file():
            return bench.fail(golden.name, "prompt", "frontend.safetensors, which holds the prompt, is missing")
        check_text2wav(bench, golden, Golden(beside), networks, bundle, tokenizer)

    stages: list[tuple[str, Stage]] = [  # by the beginning of the file's name; the first that fits
        ("llm_free_run", lambda g: check_free_run(bench, g, networks)),
        ("llm_", lambda g: check_llm(bench, g, networks)),
        ("bistream_", lambda g: check_bistream(bench, g, networks, prompt_end)),
        ("sampling", lambda g: check_sampling(bench, g, networks)),
        ("flow_encoder", lambda g: check_encoder(bench, g, flow)),
        ("flow_estimator", lambda g: check_estimator(bench, g, flow)),
        ("flow_cfm", lambda g: check_solver(bench, g, flow)),
        ("flow_inference", lambda g: check_inference(bench, g, flow)),
        ("hift", lambda g: check_hift(bench, g, networks)),
        ("e2e_token2wav", lambda g: check_token2wav(bench, g, networks)),
        ("e2e_text2wav", text2wav),
        ("frontend", lambda g: check_frontend(bench, g, bundle, tokenizer)),
        ("debug_layers", lambda g: check_layers(bench, g, networks)),
    ]
    for path in sorted(folder.iterdir()):
        if progress is not None:
            progress(path.name)
        if path.suffix == ".safetensors":
            _run(bench, path, stages)
        elif path.name == "silent_tokens.json":
            _guarded(bench, path.stem, partial(check_silence, bench, path, networks))
        elif path.name.startswith("spk2info") and path.suffix == ".pt":
            beside = folder / "frontend.safetensors"
            golden = Golden(beside) if beside.is_file() else None
            _guarded(bench, path.name, partial(check_speakers, bench, path, bundle, golden))
        elif path.name == "manifest.json":
            _check_manifest(bench, path)
        elif path.name == "metrics.json":
            bench.info(path.stem, "", "the reference against itself; nothing to compare")
        elif path.suffix == ".wav":
            bench.info(path.name, "", "an input")
        else:
            bench.fail(path.name, "", "no stage knows this file")
    _check_texts(bench, folder.parent / "text", tokenizer, networks.config.tokenizer_version)
    return ParityReport(networks.config.family, tuple(bench.checks))


def _check_texts(bench: Bench, folder: Path, tokenizer: TextTokenizer, version: str) -> None:
    if not folder.is_dir():
        return bench.info("text", "", "there is no folder text beside this one: tokenizer and normaliser not compared")
    short = "v3" if version == V3 else "v2"
    tables = folder / "tokenizer.json"
    own = {name for name, entry in _json(tables).items() if entry["len"] == len(tokenizer)}
    # The normaliser's cases name one family's tokenizer; both families read plain text alike.
    own |= {f"{name.rpartition('_')[0]}_v2" for name in own}
    for path in sorted(folder.iterdir()):
        if path == tables:
            _guarded(bench, f"text/{path.stem}", partial(check_tokenizer, bench, path, tokenizer, short))
        elif path.name == "normalize.json":
            _guarded(bench, f"text/{path.stem}", partial(check_normaliser, bench, path, tokenizer, own))
        else:
            bench.fail(f"text/{path.name}", "", "no stage knows this file")


def _json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return loaded


def _run(bench: Bench, path: Path, stages: list[tuple[str, Stage]]) -> None:
    stage = next((stage for prefix, stage in stages if path.stem.startswith(prefix)), None)
    if stage is None:
        return bench.fail(path.stem, "", "no stage knows this file")

    def compare() -> None:
        golden = Golden(path)
        stage(golden)
        bench.finish(golden)

    _guarded(bench, path.stem, compare)


def _guarded(bench: Bench, file: str, compare: Callable[[], None]) -> None:
    """A golden file that breaks its stage fails alone: the others are still compared."""
    try:
        compare()
    except Exception as problem:  # a golden file can be wrong in any way
        bench.fail(file, "", f"could not be compared: {type(problem).__name__}: {problem!s:.200}")


def _check_manifest(bench: Bench, path: Path) -> None:
    for name, entry in _json(path).items():
        file = path.parent / (name if "." in name else f"{name}.safetensors")
        if not file.is_file():
            bench.fail(path.stem, name, "listed, but not there")
        elif file.suffix == ".safetensors":
            golden = Golden(file)
            there = {key: list(golden[key].shape) for key in golden}
            bench.equal(path.stem, name, there, {key: shape for key, (shape, _) in entry["tensors"].items()})
