"""The connection limit leaves file descriptors for health probes and files."""

from __future__ import annotations

import logging

import pytest

from tts_worker.server.connections import PROBE_CONNECTIONS, limit_by_descriptors

resource = pytest.importorskip("resource", reason="Windows has no such limit")


def limit(monkeypatch: pytest.MonkeyPatch, descriptors: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))


def test_descriptors_are_left_for_probes_and_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit(monkeypatch, 1_024)
    with caplog.at_level(logging.WARNING):
        allowed = limit_by_descriptors(5_000)
    assert 0 < allowed < 1_024 - PROBE_CONNECTIONS - 24
    assert "ulimit -n" in caplog.text


def test_servers_share_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1_024)
    alone = limit_by_descriptors(1_500)
    assert limit_by_descriptors(1_500, others=3_000) == pytest.approx(alone / 3, abs=2)


def test_low_connection_limit_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    limit(monkeypatch, 1 << 20)
    assert limit_by_descriptors(100) == 100
    limit(monkeypatch, resource.RLIM_INFINITY)
    assert limit_by_descriptors(5_000) == 5_000
    assert not caplog.records


def test_few_descriptors_still_allow_some_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 16)
    assert limit_by_descriptors(5_000) == 8
    assert limit_by_descriptors(4) == 4
