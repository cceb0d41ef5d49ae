"""Check a release: ``python tools/release_version.py v1.2.3``.

The tag, the versions of all distributions and a dated section of ``CHANGELOG.md`` must agree. Standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (".", "packages/tts-worker-client", "packages/livekit-plugins-tts-worker")
"""Distributions that are released together."""


def faults(tag: str, root: Path = ROOT) -> list[str]:
    """Return what speaks against the release of ``tag``; nothing if it may be published."""
    version = tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        return [f"the tag {tag} is not a version such as v1.2.3"]
    found = []
    for project in PROJECTS:
        file = root / project / "pyproject.toml"
        match = re.search(r'(?m)^version = "([^"]+)"$', file.read_text("utf-8"))
        if match is None or match[1] != version:
            found.append(
                f"{Path(project) / 'pyproject.toml'} has version {match[1] if match else 'none'}, not {version}"
            )
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"(?m)^## \[?{re.escape(version)}\]? - \d{{4}}-\d{{2}}-\d{{2}}$", changelog):
        found.append(f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD'")
    return found


def main() -> int:
    """Print the faults of the tag on the command line; return 1 if there are any."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = faults(sys.argv[1])
    print("\n".join(found) or f"{sys.argv[1]} may be released")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
