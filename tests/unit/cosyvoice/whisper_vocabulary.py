"""A small vocabulary in the format of Whisper's ``.tiktoken`` file."""

from __future__ import annotations

import base64
from pathlib import Path


def write_vocabulary(
    file: Path, words: tuple[bytes, ...] = (b"ab", b"ba", b"aba", b" a", b"ab ab", b"\xe4\xbd")
) -> Path:
    """Write all bytes, then ``words``, the last of lowest rank."""
    tokens = [*(bytes([byte]) for byte in range(256)), *words]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    file.write_text("\n".join(lines) + "\n")
    return file
