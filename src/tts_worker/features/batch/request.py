"""The body of ``POST /v1/batch``."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.errors import InvalidRequest, TextTooLong
from tts_worker.server.validation import Fields
from tts_worker.text import markup
from tts_worker.text.decoding import replace_surrogates
from tts_worker.types import BREAK_CHARS_PER_S, BYTES_PER_SAMPLE, SessionOptions

_BREAK = re.compile(rf"<break[^<>]{{0,{markup.TAG_LIMIT}}}>", re.IGNORECASE)

MAX_ITEMS = 1_000
MAX_CHARS = 1_000_000


class _WithLexicon(Fields):
    """Has a lexicon, which is stored only if there is one: workers without that field read the other batches.

    Attributes:
        lexicon: Word -> spelling or /phonemes/, or the names of stored lexicons.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lexicon: dict[str, Any] | str | None = None

    @model_serializer(mode="wrap")
    def _without_null(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.lexicon is None:
            del fields["lexicon"]
        return fields


class BatchItem(_WithLexicon):
    """A text of a batch. What it leaves out is that of the batch.

    Attributes:
        id: Name of the item in the results; its number by default.
        input: The text.
    """

    id: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")
    input: Annotated[str, AfterValidator(replace_surrogates)]
    voice: str | None = Field(None, max_length=128)
    speed: FiniteFloat | None = None
    seed: int | None = None
    language: str | None = Field(None, max_length=35)
    instructions: str | None = Field(None, max_length=4_096)


class BatchRequest(_WithLexicon):
    """Many texts; the other fields are the defaults of the items.

    Attributes:
        items: The texts.
        response_format: Format of each item's audio.
        sample_rate: 8000 to 48000 Hz; None selects 24000, and 8000 for mulaw and alaw.
    """

    items: tuple[BatchItem, ...] = Field(min_length=1)
    response_format: AudioFormat = AudioFormat.MP3
    sample_rate: int | None = Field(None, ge=8_000, le=48_000)
    voice: str | None = Field(None, max_length=128)
    model: str | None = Field(None, max_length=128)
    speed: FiniteFloat = 1.0
    seed: int = 0
    language: str | None = Field(None, max_length=35)
    instructions: str | None = Field(None, max_length=4_096)

    @model_validator(mode="after")
    def _name(self) -> BatchRequest:
        items = [
            item if item.id else item.model_copy(update={"id": f"{number:05}"})
            for number, item in enumerate(self.items, 1)
        ]
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            if first.setdefault(item.id, index) != index:
                raise ValueError(f"items.{index}: has the id of items.{first[item.id]}")
        object.__setattr__(self, "items", tuple(items))
        return self

    @property
    def rate_hz(self) -> int:
        """The sample rate of the audio."""
        return self.sample_rate or self.response_format.default_rate_hz

    @property
    def chars(self) -> int:
        """Characters of the texts; silence counts as text that takes as long."""
        return sum(len(item.input) for item in self.items) + int(self.break_s * BREAK_CHARS_PER_S)

    @property
    def break_s(self) -> float:
        """Silence that the texts ask for, in seconds."""
        tags = (tag.group() for item in self.items for tag in _BREAK.finditer(item.input))
        return sum(markup.break_ms(markup.values_of(tag)) or 0 for tag in tags) / 1000

    @property
    def break_bytes(self) -> int:
        """Size of that silence in a format of a constant rate; 0 in others, which need little for it."""
        bytes_per_s = {
            AudioFormat.PCM: BYTES_PER_SAMPLE * self.rate_hz,
            AudioFormat.WAV: BYTES_PER_SAMPLE * self.rate_hz,
            AudioFormat.MULAW: self.rate_hz,
            AudioFormat.ALAW: self.rate_hz,
        }
        return int(self.break_s * bytes_per_s.get(self.response_format, 0))

    @property
    def text_bytes(self) -> int:
        """Size of the texts, instructions and lexicons."""
        texts = sum(len(item.input.encode()) + len((item.instructions or "").encode()) for item in self.items)
        return texts + sum(len(json.dumps(lexicon)) for lexicon in self.lexicons)

    @property
    def lexicons(self) -> list[dict[str, Any] | str]:
        """The lexicons of the batch and of its items."""
        return [each.lexicon for each in (self, *self.items) if each.lexicon]

    def check(self) -> None:
        """Check what concerns the whole batch.

        Raises:
            InvalidRequest: There are too many items, or the format does not support the sample rate.
            TextTooLong: The items have too much text together.
        """
        if len(self.items) > MAX_ITEMS:
            raise InvalidRequest(f"a batch may have at most {MAX_ITEMS} items")
        if self.chars > MAX_CHARS:
            raise TextTooLong(f"a batch may have at most {MAX_CHARS} characters")
        open_encoder(self.response_format, self.rate_hz)

    def options(self, item: BatchItem) -> SessionOptions:
        """Return the options of an item's session: a download, which the scheduler serves behind calls."""
        return SessionOptions(
            voice=item.voice if item.voice is not None else self.voice,
            model=self.model,
            speed=item.speed if item.speed is not None else self.speed,
            seed=item.seed if item.seed is not None else self.seed,
            language=item.language if item.language is not None else self.language,
            instruct=item.instructions if item.instructions is not None else self.instructions,
            lexicon=item.lexicon if item.lexicon is not None else self.lexicon,
            realtime=False,
            raw_chunks=True,
            sample_rate=self.rate_hz,
        )
