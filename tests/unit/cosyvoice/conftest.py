"""Reads the files of the tiny bundles once, with few solver steps: hundreds of tests open them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def files_are_read_once() -> Iterator[None]:
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tests.unit.cosyvoice.bundles import DATA
    from tts_worker.engine.cosyvoice import bundle, config

    read, parse = bundle.read_tensors, config.load_hyperyaml
    read_once = lru_cache(read)
    parsed: dict[str, Any] = {}

    def read_tensors(path: Path) -> dict[str, Any]:
        return deepcopy(read_once(path)) if path.is_relative_to(DATA) else read(path)

    def load_hyperyaml(text: str, source: str) -> dict[str, Any]:
        if text not in parsed:
            parsed[text] = parse(text, source)
        return deepcopy(parsed[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "read_tensors", read_tensors)
        patch.setattr(config, "load_hyperyaml", load_hyperyaml)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_solver_steps() -> Iterator[None]:
    """Not for the session: other folders, which the same process may run, compare with the reference."""
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tests.unit.cosyvoice.networks import SOLVER_STEPS
    from tts_worker.engine.cosyvoice import config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "EULER_STEPS", SOLVER_STEPS)
        yield
