"""Files that come with the package: voice packs and example configurations, in a wheel and in a clone alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE, _PACKAGE.parents[1])
"""A wheel holds them inside the package, a clone beside ``src``."""


def packaged(name: str) -> Path | None:
    """Return the file or directory ``name``, such as ``configs/worker.yaml``; None if it is absent."""
    return next((place / name for place in _PLACES if (place / name).exists()), None)


def find_config(file: Path) -> Path:
    """Return ``file``, or the configuration of that name that comes with the package where there is no such file."""
    if file.exists() or file.parent not in (Path(), Path("configs")):
        return file
    return packaged(f"configs/{file.name}") or file
