"""The section ``webrtc`` of the settings."""

from __future__ import annotations

from pydantic import Field, SecretStr

from tts_worker.section import FeatureSection, Section


class IceServerSettings(Section):
    """A STUN or TURN server: ``urls`` such as "turn:turn.example.org:3478"."""

    urls: tuple[str, ...] = Field(min_length=1)
    username: str | None = None
    credential: SecretStr | None = None


class WebRtcSettings(FeatureSection):
    """``POST /webrtc/offer``, which needs the extra "webrtc".

    Attributes:
        ice_servers: STUN and TURN servers; not needed if clients can reach the worker's addresses.
    """

    enabled: bool = True
    max_peers: int = Field(32, ge=1, le=10_000)
    ice_servers: tuple[IceServerSettings, ...] = ()


SECTIONS = {"webrtc": WebRtcSettings}
