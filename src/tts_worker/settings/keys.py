"""The key file (``server.key_file``): API keys with names, scopes and quotas.

    keys:
      - {name: app, key: a-long-random-string, scopes: [speak], max_sessions: 20, requests_per_minute: 600,
         characters_per_minute: 20000}
      - {name: studio, key: a-long-random-string, scopes: [speak, enroll], max_voices: 20, max_recording_bytes: 4000000}
      - {name: operator, sha256: 5e88...42d8, scopes: [speak, enroll, admin]}
      - {name: gateway, certificate: gateway.example.com, scopes: [speak]}
      - {name: prometheus, key: another-random-string, scopes: []}

``server.keys`` checks the keys of callers against it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError, model_validator

from tts_worker.callers import ALL_SCOPES, ApiScope
from tts_worker.errors import ConfigError
from tts_worker.section import Section
from tts_worker.settings.load import read_yaml
from tts_worker.settings.problems import invalid_settings
from tts_worker.settings.sections import MIN_KEY_CHARS


class ApiKey(Section):
    """An API key.

    Attributes:
        name: Name in logs and metrics.
        key: The key in clear text; exclusive with ``sha256``.
        sha256: The SHA-256 of the key in hexadecimal.
        certificate: Common name of a client certificate that identifies the caller instead of a key.
        scopes: Permissions; an empty set allows reading only.
        max_sessions: Sessions that may be open at the same time; None for no limit.
        requests_per_minute: Rate limit; None for no limit.
        max_voices: Voices that may be stored with the key; None for no limit.
        max_recording_bytes: Size of a recording of a voice; None for the worker's limit.
        characters_per_minute: Limit on the text that is spoken; None for no limit.
        source_seconds_per_minute: Limit on the source audio that is converted; None for no limit.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
    key: SecretStr | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    certificate: str | None = Field(None, min_length=1, max_length=64)
    scopes: frozenset[ApiScope] = frozenset({ApiScope.SPEAK})
    max_sessions: int | None = Field(None, ge=1)
    requests_per_minute: float | None = Field(None, gt=0)
    max_voices: int | None = Field(None, ge=0)
    max_recording_bytes: int | None = Field(None, ge=1)
    characters_per_minute: float | None = Field(None, gt=0)
    source_seconds_per_minute: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _one_form(self) -> ApiKey:
        if sum(form is not None for form in (self.key, self.sha256, self.certificate)) != 1:
            raise ValueError("set either key or sha256, or certificate")
        if self.key is not None and len(self.key.get_secret_value()) < MIN_KEY_CHARS:
            raise ValueError(f"a key needs at least {MIN_KEY_CHARS} characters")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.key is None:
            return bytes.fromhex(self.sha256 or "")
        return hashlib.sha256(self.key.get_secret_value().encode()).digest()


class KeyFile(Section):
    """The content of a key file.

    Attributes:
        keys: The API keys.
        token_secret: Signs the tokens of ``POST /v1/tokens``, so that workers with this file accept each other's; None
            has each worker sign with another secret.
    """

    keys: tuple[ApiKey, ...] = ()
    token_secret: SecretStr | None = Field(None, min_length=MIN_KEY_CHARS)

    @model_validator(mode="after")
    def _unique(self) -> KeyFile:
        names = [key.name for key in self.keys]
        if len(set(names)) < len(names):
            raise ValueError("two keys have the same name")
        certificates = [key.certificate for key in self.keys if key.certificate is not None]
        if len(set(certificates)) < len(certificates):
            raise ValueError("two keys have the same certificate")
        return self


_EXAMPLE = "keys: [{name: app, key: a-long-random-string}]"


def read_key_file(file: Path) -> KeyFile:
    """Read a key file. Raises ConfigError, which names the setting and the entry and never contains a key."""
    try:
        return KeyFile.model_validate(read_yaml(file, "server.key_file: ", _EXAMPLE))
    except ValidationError as error:
        invalid = invalid_settings(error, KeyFile, f" in {file}")
        raise ConfigError(f"server.key_file: {invalid.message}") from None


def plain_keys(keys: tuple[str, ...]) -> tuple[ApiKey, ...]:
    """Convert ``server.api_keys`` to keys with all scopes and no quota."""
    return tuple(
        ApiKey(name=f"api-key-{number}", key=SecretStr(key), scopes=ALL_SCOPES) for number, key in enumerate(keys, 1)
    )
