"""``tts-worker lexicon``: adds, lists, shows and deletes the pronunciation lexicons of a running worker."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tts_worker.client import ClientSettings
from tts_worker.client.arguments import read_file
from tts_worker.client.http_api import HttpApi
from tts_worker.errors import InvalidRequest, UnknownLexicon
from tts_worker.features.lexicons.pls import read_pls
from tts_worker.settings import read_yaml

_DEFAULT_URL = "http://127.0.0.1:8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=_DEFAULT_URL,
        help=f"the worker (default {_DEFAULT_URL}); the key is read from TTS_WORKER_API_KEY",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    adding = actions.add_parser("add", help="store a file as a new lexicon, or as a new version of one")
    adding.add_argument("name", help="name of the lexicon")
    adding.add_argument("file", type=Path, help="PLS (XML), or YAML or JSON: word: spelling, or word: /phonemes/")
    actions.add_parser("list", help="list the lexicons")
    showing = actions.add_parser("show", help="print the entries as JSON, which add takes")
    showing.add_argument("name", help="NAME, or NAME@VERSION")
    deleting = actions.add_parser("delete", help="delete all versions of a lexicon")
    deleting.add_argument("name", help="name of the lexicon")


def run(args: argparse.Namespace) -> int:
    if not args.url.startswith(("http://", "https://", "ws://", "wss://")):
        raise InvalidRequest("--url must begin with http:// or https://")
    api = HttpApi(args.url, "/v1/lexicons", ClientSettings(api_key=os.environ.get("TTS_WORKER_API_KEY")))
    asyncio.run({"add": _add, "list": _list, "show": _show, "delete": _delete}[args.action](api, args))
    return 0


async def _add(api: HttpApi, args: argparse.Namespace) -> None:
    entries = _entries(args.file)
    try:
        stored = await api.request("PUT", _path(args.name), {"entries": entries})
    except UnknownLexicon:
        stored = await api.request("POST", "", {"name": args.name, "entries": entries})
    print(f"{stored['name']}@{stored['version']}: {stored['count']} entries")


async def _list(api: HttpApi, args: argparse.Namespace) -> None:
    for each in (await api.request("GET"))["lexicons"]:
        print(
            f"{each['name'] + '@' + str(each['version']):40} {each['count']:5} entries  {each['description']}".rstrip()
        )


async def _show(api: HttpApi, args: argparse.Namespace) -> None:
    print(json.dumps((await api.request("GET", _path(args.name)))["entries"], indent=2, ensure_ascii=False))


async def _delete(api: HttpApi, args: argparse.Namespace) -> None:
    await api.request("DELETE", _path(args.name))


def _entries(file: Path) -> dict[str, Any]:
    """Return the entries in a file. Raises InvalidRequest and ConfigError, which name the file."""
    data = read_file(file)
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return read_yaml(file)
    try:
        return read_pls(data)
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}, {error.message}") from None


def _path(name: str) -> str:
    if not name or "/" in name:  # another route; no lexicon has such a name
        raise InvalidRequest("a lexicon's name has letters, digits, _ . or -")
    return "/" + quote(name, safe="")
