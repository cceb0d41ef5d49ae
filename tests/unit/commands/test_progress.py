"""Progress of a benchmark: on a terminal only, and not while something is measured."""

from __future__ import annotations

import io
import json
import sys

import pytest

from tts_worker.cli import main
from tts_worker.commands.progress import measured

BENCH = ["bench", "latency", "--engine", "tone", "--turns", "2", "--json"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_are_drawn_between_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    drawn = []
    for _ in measured("ab", "turns"):
        drawn.append(terminal.getvalue())
    assert "turns" in drawn[0]
    assert "0 of 2" in drawn[0]
    assert "1 of 2" in drawn[1].removeprefix(drawn[0])


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_figures_stay_plain_json(
    stream: type[io.StringIO], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    assert main(BENCH) == 0
    assert json.loads(capsys.readouterr().out)["turns"] == 2
    assert ("1 of 2" in shown.getvalue()) == (stream is Terminal)
