"""``tts-worker serve`` with a tone engine that fails: ``python -m tests.fakes.faulty_server FAULT [ARGUMENT ...]``.

The second utterance of a session fails; rebuilding the engine after ``raise`` fails too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from unittest import mock

from tts_worker import worker
from tts_worker.cli import main
from tts_worker.engine.base import Engine
from tts_worker.engine.tone import Fault, ToneEngine, ToneSettings
from tts_worker.session.factory import HubConfig

FAULT = Fault(sys.argv[1])
built = 0


def build() -> Engine:
    global built
    built += 1
    if built > 1:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return ToneEngine(ToneSettings(fault=lambda key, chunk: FAULT if key.generation == 2 else None))


def factory(*arguments: object) -> Callable[[], Engine]:
    return build


if __name__ == "__main__":
    short = partial(HubConfig, window_ms=200)
    with mock.patch.object(worker, "EngineFactory", factory), mock.patch.object(worker, "HubConfig", short):
        sys.exit(main(["serve", "--engine", "tone", "--port", "0", *sys.argv[2:]]))
