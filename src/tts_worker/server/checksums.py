"""SHA-256 of each chunk of audio, for clients that ask for it with ``?checksums=true``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tts_worker.server.validation import flag

CHECKSUMS = "checksums"
"""Query parameter."""

SHA256 = "sha256"
"""Field of a message or record that carries audio: lower-case hexadecimal."""


def describe_checksums(described: dict[str, Any]) -> dict[str, Any]:
    """Add the query parameter to the OpenAPI description of a route."""
    parameter = {
        "name": CHECKSUMS,
        "in": "query",
        "required": False,
        "description": "Add the SHA-256 of the audio to each message that carries audio",
        "schema": {"type": "boolean", "default": False},
    }
    return {**described, "parameters": [*described.get("parameters", ()), parameter]}


def wants_checksums(params: Mapping[str, str]) -> bool:
    """Whether the query parameters ask for checksums. Raises InvalidRequest."""
    return flag(params, CHECKSUMS)


def checksum_field(data: bytes, *, wanted: bool) -> dict[str, Any]:
    """Return the field of a message that carries ``data`` as base64: none unless ``wanted``."""
    return {SHA256: hashlib.sha256(data).hexdigest()} if wanted else {}
