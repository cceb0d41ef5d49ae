"""Finds out how this package was installed, and the pip command that adds an extra to it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "tts-worker"


def install_command(extra: str = "") -> str:
    """Return the pip command that installs the package again, with ``extra`` if given.

    The package is not on the package index, so the source is the one it was installed from: a clone, a repository or a
    wheel (PEP 610, ``direct_url.json``).
    """
    try:
        origin = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return f'pip install ".{_brackets(extra)}" in the clone of {NAME}'
    return f"pip install {_requirement(json.loads(origin) if origin else {}, extra)}"


def _requirement(origin: Mapping[str, Any], extra: str) -> str:
    url = str(origin.get("url", ""))
    if not url:
        return f'"{NAME}{_brackets(extra)}"'
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f'{editable}"{url2pathname(urlsplit(url).path)}{_brackets(extra)}"'
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f'"{NAME}{_brackets(extra)} @ {url}"'


def _brackets(extra: str) -> str:
    return f"[{extra}]" if extra else ""
