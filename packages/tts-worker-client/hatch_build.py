"""Divides ``src/tts_worker`` between two wheels without a common file: ``tts-worker-client`` and ``tts-worker``.

Both use this build hook; the option ``part`` in their ``pyproject.toml`` says which part they ship. An editable
installation of either puts ``src`` on the path and ships no file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CLIENT = (
    "__init__.py",
    "py.typed",
    "errors.py",
    "timeouts.py",
    "types.py",
    "version.py",
    "client/*.py",
    "client/registry/*.py",
    "integrations/*.py",
    "protocol/*",
    "text/__init__.py",
    "text/characters.py",
    "text/decoding.py",
    "text/spoken_words.py",
)
"""The client's files below ``tts_worker``, as glob patterns. Their imports must not leave this list."""

PACKAGED = ("configs", "voicepacks")
"""Folders next to ``src`` that the server's wheel has inside the package."""


def client_files(package: Path) -> set[Path]:
    """Return the client's files of the package folder ``tts_worker``, relative to it."""
    chosen = {path for pattern in CLIENT for path in package.glob(pattern) if path.is_file()}
    return {path.relative_to(package) for path in chosen}


def source_files(package: Path) -> set[Path]:
    """Return all files of a folder relative to it, without compiled ones."""
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    return {path for path in files if path.suffix != ".pyc" and not path.name.startswith(".")}


class SplitBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Chooses the files of the wheel, and adds the client's sources to its source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of this part, unless the wheel is editable. See hatchling's build hooks."""
        is_client = self.config["part"] == "client"
        root = Path(self.root)
        # The source distribution of the client has the sources inside.
        checkout = root.parents[1] if is_client and not (root / "src").exists() else root
        package = checkout / "src" / "tts_worker"
        included = build_data["force_include"]
        if self.target_name == "sdist":
            if is_client:
                chosen = client_files(package)
                included.update({str(package / path): f"src/tts_worker/{path.as_posix()}" for path in chosen})
        elif version != "editable":
            chosen = client_files(package)
            if not is_client:
                chosen = source_files(package) - chosen
                for folder in PACKAGED:
                    included[str(checkout / folder)] = f"tts_worker/{folder}"
            included.update({str(package / path): f"tts_worker/{path.as_posix()}" for path in chosen})
