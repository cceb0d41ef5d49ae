"""The output guard on a model that loses itself: what it does, and the same speech without it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tts_worker.engine.cosyvoice.guard import TokenGuard
from tts_worker.engine.cosyvoice.token_generator import TokenGenerator


def lost_bundle(bundle: Path, folder: Path, top_p: float) -> Path:
    """Create a bundle in ``folder`` with the weights of ``bundle`` that draws from another nucleus."""
    for source in bundle.iterdir():
        (folder / source.name).symlink_to(source.resolve())
    (settings,) = bundle.glob("cosyvoice*.yaml")
    text, count = re.subn(r"top_p: [0-9.e-]+", f"top_p: {top_p:g}", settings.read_text("utf-8"))
    assert count == 1
    (folder / settings.name).unlink()
    (folder / settings.name).write_text(text, "utf-8")
    return folder


@contextmanager
def watched_guard(*, enabled: bool) -> Iterator[Counter[str]]:
    """Count what the guard does in engines of this process: ``redraw`` and ``cut``, the latter also with its reason.

    Without it a run ends at its limit of tokens only, which counts as ``cut`` as well.
    """
    counts: Counter[str] = Counter()
    retry, truncate, check = TokenGenerator._retry_run, TokenGenerator._truncate, TokenGuard.check

    def count_retry(generator: TokenGenerator, *args: Any) -> bool:
        counts["redraw"] += 1
        return retry(generator, *args)

    def count_cut(generator: TokenGenerator, reason: str, *args: Any) -> None:
        counts["cut"] += 1
        counts[f"cut_{reason}"] += 1
        truncate(generator, reason, *args)

    with (
        patch.object(TokenGenerator, "_retry_run", count_retry),
        patch.object(TokenGenerator, "_truncate", count_cut),
        patch.object(TokenGuard, "check", check if enabled else lambda guard, token: None),
    ):
        yield counts
