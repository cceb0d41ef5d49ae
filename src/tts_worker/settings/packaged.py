"""Finds the files that ship with the package: voice packs and example configurations."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_ROOTS = (_PACKAGE, _PACKAGE.parents[1])
"""They are inside the package in a wheel, and next to ``src`` in a clone."""


def packaged(name: str) -> Path | None:
    """Return the file or directory ``name``, such as ``configs/worker.yaml``; None if it is absent."""
    return next((root / name for root in _ROOTS if (root / name).exists()), None)


def find_config(file: Path) -> Path:
    """Return ``file`` if it exists, else the configuration of that name that ships with the package."""
    if file.exists() or file.parent not in (Path(), Path("configs")):
        return file
    return packaged(f"configs/{file.name}") or file
