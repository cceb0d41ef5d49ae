"""``tts-worker doctor``: what is installed, what is missing and how to install it, and whether the worker can speak.

Exits with 1 only if the base install is broken; a missing extra is not a fault. Heavy modules are imported only to test
them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from time import perf_counter

from tts_worker.client.playback import find_player
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.commands.doctor_backends import import_torch, torch_finding
from tts_worker.commands.installation import install_command
from tts_worker.commands.progress import Bar
from tts_worker.errors import TTSWorkerError
from tts_worker.feature import Extra, features
from tts_worker.finding import Finding, Status
from tts_worker.server.listener import listen
from tts_worker.settings import Settings
from tts_worker.version import __version__

_EXTRAS: dict[str, Extra] = {
    "voices": Extra(("tts_worker_voices", "pypinyin", "pinyin_to_ipa"), "further voices of the CPU engine"),
    "cosyvoice": Extra(("torch", "tokenizers"), "CosyVoice voices"),
    "gpu": Extra(("torch", "tokenizers"), "CosyVoice on an NVIDIA GPU"),
    "nvml": Extra(("pynvml",), "GPU memory and utilization in the metrics"),
    "livekit": Extra(("livekit.agents",), "the LiveKit Agents plugin"),
    "grpc": Extra(("grpc", "grpc_health", "grpc_reflection"), "the gRPC worker protocol"),
    "pipecat": Extra(("pipecat",), "the pipecat service", python=(3, 11)),
    "media": Extra(("av",), "speech in AAC, sessions in Opus; recordings in m4a and webm"),
    "normalize": Extra(("wetext",), "CosyVoice's own front end (setting text.reading: reference)"),
}
"""The extras of the core. Extras that this version lacks are not shown."""

_BASE = ("numpy", "soxr", "soundfile", "hibari-tts", "pydantic-settings", "fastapi", "uvicorn", "rich")

_INSTALLED = (*_BASE, "onnxruntime")
"""What the summary has in one line."""

_COLORS = {Status.OK: 32, Status.OPTIONAL: 2, Status.WARNING: 33, Status.FAULT: "1;31"}
"""Status -> ANSI code: green, dim, yellow, bold red."""

OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 14)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    settings: Settings | None = None
    checked = Finding("settings", Status.OK, "valid")
    try:
        settings = settings_from(args)
    except TTSWorkerError as error:
        checked = Finding("settings", Status.FAULT, error.message, "correct this setting")
    with Bar(shown=sys.stderr.isatty()) as bar:
        bar.update("looking at the installation")
        findings = [_system(), *map(_package, _BASE), *map(extra_finding, _extras()), _player()]
        findings += [torch_finding(import_torch()), *_feature_findings(), checked]
        if settings is not None:
            valid = settings
            bar.update("speaking")
            findings += [_port(valid), _guarded("speech", lambda: _speech(valid))]
    if args.json:
        print(json.dumps({"version": __version__, "findings": [asdict(finding) for finding in findings]}))
    else:
        print_findings(summary(findings))
    return 1 if any(finding.status is Status.FAULT for finding in findings) else 0


def _feature_findings() -> Iterator[Finding]:
    for feature in features().values():
        if feature.checks is not None:
            yield from feature.checks()


def summary(findings: list[Finding]) -> list[Finding]:
    """Return the report on one screen: what is installed, and what is not and may be, is one line each."""
    advice = {Status.OPTIONAL: f"{install_command('NAME')}; --json says what each is for"}
    lines: dict[object, Finding] = {}
    for number, each in enumerate(findings):
        if each.status is Status.OPTIONAL and each.what.startswith("backend"):
            continue  # its extra is named
        is_package = each.status is Status.OK and each.what in _INSTALLED
        if not is_package and each.what[0] != "[":
            lines[number] = each
            continue
        kind = "packages" if is_package else "extras"
        name, before = each.what.strip("[]"), lines.get((kind, each.status))
        names = name if before is None else f"{before.detail}, {name}"
        lines[kind, each.status] = Finding(kind, each.status, names, advice.get(each.status, ""))
    return list(lines.values())


def print_findings(findings: list[Finding]) -> None:
    print(f"tts-worker {__version__}")
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for finding in findings:
        advice = f"  -> {finding.advice}" if finding.advice else ""
        word = "FAULT" if finding.status is Status.FAULT else finding.status.value
        sign = f"\033[{_COLORS[finding.status]}m{word:8}\033[0m" if colored else f"{word:8}"
        print(f"  {sign} {finding.what:19} {finding.detail}{advice}")


def _guarded(what: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except TTSWorkerError as error:
        return Finding(what, Status.FAULT, error.message)
    except Exception as error:  # a broken installation can raise anything; report it
        return Finding(what, Status.FAULT, f"{type(error).__name__}: {error}", f"{install_command()} --force-reinstall")


def _system() -> Finding:
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB memory"
    detail = (
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs{memory}"
    )
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST_PYTHON, NEWEST_PYTHON))
        return Finding("system", Status.FAULT, detail, f"use Python {oldest} to {newest}")
    return Finding("system", Status.OK, detail)


def _package(name: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(name, Status.FAULT, "not installed", install_command())
    return Finding(name, Status.OK, version)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras() -> list[str]:
    """Return the extras of this installation, without those of features that it lacks."""
    provided = importlib.metadata.metadata("tts-worker").get_all("Provides-Extra") or []
    return [name for name in provided if name in all_extras()]


def all_extras() -> dict[str, Extra]:
    return _EXTRAS | {name: extra for feature in features().values() for name, extra in feature.extras.items()}


def extra_finding(name: str) -> Finding:
    """Return whether the extra ``name`` is installed."""
    extra = all_extras()[name]
    purpose = extra.purpose
    missing = [module for module in extra.modules if not is_installed(module)]
    if missing:
        advice = install_command(name)
        if sys.version_info[:2] < extra.python:
            advice = f"use Python {'.'.join(map(str, extra.python))} or newer, then {advice}"
        return Finding(f"[{name}]", Status.OPTIONAL, purpose, advice)
    return Finding(f"[{name}]", Status.OK, purpose)


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # the parent package is missing
        return False


def _player() -> Finding:
    player = find_player()
    if player is None:
        return Finding("player", Status.OPTIONAL, "for `say` without --out", "install ffmpeg, sox or alsa-utils")
    return Finding("player", Status.OK, shutil.which(player) or player)


def _port(settings: Settings) -> Finding:
    host = settings.server.host
    port = settings.server.port
    try:
        listen(host, port).close()
    except TTSWorkerError as error:
        advice = "free the port, or choose another with --set server.port=..."
        return Finding("port", Status.WARNING, error.message, advice)
    return Finding("port", Status.OK, f"{host}:{port} is free")


def _speech(settings: Settings) -> Finding:
    """Synthesize a sentence through the whole worker."""
    from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ
    from tts_worker.worker import running_adapter

    async def speak() -> Finding:
        began_s = perf_counter()
        async with running_adapter(settings) as adapter:
            ready_s = perf_counter()
            first_s = 0.0
            size = 0
            async for frame in adapter.synthesize_stream(_sentence()):
                first_s = first_s or perf_counter()
                size += len(frame)
        audio_s = size / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        if not audio_s:
            return Finding("speech", Status.FAULT, "the voice returned no audio")
        detail = (
            f"warm in {ready_s - began_s:.1f} s, first audio after {1000 * (first_s - ready_s):.0f} ms, {audio_s:.1f} s"
        )
        return Finding("speech", Status.OK, detail)

    return asyncio.run(speak())


async def _sentence() -> AsyncIterator[str]:
    yield "The worker speaks."
