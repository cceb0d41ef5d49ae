"""Validation of requests by pydantic models: errors name the invalid field, never its value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tts_worker.audio.decode import RECORDING_FORMATS
from tts_worker.errors import InvalidRequest

MULTIPART = "multipart/form-data"
LIVE_TYPE = "audio/pcm"
"""Content type of mono s16le that is still being spoken; its parameter is the sample rate."""

PROMPT_AUDIO = "3 to 30 s of one speaker"
"""Description of a recording of which a voice is made."""

_MAX_NAME_CHARS = 64
"""Of the name of a field in an error, which the client chooses if the field is unknown."""

_Model = TypeVar("_Model", bound=BaseModel)


class Fields(BaseModel):
    """What a client sends. Null stands for a field that is left out; clients send it for what they do not set."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


def validate(kind: type[_Model], data: object) -> _Model:
    """Validate a message, a body or query parameters.

    Raises:
        InvalidRequest: Names the invalid field.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        location = ".".join(str(part)[:_MAX_NAME_CHARS] for part in problem["loc"])
        message = _message(problem)
        raise InvalidRequest(f"{location}: {message}" if location else message) from None


def _message(problem: ErrorDetails) -> str:
    """Describe a problem in the words of JSON; pydantic names types of Python."""
    match problem["type"]:
        case "tuple_type" | "list_type":
            return "must be a list"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "must be an object"
        case "too_short" if problem["ctx"]["min_length"] == 1:
            return "must have at least 1 item"
        case "value_error":
            return str(problem["ctx"]["error"])
    return problem["msg"]


def flag(params: Mapping[str, str], name: str) -> bool:
    """Return a query parameter that is true or false, and false without it. Raises InvalidRequest."""
    value = params.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false")
    return value == "true"


@cache
def _schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """JSON schema of a model; several routes have the same one, which takes milliseconds to make."""
    return kind.model_json_schema(ref_template="#/components/schemas/{model}")


def query_parameters(kind: type[BaseModel], *names: str) -> dict[str, Any]:
    """Describe the query of a route that validates it itself, for OpenAPI; all of its parameters unless named."""
    properties = deepcopy(_schema_of(kind))["properties"]
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": properties[name].pop("description", ""),
                "schema": properties[name],
            }
            for name in names or properties
        ]
    }


def request_body(kind: type[BaseModel], *media_types: str) -> dict[str, Any]:
    """Describe the body of a route that validates it itself, for OpenAPI (see ``api_docs``). The default is JSON."""
    schema = deepcopy(_schema_of(kind))
    content = {media_type: {"schema": schema} for media_type in media_types or ("application/json",)}
    return {"requestBody": {"required": True, "content": content}}


def upload_body(
    kind: type[BaseModel],
    media_types: Iterable[str],
    recordings: Mapping[str, str],
    *,
    optional: Collection[str] = (),
    live: bool = False,
    formats: str = RECORDING_FORMATS,
) -> dict[str, Any]:
    """Describe a body with recordings for OpenAPI: files of a multipart form, base64 text in other bodies.

    Args:
        kind: Its other fields.
        media_types: What the route takes.
        recordings: Description of each recording by its field.
        optional: Those of them that may be missing.
        live: Whether the body may also be live audio, with the other fields in the URL.
        formats: Formats of the files.
    """
    required = [name for name in recordings if name not in optional]
    described = request_body(kind, *media_types)
    for media_type, content in described["requestBody"]["content"].items():
        encoding = {"format": "binary"} if media_type == MULTIPART else {"contentEncoding": "base64"}
        schema = dict(content["schema"])
        files = {
            name: {"type": "string", **encoding, "description": f"{text} as {formats}"}
            for name, text in recordings.items()
        }
        schema["properties"] = {**files, **schema["properties"]}
        if names := [*required, *schema.get("required", ())]:
            schema["required"] = names
        content["schema"] = schema
    if live:
        described["requestBody"]["content"][LIVE_TYPE] = {
            "schema": {"type": "string", "format": "binary", "description": f"s16le mono, as {LIVE_TYPE};rate=16000"}
        }
    return described
