"""The page of promises names tests, properties and metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tools.worker_simulator.properties import ALWAYS

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs/promises.md").read_text().splitlines() if line.startswith("| ")][1:]


def test_every_promise_has_a_proof() -> None:
    assert len(ROWS) > 10
    assert [row for row in ROWS if not re.search(r'`tests/|"[^"]+"', row.split("|")[3])] == []


def test_named_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "\n".join(ROWS))
    assert named
    assert [(path, test) for path, test in named if not re.search(rf"def {test}\(", (ROOT / path).read_text())] == []


def test_named_properties_are_checked_by_the_simulator() -> None:
    named = re.findall(r'"([^"]+)"', "\n".join(ROWS))
    assert named
    assert set(named) <= set(ALWAYS)


def test_named_metrics_are_documented() -> None:
    metrics = (ROOT / "docs/metrics.md").read_text()
    named = re.findall(r"`(tts_\w+)`", "\n".join(ROWS))
    assert named
    assert [name for name in named if f"`{name}`" not in metrics] == []
