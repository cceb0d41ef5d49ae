"""The documentation site: its navigation and the links of pages that move into it. ``scripts/docs`` builds it."""

from __future__ import annotations

import re
from pathlib import Path

from tools.docs_site import PAGES, from_root, within_site

ROOT = Path(__file__).parents[2]


def test_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"(\w[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(pages | {"index.md", "architecture.md", "changelog.md"})


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
    packed = ROOT.glob("packages/tts-worker-voices/*/voicepacks/hibari/*/metadata.yaml")
    links = re.findall(r"\(audio/voices/(\w+)\.mp3\)", (ROOT / "docs" / "voices.md").read_text("utf-8"))
    assert sorted(links) == sorted(["heart", *(file.parent.name for file in packed)])
    assert all((ROOT / "docs" / "audio" / "voices" / f"{name}.mp3").is_file() for name in links)


def test_no_page_of_the_site_links_outside() -> None:
    sources = [from_root((ROOT / source).read_text("utf-8")) for source in PAGES.values()]
    sources += [path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")]
    for text in sources:
        prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", within_site(text))
        assert "](../" not in prose
