"""Features: folders of ``tts_worker.features`` that can be deleted, and the record by which each says what it adds.

A folder ``features/NAME`` defines ``FEATURE`` in its ``__init__``. The core knows the names only: it reads the records,
and what they refer to imports its modules when it is enabled or called. Features do not import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from tts_worker.feature_names import present

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from tts_worker.audio.encoders import FileSigner
    from tts_worker.audio.output import Marker
    from tts_worker.finding import Finding
    from tts_worker.server.application import Extension
    from tts_worker.server.grpc.models import ModelCatalog
    from tts_worker.server.grpc.server import ExtraPort, GrpcServices
    from tts_worker.server.keys import KeyRing
    from tts_worker.session.conversion import Converter
    from tts_worker.session.hub import SessionHub
    from tts_worker.session.lexicons import LexiconLibrary
    from tts_worker.session.quotas import Quotas
    from tts_worker.session.record import UtteranceExporter
    from tts_worker.settings import Settings

FileCheck = tuple[tuple[str, str], Callable[[], object]]
"""A section and a key of the settings that names a file, and what raises TTSWorkerError if the file cannot be used."""


class WorkerPart(Protocol):
    """What a feature adds to a running worker."""

    def run(self) -> Coroutine[Any, Any, None]:
        """Do the background work until cancelled; called once the engines have started."""


class Registration(Protocol):
    """Makes a worker known to clients."""

    async def announce(self) -> None:
        """Register the ready worker; returns after the first attempt."""

    def refresh(self) -> None:
        """Register again, because the worker has changed, or drains."""

    async def stop(self) -> None:
        """Withdraw the registration."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Another way to run ``serve``, with its flag.

    Attributes:
        help: What the flag does.
        run: Serves until a signal ends it; calls its second argument with the address. Raises TTSWorkerError.
    """

    help: str
    run: Callable[[Settings, Callable[[str], None]], None]


class SayModule(Protocol):
    """Another way for ``say`` to speak than with a worker."""

    def add_arguments(self, parser: ArgumentParser) -> None: ...
    def run(self, args: Namespace) -> int | None:
        """Speak and return the exit code; None if the arguments ask for something else. Raises TTSWorkerError."""


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
        grpc: Returns what adds services to the gRPC server.
        grpc_port: Returns a further gRPC port; None if it is disabled.
        part: Returns what it adds to a worker; None if it is disabled. Raises ConfigError.
        file_checks: Returns the checks of the files that its settings name.
        quotas: Returns the quotas that workers share; None if each counts for itself.
        exporter: Returns what exports ended utterances; None if it is disabled.
        file_signer: Returns what signs whole files; None signs none. Raises ConfigError and MissingExtra.
        marker: Returns what builds the marker of an utterance; None if none is marked. Raises ConfigError.
        converter: Returns what converts speech.
        lexicons: Returns what stores lexicons; None if the worker stores none. Raises ConfigError.
        registration: Returns what registers a worker, from its models and the address of its gRPC server; None if it
            is disabled.
        deployments: Flag of ``serve``, without the dashes -> what runs then.
        commands: Its commands by name.
        say: Its module of the command ``say``, a ``SayModule``.
        checks: Returns what ``doctor`` finds of its libraries.
        extras: The extras that only it needs, by name.
    """

    docs: str = ""
    http: Extension | None = None
    web: Path | None = None
    grpc: GrpcServices | None = None
    grpc_port: Callable[[SessionHub, Settings], ExtraPort | None] | None = None
    part: Callable[[SessionHub, Settings, KeyRing], WorkerPart | None] | None = None
    file_checks: Callable[[Settings], Iterable[FileCheck]] | None = None
    quotas: Callable[[Settings], Quotas | None] | None = None
    exporter: Callable[[Settings], UtteranceExporter | None] | None = None
    file_signer: Callable[[Settings], FileSigner | None] | None = None
    marker: Callable[[Settings], Callable[[], Marker] | None] | None = None
    converter: Callable[[], Converter] | None = None
    lexicons: Callable[[Settings], LexiconLibrary | None] | None = None
    registration: Callable[[SessionHub, Settings, ModelCatalog, str], Registration | None] | None = None
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    say: str = ""
    checks: Callable[[], Iterable[Finding]] | None = None
    extras: Mapping[str, Extra] = field(default_factory=dict)


@cache
def features() -> Mapping[str, Feature]:
    """Return the records of the features that this installation has, by name."""
    return {name: cast(Feature, import_module(f"tts_worker.features.{name}").FEATURE) for name in present()}


def web_folders() -> list[Path]:
    """Return the folders of files for web pages; none without the feature that has the files that all share."""
    folders = {name: feature.web for name, feature in features().items() if feature.web is not None}
    return [*folders.values()] if "page" in folders else []


def find_converter() -> Converter | None:
    """Return what converts speech, if this installation has it."""
    return next((feature.converter() for feature in features().values() if feature.converter is not None), None)


def find_marker(settings: Settings) -> Callable[[], Marker] | None:
    """Return what builds the marker of an utterance, if the settings want one. Raises ConfigError."""
    built = (feature.marker(settings) for feature in features().values() if feature.marker is not None)
    return next(built, None)


def find_file_signer(settings: Settings) -> FileSigner | None:
    """Return what signs whole files, if the settings want it. Raises ConfigError and MissingExtra."""
    built = (feature.file_signer(settings) for feature in features().values() if feature.file_signer is not None)
    return next(built, None)


def find_lexicons(settings: Settings) -> LexiconLibrary | None:
    """Return what stores lexicons, if this installation and its settings have it. Raises ConfigError."""
    built = (feature.lexicons(settings) for feature in features().values() if feature.lexicons is not None)
    return next(built, None)


def feature_commands() -> dict[str, Command]:
    """Return the commands of all features, by name."""
    return {name: command for feature in features().values() for name, command in feature.commands.items()}


def say_modules() -> list[SayModule]:
    """Return the other ways for ``say`` to speak."""
    return [cast(SayModule, import_module(feature.say)) for feature in features().values() if feature.say]
