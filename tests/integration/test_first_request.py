"""The first requests import nothing: an import would delay the frames of running calls."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: pytest and other tests have imported most of the modules in question.
SCRIPT = """
import asyncio, json, sys
from tts_worker.serving import serve
from tts_worker.settings import load_settings

async def speak(address, audio_format):
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"input": "Hello.", "response_format": audio_format}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\\r\\nHost: {address}\\r\\nConnection: close\\r\\n"
    writer.write(head.encode() + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    response = await reader.read(-1)
    writer.close()
    assert response.startswith(b"HTTP/1.1 200"), response

async def main():
    settings = load_settings(flags={"server": {"port": 0}, "engines": {"tone": {"kind": "tone"}}})
    addresses = []
    ready = asyncio.Event()
    serving = asyncio.create_task(serve(settings, addresses.append, ready.set))
    await ready.wait()
    before = set(sys.modules)
    for audio_format in ("pcm", "mp3", "opus"):
        await speak(addresses[0].split("//")[1], audio_format)
    print(json.dumps(sorted(set(sys.modules) - before)))
    serving.cancel()

try:
    asyncio.run(main())
except asyncio.CancelledError:
    pass
"""


def test_first_requests_import_no_module() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
