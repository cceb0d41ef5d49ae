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

_ACCELERATION = (
    "acceleration: auto (the default) takes the fast paths that give PyTorch's numbers in a check on this machine, "
    "acceleration: off takes none"
)
REMOVED = {
    name: f"removed: {advice}"
    for name, advice in {
        "text.normalize": "numbers are always read, and text.reading (own or reference) says by which rules; "
        "a session leaves its text as written with normalize: false",
        "text.lexicon_file": "text.lexicon takes the path of a file, too",
        "telephony.enabled": "telephony.max_calls: 0 accepts no calls",
        "batch.enabled": "batch.parallel: 0 accepts no batches",
        "quotas": "set registry.quotas_url; workers share quotas under registry.prefix",
        "quotas.redis_url": "set registry.quotas_url",
        "quotas.prefix": "workers share quotas under registry.prefix",
        "models.default": "the first of models.preload, or of engines, is the default: put it first",
        "grpc.max_connections": "server.max_connections applies to every port",
        "grpc.frame_ms": "frames have 20 ms; a client asks for other ones with its option frame_ms",
        "voices.openai_names": "the OpenAI API accepts these names; voices.aliases maps them to other voices",
        "tracing.service_name": "set the environment variable OTEL_SERVICE_NAME",
        "engines.cosyvoice.plan_cache": "plans are stored below XDG_CACHE_HOME, by default ~/.cache",
        "engines.cosyvoice.graphs_dir": "graphs are read from the directory onnx of the bundle",
        "engines.cosyvoice.stride_chunks": "the engine chooses it for its device",
        "engines.cosyvoice.decode_batch": "the engine chooses it for its device",
        "engines.cosyvoice.render_batch": "the engine chooses it for its device",
        "engines.cosyvoice.graphs": _ACCELERATION,
        "engines.cosyvoice.kernels": _ACCELERATION,
        "engines.cosyvoice.compile": _ACCELERATION,
        "engines.cosyvoice.attention": _ACCELERATION,
        "engines.cosyvoice.overlap": _ACCELERATION,
        "engines.cosyvoice.context_tokens": "the bundle's own context_tokens applies, at most 250",
    }.items()
} | {
    name: f"removed: it is {value} for every worker; delete this setting"
    for name, value in {
        "server.max_header_bytes": "32 KiB",
        "server.max_buffered_bytes": "64 MiB",
        "server.header_timeout_s": "10 s",
        "server.body_timeout_s": "60 s",
        "server.heartbeat_s": "20 s",
        "grpc.connection_idle_s": "30 s",
        "session.end_idle_s": "60 s",
        "session.window_ms": "1500 ms",
        "session.max_queued_utterances": "16",
        "session.max_message_chars": "100,000",
        "session.max_messages_per_s": "1,000",
        "webrtc.connect_timeout_s": "15 s",
        "webrtc.silence_timeout_s": "10 s",
        "telephony.join_timeout_s": "10 s",
        "batch.key_share": "0.5",
        "batch.max_items": "1,000",
        "batch.max_chars": "1,000,000",
        "batch.max_running": "100",
        "batch.max_kept": "10,000",
        "voices.watch_interval_s": "1 s",
        "models.min_residency_s": "2 minutes",
        "models.check_interval_s": "30 s",
        "models.max_parallel_loads": "1",
        "ray.look_back_s": "10 s",
        "ray.upscale_delay_s": "10 s",
        "ray.downscale_delay_s": "300 s",
        "hang_timeout_s": "30 s",
        "engines.tone.chunk_ms": "100 ms",
        "engines.cosyvoice.first_tokens": "8",
        "engines.cosyvoice.cached_voices": "4",
        "engines.cosyvoice.smooth_start": "on",
        "engines.cosyvoice.first_chunk_on_device": "on",
    }.items()
}
"""Settings of earlier versions, and what to do instead. An engine is named by its kind."""


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
        case "extra_forbidden" if (removed := REMOVED.get(_removed_name(path, kind))) is not None:
            return SettingProblem(path, removed)
        case "extra_forbidden" if (feature := _OF_FEATURES.get(".".join(map(str, path)))) is not None:
            return SettingProblem(path, f"this installation lacks the feature {feature}")
        case "extra_forbidden":
            similar = difflib.get_close_matches(str(path[-1]), _names(root, path[:-1], kind), n=1)
            return SettingProblem(path, "unknown setting" + (f", did you mean {similar[0]}?" if similar else ""))
        case "union_tag_not_found":
            return SettingProblem((*path, "kind"), f"required; one of {', '.join(ENGINE_KINDS)}")
        case "tuple_type" | "list_type":
            return SettingProblem(path, "must be a list, such as [first, second]")
        case "dict_type" | "model_type":
            return SettingProblem(path, "must be a mapping of names to values")
        case _:
            return SettingProblem(path, details["msg"].removeprefix("Value error, "))


def _removed_name(path: Sequence[str | int], kind: str | None) -> str:
    return ".".join(map(str, path if kind is None else ("engines", kind, *path[2:])))


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
