"""Short-lived tokens as the clients of ElevenLabs and Cartesia ask for them and use them in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from websockets.asyncio.client import connect

from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.integration.test_api_keys import APP, bearer, key_file

cartesia_sdk = LateModule("cartesia", "needs the package cartesia")
elevenlabs_client = LateModule("elevenlabs.client", "needs the package elevenlabs")

FORMAT = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}


async def test_cartesia_sdk_gets_a_token_that_speaks(tmp_path: Path) -> None:
    async with serving(server={"key_file": str(key_file(tmp_path))}) as address:
        async with cartesia_sdk.AsyncCartesia(api_key=APP, base_url=f"http://{address}") as client:
            token = (await client.access_token.create(grants={"tts": True}, expires_in=60)).token
        url = f"ws://{address}/tts/websocket?cartesia_version=2025-04-16&access_token={token}"
        async with connect(url) as socket:
            message = {"model_id": "sonic-3", "transcript": "Hi.", "voice": {"id": "tone"}, "output_format": FORMAT}
            await socket.send(json.dumps({**message, "context_id": "a"}))
            assert json.loads(await socket.recv())["type"] == "chunk"
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            answer = await http.post("/access-token", json={"expires_in": 4_000}, headers=bearer(APP))
            assert answer.status_code == 400
            assert (await http.post("/access-token")).status_code == 401


async def test_elevenlabs_sdk_gets_a_token_that_speaks(tmp_path: Path) -> None:
    async with serving(server={"key_file": str(key_file(tmp_path))}) as address:
        async with httpx.AsyncClient(timeout=60) as http:
            client = elevenlabs_client.AsyncElevenLabs(api_key=APP, base_url=f"http://{address}", httpx_client=http)
            token = (await client.tokens.single_use.create("tts_websocket")).token
        path = f"/v1/text-to-speech/tone/stream-input?output_format=pcm_24000&single_use_token={token}"
        async with connect(f"ws://{address}{path}") as socket:
            for text in (" ", "Hi. ", ""):
                await socket.send(json.dumps({"text": text}))
            assert json.loads(await socket.recv())["audio"]
