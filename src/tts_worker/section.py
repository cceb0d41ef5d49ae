"""The base of the sections of the settings: of those of the core, and those that features declare."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]


class Section(BaseModel):
    """A section: keys, bounds and defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FeatureSection(Section):
    """A section that a feature declares: in ``SECTIONS`` of its module ``settings``, by name."""

    def check_with(self, settings: Any) -> None:
        """Check the section beside the others, which ``settings`` has. Raises ValueError."""
