"""Parses request bodies with a recording: multipart, URL-encoded or JSON, with bounds on their parts.

Paths and URLs in a request are never opened: a recording is the bytes in the request.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from tts_worker.errors import InvalidRequest, OverCapacity, TextTooLong
from tts_worker.server.validation import LIVE_TYPE
from tts_worker.voices.enrollment import MAX_PROMPT_BYTES

log = logging.getLogger(__name__)

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 1 << 20
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed body.

    Attributes:
        fields: Fields that are not files, unconverted (strings in a form).
        files: File contents by field name.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def without(self, name: str) -> dict[str, Any]:
        """Return the fields besides that of the recording."""
        return {key: value for key, value in self.fields.items() if key != name}

    def only_recording(self, name: str) -> bytes:
        """Return the one file of a form, in any field, otherwise ``recording``. Raises like it."""
        return next(iter(self.files.values())) if self.files else self.recording(name)

    def recording(self, name: str) -> bytes:
        """Return the file in field ``name``, or decode its base64 text.

        Raises:
            InvalidRequest: The field is missing, or holds neither.
        """
        if name in self.files:
            return self.files[name]
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidRequest(f"{name} is missing: upload the recording as a file in a multipart form")
        encoded = value.partition(";base64,")[2] if value.startswith("data:") else value
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(
                f"{name} must be the recording itself, as a file in a form or as base64; paths are not opened"
            ) from None


def live_rate_hz(request: Request) -> int | None:
    """Return the sample rate of a body of live audio; None for another body. Raises InvalidRequest."""
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    if message.get_content_type() != LIVE_TYPE:
        return None
    rate = message.get_param("rate", "")
    if not isinstance(rate, str) or not re.fullmatch("[0-9]{4,6}", rate):
        raise InvalidRequest(f"content-type: the rate is missing, as in {LIVE_TYPE};rate=16000")
    return int(rate)


async def read_body(request: Request, *, max_files: int = 1, max_file_bytes: int = MAX_PROMPT_BYTES) -> Body:
    """Parse a body by its content type: a form, otherwise JSON.

    Args:
        request: The request.
        max_files: Files of a form.
        max_file_bytes: Size of each.

    Raises:
        InvalidRequest: The body is not valid.
        TextTooLong: The recording is too large.
        OverCapacity: A large recording cannot be stored.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _read_form(request, max_files, max_file_bytes)
    # curl -d calls JSON a form as well.
    if kind == "application/x-www-form-urlencoded" and not (await request.body()).lstrip().startswith(b"{"):
        return await _read_form(request, max_files, max_file_bytes)
    try:
        data = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is neither a form nor valid JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object")
    return Body(data)


async def _read_form(request: Request, max_files: int, max_file_bytes: int) -> Body:
    # Starlette raises HTTPException(400) for a malformed form; the application answers it like a worker error.
    try:
        return await _parse_form(request, max_files, max_file_bytes)
    except OSError as error:  # Starlette stores large files in a temporary file
        log.error("cannot store an upload: %s", error.strerror)
        raise OverCapacity("the worker cannot store the upload", retry_after_s=_RETRY_AFTER_S) from None


async def _parse_form(request: Request, max_files: int, max_file_bytes: int) -> Body:
    body = Body()
    async with request.form(max_files=max_files, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                body.files[name] = await _read_file(value, max_file_bytes)
            else:
                body.fields[name] = value
    return body


async def _read_file(upload: UploadFile, max_bytes: int) -> bytes:
    data = await upload.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TextTooLong(f"a file may have at most {max_bytes >> 20} MiB")
    return data
