"""Check the documentation site: it needs no other host, its links lead to pages and headings, it is searched as files.

python -m tools.check_site out/site
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "audio": "src", "video": "src"}
"""Element -> attribute with what a browser loads for it."""

_LOADED_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "manifest"}


@dataclass
class Page(HTMLParser):
    """What a page refers to.

    Attributes:
        ids: Targets of fragments.
        links: Addresses that a reader follows.
        loaded: Addresses that the browser loads at once.
    """

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the id of an element."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag in _LOADED and values.get(_LOADED[tag]):
            self.loaded.append(values[_LOADED[tag]])
        elif tag == "link" and _LOADED_RELATIONS & set(values.get("rel", "").split()):
            self.loaded.append(values["href"])
        elif tag == "a" and values.get("href"):
            self.links.append(values["href"])


def problems(site: Path) -> list[str]:
    """Return what is wrong, one line each; empty if nothing is."""
    pages: dict[Path, Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file.resolve()] = page = Page()
        page.feed(file.read_text("utf-8"))
    found = [f"{site}: there are no pages"] if not pages else []
    for file, page in pages.items():
        if file.name == "404.html":
            continue  # its addresses are those of a server
        name = file.relative_to(site.resolve()).as_posix()
        found += [f"{name} loads {address} from another host" for address in page.loaded if _leaves(address)]
        for address in [*page.loaded, *page.links]:
            if _leaves(address):
                continue
            parts = urlsplit(address)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file():
                found.append(f"{name} links to {address}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{name} links to {address}, which has no such heading")
    if not (site / "search" / "search_index.js").is_file():
        found.append("search/search_index.js is missing: the site as files has no search")
    return found


def _leaves(address: str) -> bool:
    """Whether an address has a scheme or a host."""
    parts = urlsplit(address)
    return bool(parts.scheme or parts.netloc) and parts.scheme != "data"


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong) or "the site is complete without another host")
    sys.exit(bool(wrong))
