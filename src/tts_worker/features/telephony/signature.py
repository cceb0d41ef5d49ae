"""Authentication of a provider's connection by the headers of its handshake."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping


def is_signed_by_twilio(headers: Mapping[str, str], path: str, auth_token: str, public_url: str | None) -> bool:
    """Whether ``X-Twilio-Signature`` is the HMAC-SHA1 of the address with the auth token.

    Twilio signs the address that its instruction names. Its own validators accept it with or without the default port,
    and so does this; a final slash is the client library's.

    Args:
        headers: Headers of the handshake.
        path: The requested path.
        auth_token: The account's auth token.
        public_url: What stands before the path; None takes the header ``Host``.
    """
    base = (public_url or f"wss://{headers.get('host', '')}").rstrip("/")
    without_port = base.removesuffix(":443")
    signature = headers.get("x-twilio-signature", "")
    candidates = [f"{prefix}{path}{end}" for prefix in (without_port, f"{without_port}:443") for end in ("", "/")]
    valid = [hmac.compare_digest(twilio_signature(url, auth_token), signature.encode()) for url in candidates]
    return any(valid)


def twilio_signature(url: str, auth_token: str) -> bytes:
    """Compute the signature of a request without form fields, base64."""
    return base64.b64encode(hmac.new(auth_token.encode(), url.encode(), hashlib.sha1).digest())


def is_sent_by_telnyx(headers: Mapping[str, str], auth_token: str) -> bool:
    """Whether the handshake has the streaming auth token."""
    sent = headers.get("x-telnyx-streaming-auth-token", "")
    return hmac.compare_digest(sent.encode(), auth_token.encode())
