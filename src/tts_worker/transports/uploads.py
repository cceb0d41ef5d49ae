"""Requests that bring a recording along: form fields or JSON in, plain fields and bytes out.

Owns how a body is read (multipart, URL-encoded or JSON) and the bounds of its parts. What a client names is never
opened: a recording is the bytes in the request or nothing. It must not know what the fields mean.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from tts_worker.errors import InvalidRequest, OverCapacity, TextTooLong
from tts_worker.models.enrolment import MAX_PROMPT_BYTES

log = logging.getLogger(__name__)

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 1 << 20
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Body:
    """``fields``: what was not a file, as it came (strings in a form). ``files``: by field name."""

    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def recording(self, name: str) -> bytes:
        """The file in field ``name``, or the base64 there. Raises InvalidRequest; a path is not followed."""
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
                f"{name} must be the recording itself, as a file in a form or as base64; paths are not followed"
            ) from None


async def read_body(request: Request) -> Body:
    """The body of a request, whatever its content type says it is. Raises InvalidRequest, TextTooLong."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        return await _read_form(request)
    try:
        data = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is neither a form nor valid JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest("the body must be a JSON object")
    return Body(data)


async def _read_form(request: Request) -> Body:
    # A broken form ends here with Starlette's HTTPException(400), which the application answers like our own.
    try:
        return await _parse_form(request)
    except OSError as error:  # a large recording is kept in a temporary file
        log.error("a form cannot be kept: %s", error.strerror)
        raise OverCapacity("the worker cannot keep the upload", retry_after_s=_RETRY_AFTER_S) from None


async def _parse_form(request: Request) -> Body:
    body = Body()
    async with request.form(max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                body.files[name] = await _read_file(value)
            else:
                body.fields[name] = value
    return body


async def _read_file(upload: UploadFile) -> bytes:
    data = await upload.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise TextTooLong(f"a recording may have at most {MAX_PROMPT_BYTES >> 20} MiB")
    return data
