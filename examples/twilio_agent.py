"""A telephone agent: Twilio's audio goes to the worker, and this process sends only text.

pip install fastapi uvicorn websockets
tts-worker serve                              # reachable for Twilio as wss://voice.example.com, see docs/telephony.md
STREAM_URL=wss://voice.example.com/twilio python examples/twilio_agent.py
# then set the voice webhook of the telephone number to https://agent.example.com/voice (port 8000 of this process)
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, quote

import uvicorn
from fastapi import FastAPI, Request, Response
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

WORKER_URL = os.environ.get("WORKER_URL", "ws://127.0.0.1:8080")
WORKER_KEY = os.environ.get("WORKER_KEY", "")
STREAM_URL = os.environ.get("STREAM_URL", "wss://voice.example.com/twilio")
GREETING = "Hello, this is the demo agent. Press a key to interrupt me, or the pound key to hang up. I can go on."

app = FastAPI()
calls: set[asyncio.Task[None]] = set()


@app.post("/voice")
async def voice(request: Request) -> Response:
    """Twilio's webhook of a call: connect its audio to the worker, and an agent to the call."""
    call = parse_qs((await request.body()).decode())["CallSid"][0]
    task = asyncio.create_task(talk(call))
    calls.add(task)
    task.add_done_callback(calls.discard)
    # What follows <Connect> happens when the agent closes its connection. Without the worker's twilio_auth_token, the
    # stream needs a key of the worker: <Parameter name="key" value="..."/>
    stream = f'<Stream url="{STREAM_URL}"/>'
    twiml = f"<Response><Connect>{stream}</Connect><Hangup/></Response>"
    return Response(f'<?xml version="1.0" encoding="UTF-8"?>{twiml}', media_type="text/xml")


async def reply(heard: str, digit: str) -> AsyncIterator[str]:
    """Your language model. It learns what the caller has heard, and yields text as it is written."""
    words = f"You pressed {digit}. Before that you heard {len(heard.split())} words of me."
    for word in words.split(" "):
        yield word + " "


async def talk(call: str) -> None:
    headers = {"Authorization": f"Bearer {WORKER_KEY}"} if WORKER_KEY else {}
    # caller_audio=true would send the caller's audio as binary messages (mulaw, 8 kHz), for speech recognition.
    async with connect(f"{WORKER_URL}/v1/calls/{quote(call, safe='')}", additional_headers=headers) as socket:
        try:
            await conversation(socket)
        except ConnectionClosed as closed:
            print(call, "closed:", closed.rcvd)


async def conversation(socket: ClientConnection) -> None:
    digit = ""
    await say(socket, GREETING)
    async for raw in socket:
        event = json.loads(raw)
        match event["type"]:
            case "dtmf" if event["digit"] == "#":
                await socket.send(json.dumps({"type": "close"}))
                return
            case "dtmf":
                digit = event["digit"]
                await socket.send(json.dumps({"type": "stop"}))  # the caller hears nothing more of it
            case "stopped" | "done" if digit:  # also if nothing was being said: then it has no text_spoken
                async for text in reply(event.get("text_spoken", ""), digit):
                    await socket.send(json.dumps({"type": "text", "text": text}))
                await socket.send(json.dumps({"type": "end"}))
                digit = ""
            case "call" | "rejected" | "error" | "truncated":
                print(event)


async def say(socket: ClientConnection, text: str) -> None:
    await socket.send(json.dumps({"type": "text", "text": text, "end": True}))


if __name__ == "__main__":
    uvicorn.run(app, port=8000)
