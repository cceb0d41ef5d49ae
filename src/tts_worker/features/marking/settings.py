"""The section ``marking`` of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tts_worker.section import FeatureSection

OFF = "off"
WATERMARK = "watermark"
MAX_ID = 2**32 - 1


class MarkingSettings(FeatureSection):
    """What marks speech as synthetic.

    Attributes:
        marker: ``off``, ``watermark``, or the name of an entry point of the group ``tts_worker.markers``.
        deployment_id: What the watermark says besides "synthetic": 32 bits, such as 0x5eed1234.
        certificate: PEM file of the certificate chain with which whole WAV and MP3 files are signed; None signs none.
        key: PEM file of its private key, for ES256; None if it is in the certificate file.
    """

    marker: str = Field(OFF, min_length=1, max_length=128)
    deployment_id: Annotated[int, Field(ge=0, le=MAX_ID)] = 0
    certificate: Path | None = None
    key: Path | None = None

    @field_validator("marker", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return OFF if value is False else value  # YAML reads off as false

    @field_validator("deployment_id", mode="before")
    @classmethod
    def _parse_id(cls, value: object) -> object:
        """Take hexadecimal text, which the environment and --set have."""
        if isinstance(value, str) and value.lower().startswith("0x"):
            try:
                return int(value, 16)
            except ValueError:
                raise ValueError(f"{value!r} is not a number such as 0x5eed1234") from None
        return value

    @model_validator(mode="after")
    def _check_pair(self) -> MarkingSettings:
        if self.certificate is None and self.key is not None:
            raise ValueError("key requires certificate")
        return self


SECTIONS = {"marking": MarkingSettings}
