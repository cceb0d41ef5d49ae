"""``docs/how-do-i.md``: the code of every answer is run as it stands, against a worker on another port."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
import yaml

from tests.conftest import serving
from tests.fakes.media_stream import TwilioMessages, calling
from tests.fakes.recordings import speech, wav
from tests.fakes.threaded_worker import worker_in_thread
from tests.integration.test_cli import served
from tests.integration.test_websocket import dial
from tts_worker.cli import main
from tts_worker.features.bench import capacity_command
from tts_worker.features.bench.capacity import SCALES, Scale
from tts_worker.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "how-do-i.md").read_text("utf-8")
ANSWERS = {
    title: re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", text)
    for title, _, text in (part.partition("\n") for part in PAGE.split("\n## ")[1:])
}
"""Heading -> language and text of each block of code."""

ADDRESS = "127.0.0.1:8080"
LONG = "This answer is not over when the worker is told to end. " * 4
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def code(title: str, language: str) -> list[str]:
    """The blocks of an answer in one language."""
    return [text for kind, text in ANSWERS[title] if kind == language]


async def run(program: str, *words: str, folder: Path | None = None, **environment: str) -> str:
    """Run a program in ``folder`` to its end without an error; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        program, *words, cwd=folder, env={**os.environ, **environment}, stdout=-1, stderr=-1
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, (output + errors).decode()
    return output.decode()


async def run_python(text: str, address: str) -> str:
    return await run(sys.executable, "-c", text.replace(ADDRESS, address))


async def run_shell(text: str, folder: Path, address: str = ADDRESS, **environment: str) -> str:
    command = f'tts-worker() {{ {shlex.quote(sys.executable)} -m tts_worker "$@"; }}\n'
    return await run(
        "bash", "-euo", "pipefail", "-c", command + text.replace(ADDRESS, address), folder=folder, **environment
    )


def test_every_question_has_ten_lines_at_most_and_a_test() -> None:
    tests = "".join(name for name in globals() if name.startswith("test_"))
    for title, blocks in ANSWERS.items():
        assert blocks, title
        assert "_".join(title.lower().split()) in tests, f"no test named after {title!r}"
    prose = re.sub(r"(?ms)^```.*?^```$", "", PAGE)
    assert max(len(part.strip().splitlines()) for part in prose.split("\n## ")[1:]) <= 10


async def test_stop_at_once() -> None:
    [program] = code("Stop at once", "python")
    async with serving() as address:
        printed = await run_python(program, address)
    assert printed == "heard:  | not heard: A long answer. The caller interrupts it.\n"


async def test_get_the_time_of_every_word() -> None:
    [program] = code("Get the time of every word", "python")
    async with serving() as address:
        lines = (await run_python(program, address)).splitlines()
    assert [line.split()[-1] for line in lines] == ["The", "kettle", "is", "on."]
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_add_a_voice(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from tests.unit.cosyvoice.bundles import copy_of
    from tests.unit.cosyvoice.networks import little_work

    [commands] = code("Add a voice", "sh")
    engine = {"kind": "cosyvoice", "bundle": str(copy_of("cosyvoice2", tmp_path)), "device": "cpu", "threads": 1}
    settings = load_settings(
        flags={"engines": {"cosy": {**engine, "memory_gb": 0.1}}, "session": {"loudness": None}},
    )
    (tmp_path / "anna.wav").write_bytes(wav(speech(4, 16_000)))
    with little_work(), worker_in_thread(settings) as worker:
        described = await run_shell(commands, tmp_path, worker.address)
    assert '"id":"anna"' in described
    audio = (tmp_path / "hello.wav").read_bytes()
    assert (audio[:4], audio[8:12]) == (b"RIFF", b"WAVE")
    assert len(audio) > 1_000


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_tune_the_latency(tmp_path: Path) -> None:
    [settings] = code("Tune the latency", "yaml")
    [command] = code("Tune the latency", "sh")
    async with serving(**yaml.safe_load(settings)) as address, dial(address) as client:
        await client.send(type="text", text="Hello there.", end=True)
        await client.until("done")
        printed = await run_shell(command, tmp_path, address)
    assert {line.split("{")[0] for line in printed.splitlines()} == {
        f"tts_{name}_seconds_{figure}" for name in ("queue_wait", "first_audio") for figure in ("sum", "count")
    }


async def test_answer_a_phone_call() -> None:
    [program] = code("Answer a phone call", "python")
    assert 'url="wss://voice.example.com/twilio"' in PAGE
    async with serving() as address, calling(address, TwilioMessages("CA123")) as call:
        agent = asyncio.create_task(run_python(program, address))
        await call.until(lambda: call.marks and len(call.returned) == len(call.marks))
        await call.send(call.messages.stop())
        printed = await agent
    assert printed.index('"joined"') < printed.index('"words"') < printed.index('"ended"')


async def test_rotate_a_key(tmp_path: Path) -> None:
    both, without_the_old = code("Rotate a key", "sh")
    old, new = ({"authorization": f"Bearer the-{age}-key-of-the-app"} for age in ("old", "new"))
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: app, key: the-old-key-of-the-app, scopes: [speak]}]\n")
    async with serving(server={"key_file": file}) as address, httpx.AsyncClient(base_url=f"http://{address}") as http:

        async def status_of(key: dict[str, str], expected: int) -> None:
            """Ask until the worker has read the file, which it does every second."""
            with anyio.fail_after(30):
                while (await http.get("/v1/voices", headers=key)).status_code != expected:
                    pass

        await status_of(old, 200)
        await status_of(new, 401)
        async with dial(address, additional_headers=old) as client:
            await run_shell(both, tmp_path)
            await status_of(new, 200)
            await status_of(old, 200)
            await run_shell(without_the_old, tmp_path)
            await status_of(old, 401)
            await status_of(new, 200)
            await client.send(type="text", text="Hello.", end=True)
            assert (await client.until("done"))["text_spoken"] == "Hello."


async def test_upgrade(tmp_path: Path) -> None:
    [commands] = code("Upgrade", "sh")
    (tmp_path / "worker.yaml").write_text("server: {drain_s: 30}\n")
    with served("--config", str(tmp_path / "worker.yaml")) as (process, url):
        async with dial(url.removeprefix("http://")) as client:
            await client.send(type="text", text=LONG, end=True)
            await client.until_audio()
            await run_shell(commands, tmp_path, WORKER_PID=str(process.pid))
            assert (await client.until("done"))["text_remaining"] == ""
        assert await asyncio.to_thread(process.wait, 60) == 0
    (tmp_path / "worker.yaml").write_text("server: {drain_seconds: 30}\n")
    with pytest.raises(AssertionError, match="drain_seconds"):
        await run_shell(commands, tmp_path, WORKER_PID="none")


@pytest.mark.parametrize(
    "title", ["Find how many calls a machine holds", "Know what a minute of speech costs"], ids=["calls", "costs"]
)
def test_find_how_many_calls_a_machine_holds_know_what_a_minute_of_speech_costs(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [command] = code(title, "sh")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(capacity_command, "SCALES", {kind: Scale(10, 1, 1, "x") for kind in SCALES})
    tiny = "--engine tone --set session.lead_ms=2000 --seconds 0.5 --bound 30000"
    assert main(shlex.split(command.replace("--engine cpu", tiny))[1:]) == 0
    shown = capsys.readouterr().out
    assert "set session.max_sessions: 8" in shown
    assert ("1,000 minutes" in shown) is ("--price-per-hour" in command)
    assert (tmp_path / "capacity.json").exists()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def gateway(sections: str, folder: Path, worker: str) -> AsyncIterator[str]:
    """Run nginx with these sections in front of ``worker``; yield its ``host:port``."""
    assert NGINX is not None
    port = free_port()
    sections = sections.replace(ADDRESS, worker).replace("listen 8000;", f"listen 127.0.0.1:{port};")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder / 'pid'}; error_log stderr;\nevents {{}}\n"
        f"http {{ access_log off;\n{folders}{sections}}}"
    )
    process = await asyncio.create_subprocess_exec(NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"))

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        with anyio.fail_after(30):
            while not await listens():
                assert process.returncode is None
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_put_it_behind_a_gateway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    [sections] = code("Put it behind a gateway", "nginx")
    [settings] = code("Put it behind a gateway", "yaml")
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: app, key: a-long-random-string, scopes: [speak]}]\n")
    server = {**yaml.safe_load(settings)["server"], "key_file": keys}
    key, name = {"authorization": "Bearer a-long-random-string"}, "voice.example.com"
    async with (
        serving(server=server) as worker,
        gateway(sections, tmp_path, worker) as address,
        httpx.AsyncClient(base_url=f"http://{address}", headers={**key, "host": name}, timeout=60) as http,
    ):
        assert (await http.get("/health/ready")).status_code == 200
        assert (await http.get("/v1/voices", headers={"authorization": "Bearer wrong"})).status_code == 401
        assert "127.0.0.1" in caplog.text
        async with http.stream(
            "POST", "/v1/audio/speech", json={"input": "Hello. " * 50, "response_format": "pcm"}
        ) as reply:
            sizes = [len(part) async for part in reply.aiter_raw()]
        assert len(sizes) > 1, "nginx collected the answer"
        host, port = address.split(":")
        async with dial(name, host=host, port=int(port), additional_headers=key) as client:
            await client.until("ready")
            await client.send(type="text", text="Hello ")
            await client.send(type="text", text="there.", end=True)
            assert (await client.until("done"))["text_spoken"] == "Hello there."
