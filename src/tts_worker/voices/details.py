"""What is said about a voice, and the details of a stored one: ``details.json`` beside its ``voice.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tts_worker.errors import BundleError
from tts_worker.voices.files import DETAILS_FILE, STYLE_SEPARATOR, voice_folder

MAX_DETAILS_BYTES = 64 << 10
NEUTRAL = "neutral"
"""The style of a voice without a style in its name."""

LanguageTag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*$")]
Tag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]


class VoiceMetadata(BaseModel):
    """What people say about a voice: the fields that uploads, voice packs and stored voices share.

    Attributes:
        title: Name for people, if it differs from the name of the voice.
        languages: BCP-47 tags; empty for those of the engine.
        tags: Free tags.
        description: Free text.
        gender: Free text.
        license: Terms of use of the recording.
        consent: Whether the speaker consents to the use of the recording, as the uploader states.
    """

    model_config = ConfigDict(frozen=True)

    title: str = Field("", max_length=100)
    languages: tuple[LanguageTag, ...] = Field((), max_length=32)
    tags: tuple[Tag, ...] = Field((), max_length=32)
    description: str = Field("", max_length=500)
    gender: str | None = Field(None, max_length=32)
    license: str | None = Field(None, max_length=200)
    consent: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return these fields, to describe another form of the voice."""
        return {name: getattr(self, name) for name in VoiceMetadata.model_fields}


class VoiceDetails(VoiceMetadata):
    """Description of a stored voice. Unknown keys are ignored, so that newer versions may add some.

    Attributes:
        loudness_lufs: Integrated loudness of its speech; None has it measured when the voice is first used.
        owner: Name of the API key that added the voice.
        created_at_s: Time of creation since the epoch.
        capabilities: What the voice can do beyond its engine.
        has_prompt: Whether it has prompt audio.
        source: How the voice came about: ``recording``, ``mix``, ``pack`` or ``speaker`` (of a tuned model).
        source_hash: SHA-256 of the file of a voice pack.
        notes: Remarks of the enrollment.
        figures: What was measured of the recording (``audio.prompt.PromptFigures``).
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    loudness_lufs: float | None = Field(None, ge=-60, le=0)
    owner: str | None = Field(None, max_length=64)
    created_at_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    capabilities: tuple[Tag, ...] = Field((), max_length=32)
    has_prompt: bool = True
    source: str = Field("recording", max_length=32)
    source_hash: str | None = Field(None, max_length=64)
    notes: tuple[str, ...] = Field((), max_length=20)
    figures: dict[str, float | None] = Field(default_factory=dict, max_length=32)

    def encode(self) -> bytes:
        """Return the content of ``details.json``."""
        return (self.model_dump_json(indent=2, exclude_defaults=True) + "\n").encode()


def read_details(root: Path, name: str) -> VoiceDetails:
    """Read the details of a stored voice; a voice without the file has default values.

    Raises:
        BundleError: The file is malformed.
    """
    file = voice_folder(root, name) / DETAILS_FILE
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_DETAILS_BYTES + 1)
    except FileNotFoundError:
        return VoiceDetails()
    except OSError as error:
        raise BundleError(f"{file}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_DETAILS_BYTES:
        raise BundleError(f"{file}: is larger than {MAX_DETAILS_BYTES} bytes")
    try:
        return VoiceDetails.model_validate_json(raw)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        raise BundleError(f"{file}: {'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}") from None


def split_style(name: str) -> tuple[str, str]:
    """Return the voice and the style of a name such as ``anna@happy``."""
    voice, _, style = name.partition(STYLE_SEPARATOR)
    return voice, style or NEUTRAL
