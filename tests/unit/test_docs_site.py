"""The documentation site: its navigation, the links of pages that move into it, and its check by ``scripts/docs``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cases import each_case
from tools.check_site import problems
from tools.docs_site import PAGES, from_root, repository, version_of, within_site
from tts_worker.version import __version__

ROOT = Path(__file__).parents[2]


def test_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"(\w[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(pages | {"index.md", "architecture.md", "changelog.md"})


def test_docs_and_readme_stay_short() -> None:
    words = {
        path: len(path.read_text("utf-8").split()) for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    }
    assert words.pop(ROOT / "README.md") <= 720
    assert sum(words.values()) <= 25_000


def test_links_of_the_readme_lead_to_pages_of_the_site() -> None:
    assert from_root("[a](docs/text.md#tags) ![b](docs/images/b.png)") == "[a](text.md#tags) ![b](images/b.png)"
    assert from_root("[c](CHANGELOG.md) [d](https://d.example/x)") == "[c](changelog.md) [d](https://d.example/x)"
    assert within_site(from_root("[e](configs/worker.yaml)")) == "e (`configs/worker.yaml`)"


def test_links_in_code_are_left_alone() -> None:
    code = "```md\n[a](docs/a.md)\n```"
    assert within_site(from_root(code)) == code


def test_recordings_have_a_player() -> None:
    player = '<audio controls preload="none" src="audio/a.mp3"></audio>'
    assert within_site("[Listen](audio/a.mp3), please.") == f"{player} [Listen](audio/a.mp3), please."


def test_every_cpu_voice_has_a_sample() -> None:
    packed = (ROOT / "packages" / "tts-worker-voices").rglob("voicepacks/hibari/*/metadata.yaml")
    links = re.findall(r"\(audio/voices/(\w+)\.mp3\)", (ROOT / "docs" / "voices.md").read_text("utf-8"))
    assert sorted(links) == sorted(["heart", *(file.parent.name for file in packed)])
    assert all((ROOT / "docs" / "audio" / "voices" / f"{name}.mp3").is_file() for name in links)


def test_no_page_of_the_site_links_outside() -> None:
    sources = [from_root((ROOT / source).read_text("utf-8")) for source in PAGES.values()]
    sources += [path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")]
    for text in sources:
        prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", within_site(text))
        assert "](../" not in prose


def written() -> list[Path]:
    """Every Markdown file of the repository."""
    folders = ("docs", "tools", "bench", "packages", "src", "tests")
    return [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]


def prose(path: Path) -> str:
    """The text of a file without its blocks of code."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """The fragments of the headings of a file, as GitHub and the site form them."""
    titles = re.findall(r"(?m)^#+ (.+)$", prose(path))
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in plain}


@each_case("path", written())
def test_links_lead_to_files_and_headings(path: Path) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path))):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, fragment = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (fragment and fragment not in anchors(found)):
            lost.append(target)
    assert lost == []


def test_version_and_repository_are_named() -> None:
    assert version_of((ROOT / "src/tts_worker/version.py").read_text("utf-8")) == __version__
    in_ci = {"GITHUB_SERVER_URL": "https://code.example", "GITHUB_REPOSITORY": "a/b"}
    assert repository(in_ci) == "https://code.example/a/b"
    assert repository({}) is None


GOOD = """<!doctype html>
<link rel="stylesheet" href="site.css"><link rel="canonical" href="https://a.example/">
<h1 id="top">T</h1><img src="a.png">
<a href="https://a.example/">elsewhere</a> <a href="#top">here</a> <a href="sub/b.html#part">there</a>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site without a problem."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "search").mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "sub" / "b.html").write_text('<h2 id="part">P</h2><a href="../index.html">back</a>')
    for name in ("site.css", "a.png", "search/search_index.js"):
        (tmp_path / name).touch()
    return tmp_path


def test_complete_site_has_no_problem(site: Path) -> None:
    assert problems(site) == []


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        (
            '<script src="https://a.example/mermaid.js"></script>',
            "loads https://a.example/mermaid.js from another host",
        ),
        ('<link rel="preconnect" href="//fonts.example">', "loads //fonts.example from another host"),
        ('<a href="c.html">c</a>', "links to c.html, which does not exist"),
        ('<a href="sub/b.html#whole">c</a>', "links to sub/b.html#whole, which has no such heading"),
        ('<a href="#bottom">c</a>', "links to #bottom, which has no such heading"),
        ('<img src="lost.svg">', "links to lost.svg, which does not exist"),
    ],
)
def test_check_of_the_site_finds(site: Path, added: str, problem: str) -> None:
    (site / "index.html").write_text(GOOD + added)
    assert problems(site) == [f"index.html {problem}"]


def test_check_of_the_site_misses_pages_and_search(tmp_path: Path) -> None:
    missing = "search/search_index.js is missing: the site as files has no search"
    assert problems(tmp_path) == [f"{tmp_path}: there are no pages", missing]
