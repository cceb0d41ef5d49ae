"""``tts-worker config init``: writes a configuration in which every setting is shown with its default and explained."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tts_worker.errors import InvalidRequest
from tts_worker.settings import packaged

SOURCE = "configs/worker.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, default=Path("worker.yaml"), help="the file to write (default worker.yaml)"
    )


def run(args: argparse.Namespace) -> int:
    file: Path = args.file
    source = packaged(SOURCE)
    if source is None:
        raise InvalidRequest(f"this installation lacks {SOURCE}: install the package again")
    # Relative to the package, where the file comes from.
    text = re.sub(
        r"(?m)^  directory: .*$",
        "  # directory: voicepacks   # voice packs; default: those of the package",
        source.read_text("utf-8"),
    )
    is_new = False
    try:
        with file.open("x", encoding="utf-8") as target:
            is_new = True
            target.write(text)
    except FileExistsError:
        raise InvalidRequest(f"{file} exists and is left as it is: name another file") from None
    except OSError as error:
        if is_new:  # a part of it would be a valid configuration, too
            file.unlink(missing_ok=True)
        raise InvalidRequest(f"{file} cannot be written: {error.strerror}") from None
    print(f"wrote {file}: tts-worker serve --config {file}")
    return 0
