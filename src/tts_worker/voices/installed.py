"""Voices that are installed as packages and announced by entry points.

The name of an entry point is the name of the voice, its value a package, which is not imported. In the group
``tts_worker.voices`` the package has a model directory of CosyVoice in its folder ``voicepacks/NAME``; in the group
``tts_worker.cpu_voices`` it has a voice pack with the model of a voice of the CPU engine in ``voicepacks/hibari/NAME``.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from tts_worker.errors import BundleError, UnknownVoice

GROUP = "tts_worker.voices"
CPU_GROUP = "tts_worker.cpu_voices"
FOLDER = "voicepacks"
CPU_FAMILY = "hibari"
CPU_NETWORK, CPU_VECTOR = "network.onnx", "voice.npy"
"""The network that the CPU engine's voices of a package share, beside their packs, and what each has in its own."""


def installed_voices() -> dict[str, Path]:
    """Model directories by the name of their voice, sorted by name.

    Raises:
        BundleError: A package announces a voice that it does not contain, or two packages one voice.
    """
    return _folders(GROUP, FOLDER, None)


def cpu_voices(chosen: Collection[str] | None = None) -> dict[str, Path]:
    """Voice packs of the CPU engine's further voices, by name, sorted. Raises BundleError as ``installed_voices``.

    Args:
        chosen: The voices to find; None finds all. A damaged package of another voice is no error.
    """
    return _folders(CPU_GROUP, f"{FOLDER}/{CPU_FAMILY}", chosen)


def installed_voice(name: str | None) -> tuple[str, Path]:
    """Return the installed voice ``name``, or the only one; and its model directory.

    Raises:
        UnknownVoice: No such voice is installed, or ``name`` is None and there are several.
    """
    voices = installed_voices()
    if name is None and len(voices) == 1:
        return next(iter(voices.items()))
    if name is None or name not in voices:
        if not voices:
            wanted = "voice" if name is None else f"voice {name!r}"
            raise UnknownVoice(
                f"no {wanted} is installed; try: pip install ./packages/tts-worker-voice-nano in the clone"
            )
        problem = "choose a voice" if name is None else f"no voice {name!r} is installed"
        raise UnknownVoice(f"{problem}; installed: {', '.join(voices)}")
    return name, voices[name]


def _folders(group: str, within: str, chosen: Collection[str] | None) -> dict[str, Path]:
    points = sorted(point for point in entry_points(group=group) if chosen is None or point.name in chosen)
    for one, other in pairwise(points):
        if one.name == other.name and one.value != other.value:
            raise BundleError(
                f"the packages {one.value} and {other.value} both have a voice {one.name!r}: uninstall one of them"
            )
    return {point.name: _folder(point.name, point.value, within) for point in points}


def _folder(voice: str, module: str, within: str) -> Path:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    folders = [Path(place) / within / voice for place in (spec.submodule_search_locations or () if spec else ())]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise BundleError(f"the package of the voice {voice!r} has no model directory: install it again")
