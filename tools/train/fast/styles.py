"""Styles of Kokoro's voices, from the npm package kokoro-js (Apache-2.0): ``npm pack kokoro-js@1.2.1``."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.errors import ConfigError

ARCHIVE = "kokoro-js-1.2.1.tgz"
ARCHIVE_SHA256 = "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
STYLE_WIDTH = 256
_DOWNLOAD = f"npm pack kokoro-js@1.2.1 writes {ARCHIVE}"


def read_style(archive: Path, name: str) -> Floats:
    """Read a style from the archive.

    Args:
        archive: The package as npm packs it.
        name: Kokoro's name of the voice: ``am_michael``.

    Returns:
        ``[N, 256]``: the style for a text of so many phonemes, less one.

    Raises:
        ConfigError: The archive is missing or does not have the expected hash, or has no such style.
    """
    try:
        content = archive.read_bytes()
    except OSError as error:
        raise ConfigError(f"the styles cannot be read ({error.strerror}): {archive}; {_DOWNLOAD}") from None
    if hashlib.sha256(content).hexdigest() != ARCHIVE_SHA256:
        raise ConfigError(f"{archive} does not have the expected hash; {_DOWNLOAD}")
    with tarfile.open(archive) as package:
        try:
            file = package.extractfile(f"package/voices/{name}.bin")
        except KeyError:
            file = None
        if file is None:
            raise ConfigError(f"{archive.name} has no style {name!r}")
        return np.frombuffer(file.read(), "<f4").reshape(-1, STYLE_WIDTH).astype(np.float32)
