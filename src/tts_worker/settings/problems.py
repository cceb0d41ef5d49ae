"""Invalid settings: each with the path of its key, a plain message, and the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tts_worker.errors import ConfigError
from tts_worker.feature_names import SECTIONS
from tts_worker.settings.engines import ENGINE_KINDS

_OF_FEATURES = {section: feature for feature, sections in SECTIONS.items() for section in sections}


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One invalid setting; ``path`` are the keys that lead to it, empty for a fault of the whole."""

    path: tuple[str | int, ...]
    message: str

    @property
    def key(self) -> str:
        """The path as it is written with ``--set``."""
        return ".".join(str(part) for part in self.path) or "(top level)"


class InvalidSettings(ConfigError):
    """Settings are invalid.

    Args:
        problems: All that is invalid.
        source: Where they come from, for the message.
    """

    def __init__(self, problems: Sequence[SettingProblem], source: str = "") -> None:
        text = "; ".join(f"{problem.key}: {problem.message}" for problem in problems)
        super().__init__(f"invalid settings{source}: {text}")
        self.problems = tuple(problems)


def invalid_settings(error: ValidationError, root: type[BaseModel], source: str) -> InvalidSettings:
    """Describe the invalid settings of ``root`` by key; ``source`` says where they come from, for the message."""
    return InvalidSettings([_problem(details, root) for details in error.errors()], source)


def _problem(details: Any, root: type[BaseModel]) -> SettingProblem:
    path: tuple[str | int, ...] = tuple(details["loc"])
    kind = None
    if path[:1] == ("engines",) and len(path) > 2 and path[2] in ENGINE_KINDS:
        kind = str(path[2])  # pydantic inserts the kind of an engine
        path = (*path[:2], *path[3:])
    match details["type"]:
        case "extra_forbidden" if (feature := _OF_FEATURES.get(".".join(map(str, path)))) is not None:
            return SettingProblem(path, f"this installation lacks the feature {feature}")
        case "extra_forbidden":
            similar = difflib.get_close_matches(str(path[-1]), _names(root, path[:-1], kind), n=1)
            return SettingProblem(path, "unknown setting" + (f", did you mean {similar[0]}?" if similar else ""))
        case "union_tag_not_found" | "union_tag_invalid":
            return SettingProblem((*path, "kind"), f"must be one of {', '.join(ENGINE_KINDS)}")
        case "tuple_type" | "list_type":
            return SettingProblem(path, "must be a list, such as [first, second]")
        case "dict_type" | "model_type":
            return SettingProblem(path, "must be a mapping of names to values")
        case _:
            return SettingProblem(path, details["msg"].removeprefix("Value error, "))


def _names(root: type[BaseModel], path: Sequence[str | int], kind: str | None) -> list[str]:
    """Return the settings that a section has; ``kind`` is that of an engine."""
    kinds: list[Any] = [root]
    for part in path:
        kinds = [member for each in kinds for member in _members(each, part)]
    models = [each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)]
    if kind is not None:
        models = [each for each in models if kind in get_args(each.model_fields["kind"].annotation)]
    return sorted({name for model in models for name in model.model_fields})


def _members(kind: Any, part: str | int) -> list[Any]:
    """Return the types that a part of a section, mapping or list can have."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return [] if field is None else _alternatives(field.annotation)
    arguments = get_args(kind)
    return _alternatives(arguments[1 if get_origin(kind) is dict else 0]) if arguments else []


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for member in get_args(annotation) for each in _alternatives(member)]
    return [annotation]
