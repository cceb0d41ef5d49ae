"""Runs every stage over a golden folder.

Unknown files, tensors that no stage compares, and files missing from the manifest are failures. Comparisons that cannot
be binding are listed as ``info`` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tools.parity.compare import CheckList, Golden
from tools.parity.debug_stages import check_layers
from tools.parity.e2e_stages import check_text2wav, check_token2wav
from tools.parity.flow_stages import check_encoder, check_estimator, check_inference, check_solver
from tools.parity.front_stages import check_frontend, check_normalizer, check_speakers, check_tokenizer
from tools.parity.hift_stages import check_hift
from tools.parity.lm_stages import check_bistream, check_free_run, check_llm, check_sampling, check_silence
from tools.parity.report import ParityReport
from tools.parity.v1_stages import check_v1_flow, check_v1_llm, check_v1_speech, check_v1_stream
from tts_worker.engine.cosyvoice.bundle.config import V1, V3
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.loader import load_networks, resolve_device
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.errors import InvalidRequest

BFLOAT16_LIMIT = 0.05
"""Relative error of what is computed in bfloat16: an 8-bit mantissa (4e-3), amplified about tenfold by the layers."""

Compare = Callable[[Golden], None]


class Half(str, Enum):
    """How a stage is compared in bfloat16."""

    EXACT = "exact"  # it is computed in float32 all the same
    RELATIVE = "relative"
    SKIPPED = "skipped"  # the numbers decide over draws or add up in a phase


@dataclass(frozen=True)
class Stage:
    """The comparison of one kind of golden file.

    Attributes:
        prefix: Start of the names of its files.
        compare: Compares a file.
        on_device: Whether it feeds the tensors of the file to the networks, on their device.
        half: How it is compared in bfloat16.
    """

    prefix: str
    compare: Compare
    on_device: bool = False
    half: Half = Half.EXACT


@torch.inference_mode()
def run_parity(
    bundle_dir: str | Path,
    golden_dir: str | Path,
    progress: Callable[[str], None] | None = None,
    *,
    device: str = "cpu",
    half: bool = False,
) -> ParityReport:
    """Compare every stage of the bundle's networks with the reference outputs.

    Args:
        bundle_dir: Model directory.
        golden_dir: Golden folder of one family; text goldens are in ``text/`` beside it.
        progress: Called with the name of each file before it is compared.
        device: Device of the networks. Prompt models, tokenizer and normalizer run on the CPU.
        half: Run the language model and the flow estimator in bfloat16, as on CUDA. Their errors are then relative, and
            what depends on draws is not compared.

    Raises:
        BundleError: The bundle cannot be loaded.
        ConfigError: There is no such device.
        InvalidRequest: The golden folder does not exist.
    """
    folder = Path(golden_dir)
    if not folder.is_dir():
        raise InvalidRequest(f"{folder}: no such golden folder")
    where = resolve_device(device)
    bundle = Bundle.open(bundle_dir)
    networks = load_networks(bundle, where, half=half, float32_phase=True)
    checks = CheckList(networks.config.sample_rate_hz)
    if networks.config.family == V1:
        stages = _v1_stages(checks, networks)
        checks.info("text", "", "there are no recorded numbers of CosyVoice-300M's tokenizer and front end")
    else:
        tokenizer = TextTokenizer.from_bundle(bundle)
        _check_texts(checks, folder.parent / "text", tokenizer, networks.config.tokenizer_version)
        stages = _stages(checks, networks, bundle, tokenizer, folder / "frontend.safetensors")
    for path in sorted(folder.iterdir()):
        if progress is not None:
            progress(path.name)
        if path.suffix == ".safetensors":
            _run(checks, path, stages, where, half)
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
    return ParityReport(networks.config.family, tuple(checks.entries))


def _v1_stages(checks: CheckList, networks: Networks) -> tuple[Stage, ...]:
    """Return the stages of CosyVoice-300M."""
    return (
        Stage("llm", lambda g: check_v1_llm(checks, g, networks), half=Half.RELATIVE),
        Stage("flow", lambda g: check_v1_flow(checks, g, networks), on_device=True, half=Half.RELATIVE),
        Stage("stream", lambda g: check_v1_stream(checks, g, networks), on_device=True, half=Half.RELATIVE),
        Stage("speech", lambda g: check_v1_speech(checks, g, networks), half=Half.SKIPPED),
    )


def _stages(
    checks: CheckList, networks: Networks, bundle: Bundle, tokenizer: TextTokenizer, frontend: Path
) -> tuple[Stage, ...]:
    """Return the stages of CosyVoice2 and 3; the first one whose prefix matches a file is used."""
    prompt_end = tokenizer.end_of_prompt_id if networks.config.family == V3 else None
    flow = networks.chunked_flow

    def text2wav(golden: Golden) -> None:
        if not frontend.is_file():
            return checks.fail(golden.name, "prompt", "frontend.safetensors, which holds the prompt, is missing")
        check_text2wav(checks, golden, Golden(frontend), networks, bundle, tokenizer)

    return (
        Stage("llm_free_run", lambda g: check_free_run(checks, g, networks), half=Half.SKIPPED),
        Stage("llm_", lambda g: check_llm(checks, g, networks), half=Half.RELATIVE),
        Stage("bistream_", lambda g: check_bistream(checks, g, networks, prompt_end), half=Half.RELATIVE),
        Stage("sampling", lambda g: check_sampling(checks, g, networks)),
        Stage("flow_encoder", lambda g: check_encoder(checks, g, flow), on_device=True),
        Stage("flow_estimator", lambda g: check_estimator(checks, g, flow), on_device=True, half=Half.RELATIVE),
        Stage("flow_cfm", lambda g: check_solver(checks, g, flow), on_device=True, half=Half.RELATIVE),
        Stage("flow_inference", lambda g: check_inference(checks, g, flow), on_device=True, half=Half.RELATIVE),
        Stage("hift", lambda g: check_hift(checks, g, networks), on_device=True),
        Stage("e2e_token2wav", lambda g: check_token2wav(checks, g, networks), half=Half.SKIPPED),
        Stage("e2e_text2wav", text2wav, half=Half.SKIPPED),
        Stage("frontend", lambda g: check_frontend(checks, g, bundle, tokenizer)),
        Stage("debug_layers", lambda g: check_layers(checks, g, networks), on_device=True, half=Half.RELATIVE),
    )


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


def _run(checks: CheckList, path: Path, stages: Sequence[Stage], device: torch.device, half: bool) -> None:
    stage = next((stage for stage in stages if path.stem.startswith(stage.prefix)), None)
    if stage is None:
        return checks.fail(path.stem, "", "no stage knows this file")
    if half and stage.half is Half.SKIPPED:
        return checks.info(path.stem, "", "not compared in bfloat16: a rounded score can change a draw or a phase")

    def compare() -> None:
        golden = Golden(path, device if stage.on_device else "cpu")
        stage.compare(golden)
        checks.finish(golden)

    checks.relative_limit = BFLOAT16_LIMIT if half and stage.half is Half.RELATIVE else None
    try:
        _guarded(checks, path.stem, compare)
    finally:
        checks.relative_limit = None


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
