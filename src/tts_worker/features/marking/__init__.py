"""Speech marked as synthetic: an inaudible watermark in every stream, signed files, and what finds both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Extra, Feature, FileCheck

if TYPE_CHECKING:
    from tts_worker.audio.encoders import FileSigner
    from tts_worker.audio.output import Marker
    from tts_worker.server.application import Application
    from tts_worker.settings import Settings


def _add_routes(app: Application) -> None:
    from tts_worker.features.marking import routes

    routes.add_routes(app)


def _marker(settings: Settings) -> Callable[[], Marker] | None:
    from tts_worker.features.marking.settings import OFF, MarkingSettings

    section = settings.section(MarkingSettings)
    if section.marker == OFF:
        return None
    from tts_worker.features.marking.markers import make_marker

    return make_marker(section)


def _file_checks(settings: Settings) -> Iterator[FileCheck]:
    from tts_worker.features.marking.settings import MarkingSettings

    section = settings.section(MarkingSettings)
    if section.certificate is not None:
        from tts_worker.features.marking.provenance import FileProvenance

        yield ("marking", "certificate"), partial(FileProvenance, section.certificate, section.key)


def _signer(settings: Settings) -> FileSigner | None:
    from tts_worker.features.marking.settings import MarkingSettings

    section = settings.section(MarkingSettings)
    if section.certificate is None:
        return None
    from tts_worker.features.marking.provenance import FileProvenance

    return FileProvenance(section.certificate, section.key)


FEATURE = Feature(
    docs="provenance.md",
    http=_add_routes,
    web=Path(__file__).parent / "web",
    marker=_marker,
    file_signer=_signer,
    file_checks=_file_checks,
    commands={
        "detect": Command(
            "look for the watermark of synthetic speech in audio files",
            "tts_worker.features.marking.detect_command",
            ("detect call.wav", "detect call.mp3 other.opus"),
        ),
        "verify": Command(
            "check the signed provenance of audio files",
            "tts_worker.features.marking.verify_command",
            ("verify speech.wav", "verify authority.pem speech.mp3"),
        ),
    },
    extras={"provenance": Extra(("c2pa",), "signing files, and checking what is signed")},
)
