"""SHA-256 of each chunk of audio, for clients that ask for it with ``?checksums=true``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tts_worker.errors import InvalidRequest

CHECKSUMS = "checksums"
"""Query parameter."""


def wants_checksums(params: Mapping[str, str]) -> bool:
    """Whether the query parameters ask for checksums. Raises InvalidRequest."""
    value = params.get(CHECKSUMS, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{CHECKSUMS} must be true or false")
    return value == "true"


def checksum_field(data: bytes, *, wanted: bool) -> dict[str, Any]:
    """Return the field of a message that carries ``data`` as base64: none unless ``wanted``."""
    return {"sha256": hashlib.sha256(data).hexdigest()} if wanted else {}
