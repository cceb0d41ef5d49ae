"""Creates, checks and packs voice packs, for ``tts-worker voicepack``; without argument parsing and output."""

from __future__ import annotations

import zipfile
from pathlib import Path

import yaml
from pydantic import ValidationError

from tts_worker.atomic_files import write_atomically
from tts_worker.audio.decode import read_recording
from tts_worker.audio.prompt import MAX_PROMPT_S, judge, measure, usable_speech
from tts_worker.errors import ConfigError, IllegalCommand, TTSWorkerError
from tts_worker.models.bundles.report import Problem, Report
from tts_worker.voices.details import NEUTRAL
from tts_worker.voices.packs import METADATA, PROMPTS, PackPrompt, VoicePack, read_voicepack


def init_voicepack(folder: Path, language: str = "en", license_name: str = "") -> Path:
    """Create a voice pack ``<family>/<name>`` to be filled with recordings. Returns its ``metadata.yaml``.

    Raises:
        IllegalCommand: There is a pack already.
        ConfigError: A name is invalid or the folder cannot be written.
    """
    file = folder / METADATA
    if file.exists():
        raise IllegalCommand(f"{file} exists already")
    fields = {"language": language, "license": license_name, "tags": [], "consent": False, "styles": [NEUTRAL]}
    try:
        VoicePack.model_validate({"name": folder.resolve().name, "family": folder.resolve().parent.name, **fields})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{folder}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    text = (
        f"# Add {PROMPTS}/{NEUTRAL}.wav, 3 to {MAX_PROMPT_S:g} s of clear speech, and its words in {NEUTRAL}.txt;\n"
        "# further styles likewise, such as happy or sad. Then: tts-worker voicepack check FOLDER\n"
    )
    try:
        (folder / PROMPTS).mkdir(parents=True, exist_ok=True)
        write_atomically(file, (text + yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)).encode())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    return file


def check_voicepack(folder: Path) -> Report:
    """Check the metadata and every recording of a voice pack."""
    try:
        installed = read_voicepack(folder)
        prompts = installed.prompts()
    except TTSWorkerError as error:
        return Report(folder, (Problem(METADATA, error.message.removeprefix(f"{folder / METADATA}: "), fatal=True),))
    problems = []
    pack = installed.pack
    missing = {"license": pack.license, "languages": pack.languages}
    if prompts and not pack.consent:
        problems.append(Problem(METADATA, "consent is not stated", fatal=False))
    problems += [Problem(METADATA, f"{key} is missing", fatal=False) for key, value in missing.items() if not value]
    for prompt in prompts:
        problems += _check_prompt(prompt, folder, pack.sample_rate)
    return Report(folder, tuple(problems))


def _check_prompt(prompt: PackPrompt, folder: Path, rate_hz: int | None) -> list[Problem]:
    name = prompt.file.relative_to(folder.resolve()).as_posix()
    try:
        recording = read_recording(prompt.read(), max_s=MAX_PROMPT_S)
        speech, _ = usable_speech(recording)
        notes = [*judge(measure(speech, prompt.text))]
    except TTSWorkerError as error:
        return [Problem(name, error.message, fatal=True)]
    if not prompt.text:
        notes.append("no transcript: only the timbre is used (cross-lingual mode)")
    if rate_hz is not None and recording.rate_hz != rate_hz:
        notes.append(f"has {recording.rate_hz} Hz, the metadata {rate_hz}")
    return [Problem(name, note, fatal=False) for note in notes]


def pack_voicepack(folder: Path, out: Path) -> Path:
    """Write a zip file of a checked voice pack, to be unpacked in ``voicepacks``. The same pack gives the same bytes.

    Raises:
        ConfigError: The pack is invalid, or the file cannot be written.
    """
    report = check_voicepack(folder)
    if not report.ok:
        raise ConfigError(str(report))
    installed = read_voicepack(folder)
    files = [folder.resolve() / METADATA]
    for prompt in installed.prompts():
        files += [file for file in (prompt.file, prompt.file.with_suffix(".txt")) if file.is_file()]
    partial = out.with_name(f".{out.name}.part")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in dict.fromkeys(files):
                relative = file.relative_to(folder.resolve()).as_posix()
                entry = zipfile.ZipInfo(f"{installed.pack.family}/{installed.pack.name}/{relative}")
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
        partial.replace(out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return out
