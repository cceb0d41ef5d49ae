"""The section ``telephony`` of the settings."""

from __future__ import annotations

from pydantic import Field, SecretStr

from tts_worker.section import FeatureSection, Milliseconds


class TelephonySettings(FeatureSection):
    """Telephone calls: the media streams ``/twilio`` and ``/telnyx``, and ``/v1/calls/{call}`` for agents.

    Attributes:
        twilio_auth_token: Verifies the signature of Twilio's connections. Without it a stream needs an API key as its
            parameter ``key``, if the worker requires keys.
        telnyx_auth_token: The streaming auth token that Telnyx sends; likewise.
        public_url: What stands before the path in the address that Twilio connects to (wss://voice.example.com), since
            it signs that address; None takes the host of the request.
        lead_ms: Playout lead. The call has a jitter buffer of this size; a STOP clears it.
        max_calls: Media streams that may be connected; 0 accepts no calls.
    """

    twilio_auth_token: SecretStr | None = Field(None, min_length=8)
    telnyx_auth_token: SecretStr | None = Field(None, min_length=8)
    public_url: str | None = Field(None, pattern=r"^wss?://[^/?#@\s]+(/[^?#\s]*)?$")
    lead_ms: Milliseconds = 200.0
    max_calls: int = Field(256, ge=0, le=100_000)


SECTIONS = {"telephony": TelephonySettings}
