"""Checks and converts model directories and adds their voices, without argument parsing and output.

The engine is imported late, so that ``pull`` works without torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.commands.model_directory import open_bundle
from tts_worker.errors import BundleError, ConfigError
from tts_worker.features.voicepack.manifest import PUBLISHED, ModelFile, Need, PublishedModel, Verdict, published
from tts_worker.models.bundles.report import Problem, Report
from tts_worker.voices.details import VoiceDetails
from tts_worker.voices.files import VOICES_DIR, Voice, save_voice

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle

PRECISIONS = ("fp32", "bf16")
Step = Callable[[str], None]
"""Called with the name of the file that is processed next."""


def check(path: Path, name: str | None = None, *, hashes: bool = True, step: Step | None = None) -> Report:
    """Check a model directory for consistency and compare it with the published files.

    Args:
        path: Model directory.
        name: Published model that the directory must match: a missing file, a wrong size or weight hash is then an
            error. Without it, only files of a published size are compared, and the report notes which are verified.
        hashes: Whether to compute hashes.
        step: Progress callback.

    Returns:
        All problems found.
    """
    bundle = open_bundle(path)
    claimed = published(name) if name else None
    problems = [*bundle.validate().problems, *_unreadable(bundle)]
    if claimed:
        problems += _missing(path, claimed)
    comparable = [] if bundle.has_random_weights and not claimed else _comparable(path, claimed, bundle.config.family)
    for file, model in comparable:
        if step:
            step(file.path)
        if hashes or claimed:
            problems += _compare(path, file, model, strict=claimed is not None)
    return Report(path, tuple(problems))


def _unreadable(bundle: Bundle) -> list[Problem]:
    """Read the vocabulary and the speakers as loading does. What ``Bundle.validate`` reports as missing is left out."""
    from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
    from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices

    problems = []
    if not any(bundle.missing_text_files()):
        is_own_file = bundle.config.family == "cosyvoice1"
        file = bundle.whisper_vocabulary if is_own_file else bundle.text_model_dir
        try:
            TextTokenizer.from_bundle(bundle)
        except BundleError as error:
            problems.append(Problem(file.name, error.message))
    if bundle.speaker_info.is_file():
        try:
            bundled_voices(bundle.speaker_info, bundle.config)
        except BundleError as error:
            problems.append(Problem(bundle.speaker_info.name, error.message))
    return problems


def _missing(path: Path, model: PublishedModel) -> list[Problem]:
    """Return the files of ``model`` that ``path`` lacks. Converted weights stand for the published ones."""
    files = [file for file in model.files if file.need is Need.ALWAYS and not (path / file.path).is_file()]
    return [
        Problem(file.path, f"is missing: {model.name} was published with it")
        for file in files
        if not (path / file.path).with_suffix(".safetensors").is_file()
    ]


def _comparable(path: Path, claimed: PublishedModel | None, family: str) -> list[tuple[ModelFile, PublishedModel]]:
    yaml = "cosyvoice.yaml" if family == "cosyvoice1" else f"{family}.yaml"
    models = [claimed] if claimed else [m for m in PUBLISHED if any(f.path == yaml for f in m.files)]
    pairs = [(file, model) for model in models for file in model.files if (path / file.path).is_file()]
    return [(f, m) for f, m in pairs if claimed or (path / f.path).stat().st_size == f.size_bytes]


def _compare(path: Path, file: ModelFile, model: PublishedModel, *, strict: bool) -> list[Problem]:
    verdict = file.judge(path / file.path)
    if verdict is Verdict.VERIFIED:
        return [Problem(file.path, f"verified: the published file of {model.name}", fatal=False)]
    if verdict is Verdict.WRONG_SIZE:
        size = (path / file.path).stat().st_size
        return [Problem(file.path, f"has {size} bytes; {model.name} was published with {file.size_bytes}", fatal=True)]
    wrong = strict and file in model.weights and file.sha256 is not None
    return [Problem(file.path, f"has a hash that is not recorded for {model.name}", fatal=wrong)]


def convert(path: Path, out: Path, precision: str = "fp32", *, step: Step | None = None) -> Report:
    """Convert the weights of a model directory to safetensors and copy all other files.

    Args:
        path: Model directory.
        out: Target directory; may be ``path``.
        precision: ``fp32`` or ``bf16``. The vocoder stays in fp32, which its phase accumulation needs.
        step: Progress callback.

    Returns:
        The report of the result.

    Raises:
        BundleError: The source is invalid or the target cannot be written.
        ConfigError: Unknown precision.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"dtype: must be one of: {', '.join(PRECISIONS)}")
    bundle = open_bundle(path)
    from tts_worker.engine.cosyvoice.bundle.tensor_files import PRECISION_DTYPES, write_safetensors
    from tts_worker.engine.cosyvoice.bundle.weights import OPTIONAL_KEYS, PARTS

    bundle.validate().raise_if_bad()  # before the first file is written
    tuned = open_bundle(path, rl=True)
    sources = [(part, bundle) for part in PARTS]
    if tuned.weight_file("llm").is_file():
        sources.append(("llm", tuned))
    out.mkdir(parents=True, exist_ok=True)
    for part, source in sources:
        target = out / f"{source.weight_file(part).name.removesuffix('.pt').removesuffix('.safetensors')}.safetensors"
        if step:
            step(target.name)
        dtype = PRECISION_DTYPES["fp32" if part == "hift" else precision]
        weights = source.load_weights(part, dtype)
        required = {key: tensor for key, tensor in weights.items() if key not in OPTIONAL_KEYS}
        write_safetensors(target, required, {"format": "pt"})
    if out.resolve() != path.resolve():
        _copy_rest(path, out)
    return open_bundle(out).validate()


def _copy_rest(path: Path, out: Path) -> None:
    """Copy the configuration, tokenizer, prompt models and voices, but no weights in other formats."""
    names = (
        "*.yaml",
        "*.json",
        "*.txt",
        "*.onnx",
        "*.tiktoken",
        "spk2info.pt",
        "*/*.json",
        "*/*.txt",
        f"{VOICES_DIR}/*/voice.*",
    )
    try:
        for file in sorted(file for name in names for file in path.glob(name)):
            target = out / file.relative_to(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    except OSError as error:
        raise BundleError(f"{out}: cannot be written ({error.strerror})") from None


def add_voice(
    bundle_path: Path, root: Path, name: str, audio: Path | bytes, text: str, *, replace: bool = False
) -> Voice:
    """Enroll a voice from a recording and its transcript and store it below ``root``.

    Raises:
        InvalidRequest: The recording or the name is not accepted; the message says why.
        BundleError: The model is invalid or the voice cannot be written.
        MissingExtra: torch is not installed.
    """
    bundle = open_bundle(bundle_path)
    from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
    from tts_worker.engine.cosyvoice.voices.enroll import enroll

    voice = enroll(bundle, PromptFrontend(bundle), audio, text)
    save_voice(root, name, voice, replace=replace)
    return voice


def import_speakers(bundle_path: Path, root: Path, file: Path | None = None, *, replace: bool = False) -> list[str]:
    """Store the speakers of a ``spk2info.pt`` (the bundle's own by default) as voices; returns their names."""
    bundle = open_bundle(bundle_path)
    from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices

    voices = bundled_voices(file or bundle.speaker_info, bundle.config)
    for name, voice in voices.items():
        details = VoiceDetails(has_prompt=len(voice.tokens) > 0, source="speaker").encode()
        save_voice(root, name, voice, details=details, replace=replace)
    return list(voices)


def report_json(report: Report) -> str:
    """Format a report as JSON."""
    problems = [{"file": p.file, "what": p.what, "fatal": p.fatal} for p in report.problems]
    return json.dumps({"path": str(report.path), "ok": report.ok, "problems": problems}, indent=2)
