"""The WebSocket protocol without a client library: JSON out, JSON and PCM in. Any language can do the same.

pip install websockets
tts-worker serve &
python examples/websocket_client.py out.wav "Hello there." [ws://127.0.0.1:8080]
"""

from __future__ import annotations

import asyncio
import json
import sys
import wave

from websockets.asyncio.client import connect


async def main(path: str, text: str, url: str) -> None:
    # realtime=false sends audio as fast as it is generated, for a file. Leave it out to play while it streams.
    async with connect(f"{url}/v1/stream?realtime=false", compression=None) as socket:
        ready = json.loads(await socket.recv())
        with wave.open(path, "wb") as file:
            file.setparams((1, 2, ready["sample_rate"], 0, "NONE", ""))
            for word in text.split(" "):  # text may be split anywhere
                await socket.send(json.dumps({"type": "text", "text": word + " "}))
            await socket.send(json.dumps({"type": "end"}))
            async for message in socket:
                if isinstance(message, bytes):
                    file.writeframes(message)
                    continue
                event = json.loads(message)
                if event["type"] == "words":
                    print(*(f"{w['start_sample'] / ready['sample_rate']:6.2f} s  {w['text']}" for w in event["words"]))
                elif event["type"] in ("done", "truncated", "error"):  # exactly one of them ends the utterance
                    print(event["type"], event.get("message", f"{event['samples_sent']} samples"))
                    break


if __name__ == "__main__":
    arguments = sys.argv[1:] or ["out.wav"]
    sentence = arguments[1] if len(arguments) > 1 else "Hello there. This is a raw WebSocket."
    asyncio.run(main(arguments[0], sentence, arguments[2] if len(arguments) > 2 else "ws://127.0.0.1:8080"))
