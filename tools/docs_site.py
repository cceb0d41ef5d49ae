"""Hook of MkDocs: version, repository, icon, pages from the root, and links to files outside of the site.

README.md becomes the start page. A recording gets a player. A link from ``docs/`` to a file of the repository
(``../configs/worker.yaml``) has no target on the site: its text remains, with the path. CI names the repository in the
environment; a site that is built elsewhere links to none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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

ICON = "src/tts_worker/features/page/web/icon.svg"

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(?ms)^ *```.*?^ *```$")


def on_config(config: Any) -> Any:
    """Name the version, and the repository that CI builds."""
    version = version_of((ROOT / "src/tts_worker/version.py").read_text("utf-8"))
    config.site_name = f"tts-worker {version}"
    config.copyright = f"Version {version} · Apache-2.0"
    config.repo_url = repository(os.environ)
    config.repo_name = "Repository"
    config.edit_uri = ""
    return config


def version_of(source: str) -> str:
    """Return the version in the text of ``version.py``, which the environment of the site cannot import."""
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found is not None
    return found[1]


def repository(environment: Mapping[str, str]) -> str | None:
    """Return the address of the repository in CI, None elsewhere."""
    server, name = (environment.get(f"GITHUB_{key}") for key in ("SERVER_URL", "REPOSITORY"))
    return f"{server}/{name}" if server and name else None


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in ``docs/``, and the icon of the worker's pages."""
    # MkDocs is installed only where scripts/docs runs.
    from mkdocs.structure.files import File, InclusionLevel  # type: ignore[import-not-found]

    listed = str(config["nav"])
    for name, source in PAGES.items():
        page = File.generated(config, name, content=from_root((ROOT / source).read_text("utf-8")))
        page.inclusion = InclusionLevel.INCLUDED if name in listed else InclusionLevel.NOT_IN_NAV
        files.append(page)
    files.append(File.generated(config, "icon.svg", content=(ROOT / ICON).read_text("utf-8")))
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
