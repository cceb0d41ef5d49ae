"""``tts-worker config init``: writes a configuration with settings, their defaults and their meaning."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tts_worker.errors import InvalidRequest
from tts_worker.settings import packaged

SOURCE = "configs/worker.yaml"

SHORT = (
    *("server.host", "server.port", "server.api_keys", "server.allowed_origins"),
    *("server.tls_certificate", "server.tls_key"),
    *("session.max_sessions", "session.flush_after_ms", "session.loudness"),
    "grpc.enabled",
    "text.lexicon",
    "voices.default",
    *("engines.hibari.kind", "engines.cosyvoice2.kind", "engines.cosyvoice2.bundle"),
    *("log_level", "log_format"),
)
"""What ``--short`` shows; the engines count as one setting."""

_SETTING = re.compile(r"( *)(?:# ( *))?(\w+):")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, default=Path("worker.yaml"), help="the file to write (default worker.yaml)"
    )
    parser.add_argument("--short", action="store_true", help="only the 15 settings that most people change")


def shortened(text: str) -> str:
    """Return a configuration with the settings in ``SHORT`` only; comments stay with the line before them."""
    short = [name.split(".") for name in SHORT]
    path: list[str] = []
    lines: list[str] = []
    is_shown = True
    for line in text.splitlines():
        if match := _SETTING.match(line):
            depth = len(match[1] + (match[2] or "")) // 2
            path = [*path[:depth], match[3]]
            is_shown = any(path == name[: len(path)] for name in short)
        if (is_shown or not line) and (line or lines[-1]):
            lines.append(line)
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace) -> int:
    file: Path = args.file
    source = packaged(SOURCE)
    if source is None:
        raise InvalidRequest(f"this installation lacks {SOURCE}: install the package again")
    # Relative to the package, where the file comes from.
    text = re.sub(
        r"(?m)^  directory: .*$",
        "  # directory: voicepacks   # voice packs; default: those of the package",
        source.read_text("utf-8"),
    )
    if args.short:
        text = "# The settings that most people change; without --short all are shown.\n" + shortened(text)
    is_new = False
    try:
        with file.open("x", encoding="utf-8") as target:
            is_new = True
            target.write(text)
    except FileExistsError:
        raise InvalidRequest(f"{file} exists and is left as it is: name another file") from None
    except OSError as error:
        if is_new:  # a part of it would be a valid configuration, too
            file.unlink(missing_ok=True)
        raise InvalidRequest(f"{file} cannot be written: {error.strerror}") from None
    print(f"wrote {file}: tts-worker serve --config {file}")
    return 0
