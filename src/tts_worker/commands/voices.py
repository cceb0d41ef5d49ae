"""``tts-worker voices``: lists the voices for ``--voice``, of the local engines or of a running server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from tts_worker.client import ClientSettings
from tts_worker.client.http_api import HttpApi
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.errors import ConnectionLost, InvalidRequest
from tts_worker.server.responses import voice_json
from tts_worker.settings import Settings
from tts_worker.worker import running_worker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="list the voices of this server (http://127.0.0.1:8080); the key is read from TTS_WORKER_API_KEY"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    voices = _remote(args.url) if args.url else asyncio.run(_local(settings_from(args)))
    if args.json:
        print(json.dumps({"voices": voices}, ensure_ascii=False))
        return 0
    for voice in voices:
        name = f"{voice['id']}{' (default)' if voice['default'] else ''}"
        print(f"{name:24} {voice['engine']:10} {','.join(voice['languages']):8} {voice['description']}")
    return 0


async def _local(settings: Settings) -> list[dict[str, Any]]:
    async with running_worker(settings) as worker:
        voices = worker.hub.voices
        return [voice_json(voice, voices.default) for voice in voices]


def _remote(url: str) -> list[dict[str, Any]]:
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise InvalidRequest("--url must begin with http:// or https://")
    api = HttpApi(url, "/v1/voices", ClientSettings(api_key=os.environ.get("TTS_WORKER_API_KEY")))
    voices = asyncio.run(api.request("GET")).get("voices")
    if not isinstance(voices, list):
        raise ConnectionLost("the server at this URL is no tts-worker")
    return voices
