"""The HTTP application while it is put together: what a part of the server gets to add its routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tts_worker.server.access import PathRules
from tts_worker.server.keys import KeyRing
from tts_worker.server.limits import ApiLimits
from tts_worker.server.page import WebFiles
from tts_worker.server.routing import Routes
from tts_worker.server.vendor_apis import VendorApis
from tts_worker.session.hub import SessionHub
from tts_worker.settings import Settings

Part = TypeVar("Part")


@dataclass(slots=True)
class Application:
    """The parts of an HTTP application.

    Attributes:
        hub: Opens sessions.
        settings: The settings of the worker.
        keys: The API keys.
        worker_parts: What features have added to the worker; see ``part``.
        web: The files of web pages.
        limits: Limits of a request or connection.
        routes: The routes so far.
        paths: Rules for their paths.
        apis: The APIs of other vendors.
        model_names: Names in the list of models besides the engines. They select nothing.
    """

    hub: SessionHub
    settings: Settings
    keys: KeyRing = field(default_factory=KeyRing)
    worker_parts: Sequence[object] = ()
    web: WebFiles = field(default_factory=WebFiles)
    limits: ApiLimits = field(init=False)
    routes: Routes = field(default_factory=Routes)
    paths: PathRules = field(default_factory=PathRules)
    apis: VendorApis = field(default_factory=VendorApis)
    model_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = ApiLimits.of(self.settings)

    def part(self, kind: type[Part]) -> Part | None:
        """Return the part of the worker of this class; None if there is none."""
        return next((part for part in self.worker_parts if isinstance(part, kind)), None)


Extension = Callable[[Application], None]
"""Adds routes."""
