"""Files of the package are found by name; a file of the user goes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import tone_settings
from tts_worker.settings import find_config, load_settings, packaged
from tts_worker.worker import Worker


async def test_worker_without_config_has_the_packaged_voices() -> None:
    worker = Worker(tone_settings())
    await worker.start()
    try:
        assert worker.hub.voices.get("tone").description
    finally:
        await worker.stop()


@pytest.mark.parametrize("name", ["worker.yaml", "configs/worker.yaml"])
def test_config_of_the_package_is_found_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(Path(name)) == packaged("configs/worker.yaml")
    load_settings(find_config(Path(name)))


def test_config_of_the_user_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("worker.yaml").write_text("{}")
    assert find_config(Path("worker.yaml")) == Path("worker.yaml")
    assert find_config(tmp_path / "absent.yaml") == tmp_path / "absent.yaml"
    assert find_config(Path("other/worker.yaml")) == Path("other/worker.yaml")
