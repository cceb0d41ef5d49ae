"""The examples run as written, against a real worker."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import runpy
import sys
import wave
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import httpx
import pytest

from tests.behavior.transports import Setup, serve_setup
from tests.fakes.media_stream import TwilioMessages, calling

EXAMPLES = Path(__file__).parents[2] / "examples"
SENTENCE = "Hello there, my friend."


async def run(name: str, *arguments: str, stdin: str = "", **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    out, error = await process.communicate(stdin.encode())
    assert process.returncode == 0, error.decode()[-1_000:]
    return out.decode()


def seconds(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        return file.getnframes() / 24_000


async def test_raw_websocket(tmp_path: Path) -> None:
    async with serve_setup(Setup()) as address:
        out = await run("websocket_client.py", str(tmp_path / "out.wav"), SENTENCE, f"ws://{address}")
    assert seconds(tmp_path / "out.wav") == pytest.approx(1.14, abs=0.1)
    assert [line.split()[-1] for line in out.splitlines()][:4] == SENTENCE.split()


async def test_client() -> None:
    async with serve_setup(Setup()) as address:
        out = await run("client.py", f"ws://{address}")
    assert "[pause at 1.0" in out
    assert "stopped:" in out


async def test_openai_sdk(tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="needs the package openai")
    async with serve_setup(Setup()) as address:
        out = await run("openai_sdk.py", str(tmp_path / "out.mp3"), SENTENCE, f"http://{address}/v1")
    assert "in the voice tone" in out
    assert (tmp_path / "out.mp3").stat().st_size > 3_000


async def test_twilio_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = load("twilio_agent.py")
    async with serve_setup(Setup()) as address:
        monkeypatch.setattr(agent, "WORKER_URL", f"ws://{address}")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(agent.app), base_url="http://agent") as client:
            twiml = (await client.post("/voice", data={"CallSid": "CA7", "From": "+15550100"})).text
        (stream,) = ElementTree.fromstring(twiml).iterfind("Connect/Stream")
        assert stream.get("url") == agent.STREAM_URL
        async with calling(address, TwilioMessages("CA7")) as call:
            await call.until(lambda: call.confirmed > 4_000)
            await call.send(call.messages.dtmf("1"))
            await call.until(lambda: call.cleared and len(call.received) > call.cleared[0][0] + 4_000)
            await call.send(call.messages.dtmf("#"))
            await call.socket.wait_closed()
            assert call.socket.close_code == 1000


async def test_pipecat_bot(tmp_path: Path) -> None:
    if importlib.util.find_spec("pipecat") is None:
        pytest.skip("needs the extra 'pipecat'")
    async with serve_setup(Setup()) as address:
        url = f"ws://{address}"
        out = await run("pipecat_bot.py", str(tmp_path / "a.wav"), stdin="Good morning.\nBye.\n", TTS_WORKER_URL=url)
    assert out.split() == ["You", "said:", "Good", "morning.", "You", "said:", "Bye."]
    assert seconds(tmp_path / "a.wav") == pytest.approx(2.0, abs=0.5)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_livekit_agent() -> None:
    """The example's agent greets and answers; fakes replace LiveKit's cloud models."""
    pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")
    from livekit.plugins.tts_worker import TTS
    from tests.fakes.livekit_agent import run_agent

    example = load("livekit_agent.py")
    async with serve_setup(Setup()) as address:
        voice = TTS(f"ws://{address}")
        try:
            async with run_agent(voice, ["tool:opening_hours", "Until six."], agent=example.Assistant()) as harness:
                voice.attach(harness.session)
                await harness.wait_turns(1)
                await harness.session.generate_reply(user_input="How long are you open today?")
            assert harness.turns[0] == ("Hello! How can I help you?", False)
        finally:
            await voice.aclose()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of LiveKit's own code
def test_livekit_agent_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")
    monkeypatch.setattr(sys, "argv", ["livekit_agent.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "livekit_agent.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "console" in capsys.readouterr().out
