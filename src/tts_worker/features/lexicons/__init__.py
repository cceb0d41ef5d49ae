"""``/v1/lexicons``: pronunciation lexicons that are stored, versioned and used by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Feature, FileCheck

if TYPE_CHECKING:
    from tts_worker.server.application import Application
    from tts_worker.session.lexicons import LexiconLibrary
    from tts_worker.settings import Settings


def _add_routes(app: Application) -> None:
    from tts_worker.features.lexicons import routes

    routes.add_routes(app)


def _file_checks(settings: Settings) -> Iterator[FileCheck]:
    from tts_worker.features.lexicons.settings import LexiconSettings
    from tts_worker.settings import check_directory

    if (directory := settings.section(LexiconSettings).directory) is not None:
        check = partial(check_directory, "lexicons.directory", directory, must_exist=False)
        yield ("lexicons", "directory"), check


def _library(settings: Settings) -> LexiconLibrary | None:
    from tts_worker.features.lexicons.settings import LexiconSettings

    for _, check in _file_checks(settings):
        check()
    if (directory := settings.section(LexiconSettings).directory) is None:
        return None
    from tts_worker.features.lexicons.library import StoredLexicons

    return StoredLexicons(directory)


FEATURE = Feature(
    docs="lexicons.md",
    http=_add_routes,
    file_checks=_file_checks,
    lexicons=_library,
    commands={
        "lexicon": Command(
            "add, list, show and delete pronunciation lexicons of a running worker",
            "tts_worker.features.lexicons.command",
            (
                "lexicon add brands brands.yaml",
                "lexicon --url https://tts.example.com add brands brands.pls",
                "lexicon show brands@2",
            ),
        )
    },
)
