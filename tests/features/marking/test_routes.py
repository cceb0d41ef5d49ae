"""``POST /v1/audio/detect`` and ``tts-worker detect``: what they answer, and what they refuse."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.conftest import serving
from tests.features.marking.conftest import DEPLOYMENT_ID
from tts_worker import cli
from tts_worker.audio.encoders import wav_file
from tts_worker.features.marking.detector import MAX_S
from tts_worker.features.marking.routes import MAX_BYTES


async def test_detection_over_http(marked: np.ndarray, speech: bytes) -> None:
    recording = wav_file(marked.astype("<i2").tobytes())
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        found = await client.post("/v1/audio/detect", files={"audio": recording})
        assert found.status_code == 200
        assert found.json()["marked"] is True
        assert found.json()["deployment_id"] == f"0x{DEPLOYMENT_ID:08x}"
        plain = await client.post("/v1/audio/detect", json={"audio": base64.b64encode(wav_file(speech)).decode()})
        assert plain.json() | {"score": 0} == {
            **{"marked": False, "score": 0, "deployment_id": None, "parts": [], "speed": 1.0}
        }


async def test_bad_uploads_are_refused() -> None:
    long = wav_file(bytes(2 * 8_000 * int(MAX_S + 1)), 8_000)
    async with serving(server={"max_upload_bytes": 32 << 20}) as address, httpx.AsyncClient(timeout=60) as client:
        for data, status, code in (
            (b"text", 400, "invalid_request"),
            (wav_file(bytes(100)), 400, "invalid_request"),
            (long, 413, "text_too_long"),
            (bytes(MAX_BYTES + 1), 413, "text_too_long"),
            (wav_file(bytes(9_600), 96_000), 400, "invalid_request"),
        ):
            answer = await client.post(f"http://{address}/v1/audio/detect", files={"audio": data})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        empty = await client.post(f"http://{address}/v1/audio/detect", json={})
        assert (empty.status_code, empty.json()["error"]["code"]) == (400, "invalid_request")


def test_command_tells_marked_files(
    marked: np.ndarray, speech: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "marked.wav", tmp_path / "plain.wav"]
    files[0].write_bytes(wav_file(marked.astype("<i2").tobytes()))
    files[1].write_bytes(wav_file(speech))
    assert cli.main(["detect", str(files[0])]) == 0
    assert f"synthetic, deployment 0x{DEPLOYMENT_ID:08x}" in capsys.readouterr().out
    assert cli.main(["detect", *map(str, files)]) == 3
    assert "no watermark" in capsys.readouterr().out
    assert cli.main(["detect", str(tmp_path / "missing.wav")]) == 2
