"""Features: folders of ``tts_worker.features`` that can be deleted, and the record by which each says what it adds.

A folder ``features/NAME`` defines ``FEATURE`` in its ``__init__``. The core knows the names only: it reads the records,
and what they refer to imports its modules when it is enabled or called. Features do not import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from tts_worker.server.application import Extension
    from tts_worker.server.keys import KeyRing
    from tts_worker.session.hub import SessionHub
    from tts_worker.settings import Settings

NAMES = ("compat", "conversion", "webrtc", "telephony", "batch", "fleet", "tracing", "page", "agent")
"""The features, in the order in which they add to the worker and its server."""


class WorkerPart(Protocol):
    """What a feature adds to a running worker."""

    def run(self) -> Coroutine[Any, Any, None]:
        """Do the background work until cancelled; called once the engines have started."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``tts-worker``.

    Attributes:
        summary: What it does, for the list of commands.
        module: Its module, with ``add_arguments(parser)`` and ``run(args)``.
        examples: For its help, without the program's name.
    """

    summary: str
    module: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the distribution.

    Attributes:
        modules: Modules that it installs.
        purpose: What it is for.
        python: Oldest Python on which it can be installed, where that is not every Python of the package.
    """

    modules: tuple[str, ...]
    purpose: str
    python: tuple[int, int] = (3, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What a feature adds. Its functions check the settings themselves.

    Attributes:
        docs: Its page of the documentation, relative to ``docs``.
        http: Adds routes to the HTTP server.
        web: Folder of files for web pages.
        part: Returns what it adds to a worker; None if it is disabled. Raises ConfigError.
        commands: Its commands by name.
        extras: The extras that only it needs, by name.
    """

    docs: str = ""
    http: Extension | None = None
    web: Path | None = None
    part: Callable[[SessionHub, Settings, KeyRing], WorkerPart | None] | None = None
    commands: Mapping[str, Command] = field(default_factory=dict)
    extras: Mapping[str, Extra] = field(default_factory=dict)


@cache
def features() -> Mapping[str, Feature]:
    """Return the records of the features that this installation has, by name."""
    return {name: cast(Feature, import_module(f"tts_worker.features.{name}").FEATURE) for name in _present()}


def _present() -> Iterator[str]:
    for name in NAMES:
        with suppress(ModuleNotFoundError):  # the folder of all features
            spec = find_spec(f"tts_worker.features.{name}")
            if spec is not None and spec.origin is not None:  # not a deleted folder whose byte code is left
                yield name


def web_folders() -> list[Path]:
    """Return the folders of files for web pages; none without the feature that has the files that all share."""
    folders = {name: feature.web for name, feature in features().items() if feature.web is not None}
    return [*folders.values()] if "page" in folders else []


def feature_commands() -> dict[str, Command]:
    """Return the commands of all features, by name."""
    return {name: command for feature in features().values() for name, command in feature.commands.items()}
