"""The request to add a voice, of every API: a recording, a style of a voice, or a mix of voices."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tts_worker.callers import Caller
from tts_worker.errors import InvalidRequest
from tts_worker.voices.details import NEUTRAL, VoiceDetails, VoiceMetadata
from tts_worker.voices.enrollment import MAX_PROMPT_CHARS
from tts_worker.voices.files import STYLE_SEPARATOR

MAX_MIX = 8
MAX_NAME_CHARS = 64


class MixPart(BaseModel):
    """A voice of a mix and its weight."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    voice: str = Field(max_length=128)
    weight: float = Field(1.0, gt=0, le=1_000, allow_inf_nan=False)


class NewVoice(VoiceMetadata):
    """A voice to be added.

    Attributes:
        name: Name of the voice: up to 64 letters, digits, _ . or -.
        transcript: The words of the recording; without them only the timbre is cloned.
        style: Adds a style to the voice ``name``, which is then addressed as ``NAME@STYLE``.
        engine: The engine; None selects the first that stores voices.
        mix: Mixes stored voices instead of using a recording.
        prompt: Of a mix: the voice whose prompt audio it uses; None for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    transcript: str = Field("", max_length=MAX_PROMPT_CHARS)
    style: str = Field(NEUTRAL, pattern=r"^\w[\w-]{0,31}$")
    engine: str | None = Field(None, max_length=64)
    mix: tuple[MixPart, ...] = Field((), max_length=MAX_MIX)
    prompt: str | None = Field(None, max_length=128)

    @field_validator("languages", "tags", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """Accept a comma-separated text for a list, as a form sends it."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_mix(self) -> NewVoice:
        if self.mix and len({part.voice for part in self.mix}) < 2:
            raise ValueError("mix needs at least two different voices")
        if self.prompt is not None and not self.mix:
            raise ValueError("prompt belongs to a mix")
        return self

    @classmethod
    def parse(cls, data: Mapping[str, object]) -> NewVoice:
        """Validate fields. Raises InvalidRequest, which names the field."""
        try:
            given = {name: value for name, value in data.items() if value is not None}  # null: left out
            return cls.model_validate(given)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            location = ".".join(str(part) for part in problem["loc"])
            raise InvalidRequest(f"{location}: {problem['msg']}" if location else str(problem["msg"])) from None

    @property
    def stored_name(self) -> str:
        """Name of the folder: with the style, unless it is the neutral one."""
        return self.name if self.style == NEUTRAL else f"{self.name}{STYLE_SEPARATOR}{self.style}"

    def details(
        self, caller: Caller, source: str, figures: Mapping[str, float | None], notes: tuple[str, ...] = ()
    ) -> VoiceDetails:
        """Return what is stored about the voice."""
        return VoiceDetails(
            **self.metadata(),
            owner=caller.key,
            created_at_s=now_s(),
            source=source,
            notes=notes,
            figures=dict(figures),
        )


def now_s() -> float:
    """Time since the epoch, of which a stored voice keeps the date."""
    return datetime.now(timezone.utc).timestamp()
