"""``/v1/batch``: many texts in one request, synthesized behind calls and kept for a while."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Feature, FileCheck, WorkerPart

if TYPE_CHECKING:
    from tts_worker.server.application import Application
    from tts_worker.server.keys import KeyRing
    from tts_worker.session.hub import SessionHub
    from tts_worker.settings import Settings


def _add_routes(app: Application) -> None:
    from tts_worker.features.batch.settings import BatchSettings

    if app.settings.section(BatchSettings).parallel:
        from tts_worker.features.batch import routes

        routes.add_routes(app)


def _file_checks(settings: Settings) -> Iterator[FileCheck]:
    from tts_worker.features.batch.settings import BatchSettings
    from tts_worker.settings import check_directory

    if (directory := settings.section(BatchSettings).directory) is not None:
        check = partial(check_directory, "batch.directory", directory, must_exist=False)
        yield ("batch", "directory"), check


def _runner(hub: SessionHub, settings: Settings, keys: KeyRing) -> WorkerPart | None:
    for _, check in _file_checks(settings):
        check()
    from tts_worker.features.batch.settings import BatchSettings

    section = settings.section(BatchSettings)
    if not section.parallel:
        return None
    from tts_worker.features.batch.runner import BatchRunner

    return BatchRunner(hub, section, settings.server.max_input_chars, keys.caller_named)


FEATURE = Feature(
    docs="deployment.md",
    http=_add_routes,
    part=_runner,
    file_checks=_file_checks,
    commands={
        "batch": Command(
            "have a running worker synthesize a file of texts, one audio file for each",
            "tts_worker.features.batch.command",
            (
                "batch texts.txt --out audio",
                "batch texts.jsonl --out audio --url ws://127.0.0.1:8080 --voice heart --format mp3",
            ),
        )
    },
)
