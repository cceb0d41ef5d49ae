"""Hook of MkDocs: takes pages from the root of the repository, and turns links to files outside the site into text.

README.md becomes the start page. A recording gets a player. A link from ``docs/`` to a file of the repository
(``../configs/worker.yaml``) has no target on the site: its text remains, with the path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Page of the site -> file of the repository."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(?ms)^ *```.*?^ *```$")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in ``docs/``."""
    # MkDocs is installed only where scripts/docs runs.
    from mkdocs.structure.files import File, InclusionLevel  # type: ignore[import-not-found]

    listed = str(config["nav"])
    for name, source in PAGES.items():
        page = File.generated(config, name, content=from_root((ROOT / source).read_text("utf-8")))
        page.inclusion = InclusionLevel.INCLUDED if name in listed else InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page."""
    return within_site(markdown)


def from_root(markdown: str) -> str:
    """Rewrite the links of a page of the root as if it were in ``docs/``."""
    pages = {source: name for name, source in PAGES.items()}

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        path = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}")
        return f"[{text}]({path}{'#' if anchor else ''}{anchor})"

    return _outside_code(lambda text: _LINK.sub(link, text).replace("](docs/images/", "](images/"), markdown)


def within_site(markdown: str) -> str:
    """Add players to links to recordings, and replace the links that leave ``docs/`` by their text and the path."""
    pages = {source: name for name, source in PAGES.items()}

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.endswith(".mp3"):
            return f'<audio controls preload="none" src="{target}"></audio> {match[0]}'
        if not target.startswith("../"):
            return match[0]
        path = target.removeprefix("../")
        if path in pages:
            return f"[{text}]({pages[path]})"
        return text if text.strip("`").endswith(path) else f"{text} (`{path}`)"

    return _outside_code(lambda text: _LINK.sub(link, text), markdown)


def _outside_code(change: Any, markdown: str) -> str:
    """Apply ``change`` to the text between fenced code blocks."""
    parts: list[str] = []
    at = 0
    for block in _FENCED.finditer(markdown):
        parts += [change(markdown[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(markdown[at:])])
