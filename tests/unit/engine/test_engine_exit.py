"""The end of a program that leaves its engine running."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import queue
from tts_worker.engine.engine_thread import EngineThread
from tts_worker.engine.factory import open_tone
from tts_worker.settings import ToneEngineSettings

class Observer:
    def on_ready(self, info):
        ready.put(info.name)

    def on_step(self, events, elapsed_s, report):
        pass

    def on_end(self, fault):
        print("ended", fault, flush=True)

ready = queue.SimpleQueue()
EngineThread(lambda: open_tone(ToneEngineSettings()), Observer(), name="left").start()
ready.get()
"""


def test_engine_is_closed_before_the_interpreter_ends() -> None:
    """A daemon thread that returns from native code later aborts the process."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ended None\n", "")
