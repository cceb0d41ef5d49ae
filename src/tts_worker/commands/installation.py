"""Finds out how this package was installed, and the pip command that adds an extra to it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "tts-worker"
CLIENT = "tts-worker-client"
"""The distribution that NAME depends on in the same version. It is in the folder ``packages`` of the clone."""

_PACKAGES = {"livekit": "livekit-plugins-tts-worker", "voices": "tts-worker-voices"}
"""Distributions in the folder ``packages`` that extras bring."""


def install_command(extra: str = "") -> str:
    """Return the pip command that installs the package and its client again, with ``extra`` if given.

    The package is not on the package index, so the source is the one it was installed from: a clone, a repository or a
    wheel (PEP 610, ``direct_url.json``). For a wheel the client is not named: it is installed.
    """
    try:
        origin = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return f"pip install {_sources('', '.', extra)} in the clone of {NAME}"
    return f"pip install {_requirements(json.loads(origin) if origin else {}, extra)}"


def _requirements(origin: Mapping[str, Any], extra: str) -> str:
    url = str(origin.get("url", ""))
    if not url:
        return f'"{NAME}{_brackets(extra)}"'
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return _sources(editable, url2pathname(urlsplit(url).path), extra)
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
        parts = [f'"{name} @ {url}#subdirectory=packages/{name}"' for name in _packages(extra)]
        return " ".join([*parts, f'"{NAME}{_brackets(extra)} @ {url}"'])
    return f'"{NAME}{_brackets(extra)} @ {url}"'


def _sources(editable: str, clone: str, extra: str) -> str:
    """Name the distributions in a clone."""
    folders = [f"{clone}/packages/{name}" for name in _packages(extra)]
    return " ".join(f'{editable}"{source}"' for source in [*folders, f"{clone}{_brackets(extra)}"])


def _packages(extra: str) -> list[str]:
    """Return the distributions of the folder ``packages`` that an installation with ``extra`` needs."""
    return [CLIENT, _PACKAGES[extra]] if extra in _PACKAGES else [CLIENT]


def _brackets(extra: str) -> str:
    return f"[{extra}]" if extra else ""
