"""Drives Debian's Firefox, which Playwright cannot, over WebDriver BiDi, and records what reaches the audio device.

Firefox renders no audio without a device. A PulseAudio server whose device is a pipe to the test runs beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from tests.browser.demo_page import PATIENCE_MS, RATE_HZ, UNTIL_TEXT

PROGRAMS = ("firefox-esr", "pulseaudio")
PATIENCE_S = PATIENCE_MS / 1_000
PULSEAUDIO = "pulseaudio -n --log-level=error --exit-idle-time=-1 --daemonize=no --use-pid-file=no --disable-shm=yes"
LOUD = 300
"""Of s16: a sample that is audible."""
NETWORK_NOISE = "Firefox can’t establish a connection to the server at ws"
"""Logged by the browser itself for every refused connection: no error of the page."""
PREFERENCES = (
    ("media.peerconnection.ice.loopback", True),
    ("media.peerconnection.ice.obfuscate_host_addresses", False),  # mDNS names cannot be resolved here
)


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program) is None]


@asynccontextmanager
async def _process(*command: str, **environment: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run a program; yield its standard error."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield process.stderr
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


class Loudspeaker:
    """The audio device, which hears everything that is played: s16 mono at 24 kHz."""

    def __init__(self) -> None:
        self._samples = 0
        self._loud_samples = 0
        self._loud_at = 0
        self._arrived = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Loudspeaker]:
        """``folder / "socket"`` is the socket of its PulseAudio server."""
        os.mkfifo(folder / "device")
        pipe = os.open(folder / "device", os.O_RDWR | os.O_NONBLOCK)
        device = f"file={folder}/device rate={RATE_HZ} channels=1 format=s16le use_system_clock_for_timing=yes"
        modules = [f"module-native-protocol-unix socket={folder}/socket", f"module-pipe-sink {device}"]
        home = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        speaker = cls()
        asyncio.get_running_loop().add_reader(pipe, speaker._read, pipe)
        try:
            async with _process(*PULSEAUDIO.split(), *(f"--load={module}" for module in modules), **home):
                await speaker._until(lambda: speaker._samples > 0)  # the device comes after the socket
                yield speaker
        finally:
            asyncio.get_running_loop().remove_reader(pipe)
            os.close(pipe)

    async def heard(self, seconds: float) -> None:
        """Wait until about that much speech was played from now on."""
        enough = self._loud_samples + seconds * RATE_HZ / 2  # a wave passes zero
        await self._until(lambda: self._loud_samples >= enough)

    async def silent(self, seconds: float) -> None:
        """Wait until nothing was played for that long."""
        begin = self._samples
        await self._until(lambda: self._samples - max(begin, self._loud_at) >= seconds * RATE_HZ)

    async def _until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    def _read(self, pipe: int) -> None:
        block = np.frombuffer(os.read(pipe, 65_536), "<i2").astype(int)
        loud = np.flatnonzero(np.abs(block) > LOUD)
        if len(loud):
            self._loud_at = self._samples + int(loud[-1]) + 1
        self._loud_samples += len(loud)
        self._samples += len(block)
        self._arrived.set()


class Firefox:
    """A headless browser with a new profile. Problems of its pages are collected in ``problems``."""

    def __init__(self, connection: ClientConnection, speaker: Loudspeaker) -> None:
        self.problems: list[str] = []
        self.speaker = speaker
        self._connection = connection
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Firefox]:
        (profile := folder / "profile").mkdir()
        preferences = "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES)
        (profile / "user.js").write_text(preferences)
        # As root it refuses to start in the home folder of another user.
        environment = {"HOME": str(folder), "PULSE_SERVER": f"unix:{folder}/socket"}
        options = ("--headless", "--no-remote", "--remote-debugging-port=0", "--profile", str(profile), "about:blank")
        async with (
            Loudspeaker.open(folder) as speaker,
            _process("firefox-esr", *options, **environment) as printed,
        ):
            with anyio.fail_after(PATIENCE_S):
                while b"BiDi listening on" not in (line := await printed.readline()):
                    assert line, "Firefox ended"
            async with connect(f"{line.decode().split()[-1]}/session", max_size=None, proxy=None) as connection:
                browser = cls(connection, speaker)
                # What it prints later is read as well: a full pipe would stop it.
                reading = [asyncio.create_task(browser._receive()), asyncio.create_task(printed.read())]
                try:
                    await browser.command("session.new", capabilities={})
                    await browser.command("session.subscribe", events=["log.entryAdded"])
                    yield browser
                finally:
                    for task in reading:
                        task.cancel()
                    await asyncio.wait(reading)

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        with anyio.fail_after(PATIENCE_S):
            answer = await self._answers[number]
        assert answer["type"] == "success", f"{method}: {answer}"
        return dict(answer["result"])

    async def _receive(self) -> None:
        async for raw in self._connection:
            message = json.loads(raw)
            if message["type"] != "event":
                self._answers.pop(message["id"]).set_result(message)
                continue
            entry = message["params"]  # of the console: the only event that was subscribed
            if entry["level"] in ("error", "warn") and not entry["text"].startswith(NETWORK_NOISE):
                self.problems.append(entry["text"])

    @asynccontextmanager
    async def page(self, url: str) -> AsyncIterator[FirefoxPage]:
        """A tab; fails if it logged an error or a warning."""
        self.problems.clear()
        context = (await self.command("browsingContext.create", type="tab"))["context"]
        await self.command("browsingContext.navigate", context=context, url=url, wait="complete")
        yield FirefoxPage(self, context)
        await self.command("browsingContext.close", context=context)
        assert not self.problems, self.problems


class FirefoxPage:
    def __init__(self, browser: Firefox, context: str) -> None:
        self._browser = browser
        self._context = context

    async def call(self, function: str, *arguments: Any) -> Any:
        """The result of a JavaScript function. Arguments and result are JSON."""
        result = await self._browser.command(
            "script.callFunction",
            functionDeclaration=f"async (it) => JSON.stringify(await ({function})(...JSON.parse(it)) ?? null)",
            arguments=[{"type": "string", "value": json.dumps(arguments)}],
            target={"context": self._context},
            awaitPromise=True,
        )
        assert result["type"] == "success", result["exceptionDetails"]["text"]
        return json.loads(result["result"]["value"])

    async def shows(self, name: str, text: str) -> None:
        """Wait until the element shows this text."""
        try:
            await self.call(UNTIL_TEXT, [name, text])
        except TimeoutError:
            raise AssertionError(f"{name} shows {await self.text(f'#{name}')!r}, not {text!r}") from None

    async def text(self, selector: str) -> str:
        return str(await self.call("(selector) => document.querySelector(selector).textContent", selector))

    async def write(self, text: str) -> None:
        await self.call("(text) => { document.getElementById('text').value = text; }", text)

    async def click(self, name: str) -> None:
        """Press and release the mouse on the element, as a user does."""
        located = await self._browser.command(
            "browsingContext.locateNodes", context=self._context, locator={"type": "css", "value": f"#{name}"}
        )
        origin = {"type": "element", "element": {"sharedId": located["nodes"][0]["sharedId"]}}
        pointer = [
            {"type": "pointerMove", "x": 0, "y": 0, "origin": origin},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        mouse = {"type": "pointer", "id": "mouse", "actions": pointer}
        await self._browser.command("input.performActions", context=self._context, actions=[mouse])
