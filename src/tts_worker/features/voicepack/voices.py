"""``tts-worker voices``: lists the voices for ``--voice``, of the local engines or of a running server; plays each."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from tts_worker.adapter import TTSWorker
from tts_worker.client import ClientSettings
from tts_worker.client.async_tts import AsyncTTS
from tts_worker.client.http_api import HttpApi
from tts_worker.client.playback import PLAYERS, PlayerSink, find_player
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.errors import ConnectionLost, InvalidRequest
from tts_worker.server.responses import voice_json
from tts_worker.types import SessionOptions
from tts_worker.worker import running_worker

Speak = Callable[[str, str], AsyncIterator[bytes]]
"""Yields the audio of a text in a voice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="list the voices of this server (http://127.0.0.1:8080); the key is read from TTS_WORKER_API_KEY"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("listen", nargs="?", choices=("listen",), help="play each voice, which says its name")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    player = find_player() if args.listen else None
    if args.listen and player is None:
        raise InvalidRequest(f"no audio player found ({', '.join(PLAYERS)})")
    asyncio.run(_remote(args, player) if args.url else _local(args, player))
    return 0


async def _local(args: argparse.Namespace, player: str | None) -> None:
    async with running_worker(settings_from(args)) as worker:
        adapter = TTSWorker(worker)

        async def speak(text: str, voice: str) -> AsyncIterator[bytes]:
            options = SessionOptions(voice=voice, realtime=False, raw_chunks=True)
            async for chunk in adapter.synthesize_chunks(_one(text), options):
                yield chunk.pcm

        voices = worker.hub.voices
        await _show([voice_json(voice, voices.default) for voice in voices], args, player, speak)


async def _remote(args: argparse.Namespace, player: str | None) -> None:
    voices = await _listed(args.url)
    async with AsyncTTS(args.url, api_key=_api_key()) as tts:

        async def speak(text: str, voice: str) -> AsyncIterator[bytes]:
            async for part in tts.stream(text, voice=voice):
                yield part.pcm

        await _show(voices, args, player, speak)


async def _show(voices: list[dict[str, Any]], args: argparse.Namespace, player: str | None, speak: Speak) -> None:
    if args.json:
        print(json.dumps({"voices": voices}, ensure_ascii=False))
    for voice in voices:
        if not args.json:
            names = ", ".join((voice["id"], *voice.get("aliases", ())))
            name = f"{names}{' (default)' if voice['default'] else ''}"
            print(f"{name:28} {voice['engine']:10} {','.join(voice['languages']):8} {voice['description']}", flush=True)
        if player is not None:
            sink = await PlayerSink.open(player)
            async for pcm in speak(_introduction(voice), voice["id"]):
                await sink.write(pcm)
            await sink.close()


async def _one(text: str) -> AsyncIterator[str]:
    yield text


def _introduction(voice: dict[str, Any]) -> str:
    """Return what a voice says: its name, without the letters that begin one such as ``am_michael``."""
    name = voice["id"].rpartition("_")[2]
    return f"您好，我是{name}。" if voice["languages"][:1] == ["zh"] else f"Hello, I am {name}."


def _api_key() -> str | None:
    return os.environ.get("TTS_WORKER_API_KEY")


async def _listed(url: str) -> list[dict[str, Any]]:
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise InvalidRequest("--url must begin with http:// or https://")
    api = HttpApi(url, "/v1/voices", ClientSettings(api_key=_api_key()))
    voices = (await api.request("GET")).get("voices")
    if not isinstance(voices, list):
        raise ConnectionLost("the server at this URL is no tts-worker")
    return voices
