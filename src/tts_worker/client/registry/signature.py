"""Signed entries: HMAC-SHA256 with a secret that the workers and clients of one fleet share.

Clients send their API key to the address in an entry, so a writer of forged entries could collect keys. The signature
proves that the writer knows the fleet's secret. It covers the whole entry and the key prefix, but not the connection:
an entry can be replayed until it is stale, and nothing is encrypted. The signature is inside ``capabilities``, because
other readers reject a seventh top-level key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from tts_worker.client.registry.entry import MAX_ENTRY_BYTES
from tts_worker.errors import InvalidRequest

_KEY = "signature"
_PURPOSE = b"tts-worker registry entry 1\0"


def sign_entry(raw: bytes, secret: str, prefix: str) -> bytes:
    """Add the signature to the JSON entry ``raw``."""
    entry = json.loads(raw)
    entry["capabilities"][_KEY] = _signature(_canonical(entry), secret, prefix)
    return _canonical(entry)


def verify_entry(raw: bytes, secret: str, prefix: str) -> bytes:
    """Check the signature of the JSON entry ``raw``.

    Returns:
        The signed JSON without the signature; parse this, not ``raw``.

    Raises:
        InvalidRequest: The entry is not a JSON object, or lacks a valid signature for this secret and prefix.
    """
    if len(raw) > MAX_ENTRY_BYTES:
        raise InvalidRequest(f"the entry has more than {MAX_ENTRY_BYTES} bytes")
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest("the entry is not JSON") from None
    capabilities = entry.get("capabilities") if isinstance(entry, dict) else None
    signature = capabilities.pop(_KEY, None) if isinstance(capabilities, dict) else None
    if not isinstance(signature, str):
        raise InvalidRequest("it is not signed, but this client requires signatures")
    signed = _canonical(entry)
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), _signature(signed, secret, prefix).encode()):
        raise InvalidRequest("its signature does not match the fleet's secret")
    return signed


def _canonical(entry: Any) -> bytes:
    """Serialize deterministically; numbers and strings survive a round trip unchanged."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()


def _signature(canonical: bytes, secret: str, prefix: str) -> str:
    message = _PURPOSE + prefix.encode() + b"\0" + canonical
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
