"""Validation of requests by pydantic models: errors name the invalid field, never its value."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tts_worker.errors import InvalidRequest

_Model = TypeVar("_Model", bound=BaseModel)


def validate(kind: type[_Model], data: object) -> _Model:
    """Validate a message, a body or query parameters.

    Raises:
        InvalidRequest: Names the invalid field.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        location = ".".join(str(part) for part in problem["loc"])
        raise InvalidRequest(f"{location}: {problem['msg']}" if location else str(problem["msg"])) from None
