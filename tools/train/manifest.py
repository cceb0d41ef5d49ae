"""Manifests of recordings: JSON lines ``{"audio": FILE, "text": TRANSCRIPT}``; files are relative to the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tts_worker.errors import ConfigError


@dataclass(frozen=True)
class ManifestRow:
    """A recording.

    Attributes:
        where: Manifest and line, for messages.
        audio: The file.
        text: What is said.
    """

    where: str
    audio: Path
    text: str


def manifest_rows(manifest: Path) -> Iterator[ManifestRow]:
    """Yield the recordings of a manifest; empty lines are skipped.

    Raises:
        ConfigError: It cannot be read, or is malformed; names the line.
    """
    try:
        lines = manifest.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{manifest}: cannot be read ({error})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{manifest}, line {number}"
        try:
            row = json.loads(line)
            audio, text = row["audio"], row["text"]
        except (ValueError, TypeError, KeyError):
            audio = text = None
        if not isinstance(audio, str) or not isinstance(text, str):
            raise ConfigError(f'{where}: must be {{"audio": FILE, "text": TRANSCRIPT}}')
        yield ManifestRow(where, manifest.parent / audio, text)
