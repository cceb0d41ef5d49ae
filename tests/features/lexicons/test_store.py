"""Lexicons on disk: what is stored comes back whole or not at all, also after a crash and beside other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.errors import BundleError, IllegalCommand, InvalidRequest, TTSWorkerError, UnknownLexicon
from tts_worker.features.lexicons import store as lexicon_store
from tts_worker.features.lexicons.store import LexiconDetails, LexiconStore

DETAILS = LexiconDetails(1, "app", 12.5, "Brands", "How we are called")
ENTRIES = {"nginx": "engine x"}
BAD_NAMES = ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "x" * 65, "a\0b", "a\n", "a b", "C:x", "a@2"]

texts = st.text(max_size=12)
entries_of = st.dictionaries(texts, texts | st.fixed_dictionaries({"say": texts, "case_sensitive": st.booleans()}))


@settings(max_examples=30)  # each flushes dozens of files
@given(st.lists(entries_of, min_size=1, max_size=4), texts, st.none() | texts)
def test_versions_round_trip(
    tmp_path_factory: pytest.TempPathFactory, versions: list[dict[str, Any]], title: str, owner: str | None
) -> None:
    store = LexiconStore(tmp_path_factory.mktemp("lexicons") / "new")
    details = [LexiconDetails(len(each), owner, 0.5 * n, title, "") for n, each in enumerate(versions)]
    store.create("x", details[0], versions[0])
    for number, entries in enumerate(versions[1:], 2):
        assert store.add_version("x", details[number - 1], entries) == number

    assert store.names() == ["x"]
    assert store.versions("x") == tuple(range(1, len(versions) + 1))
    for number, entries in enumerate(versions, 1):
        assert [*store.entries("x", number).items()] == [*entries.items()]
        assert store.details("x", number) == details[number - 1]


def test_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    store = LexiconStore(tmp_path)
    store.create("\U00020000" * 63, DETAILS, ENTRIES)
    for use in (store.versions, lambda name: store.create(name, DETAILS, ENTRIES)):
        with pytest.raises(InvalidRequest, match="255 bytes"):
            use("\U00020000" * 64)


def test_unreadable_directory_is_a_typed_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    store = LexiconStore(loop)
    for use in (store.names, lambda: store.versions("x")):
        with pytest.raises(BundleError, match="cannot be read"):
            use()


def test_name_is_taken_once(tmp_path: Path) -> None:
    store = LexiconStore(tmp_path)
    store.create("x", DETAILS, ENTRIES)
    with pytest.raises(IllegalCommand, match="already"):
        store.create("x", DETAILS, {})
    assert store.entries("x", 1) == ENTRIES
    store.delete("x")
    for use in (store.versions, store.delete, lambda name: store.add_version(name, DETAILS, ENTRIES)):
        with pytest.raises(UnknownLexicon):
            use("x")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unsafe_name_is_refused(tmp_path: Path, name: str) -> None:
    store = LexiconStore(tmp_path / "above" / "lexicons")
    for use in (store.versions, store.delete, lambda name: store.create(name, DETAILS, ENTRIES)):
        with pytest.raises(InvalidRequest, match="name"):
            use(name)
    assert [*tmp_path.rglob("*")] == []


def test_oldest_versions_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon_store, "MAX_VERSIONS", 3)
    store = LexiconStore(tmp_path)
    store.create("x", DETAILS, ENTRIES)
    for _ in range(4):
        store.add_version("x", DETAILS, ENTRIES)
    assert store.versions("x") == (3, 4, 5)
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["3", "4", "5"]
    with pytest.raises(UnknownLexicon, match="version 2"):
        store.entries("x", 2)


def test_processes_number_their_versions_apart(tmp_path: Path) -> None:
    LexiconStore(tmp_path).create("x", DETAILS, ENTRIES)

    def add(number: int) -> int:
        return LexiconStore(tmp_path).add_version("x", DETAILS, {"a": str(number)})

    with ThreadPoolExecutor(8) as threads:
        versions = [*threads.map(add, range(24))]

    assert sorted(versions) == [*range(2, 26)]
    for number, version in enumerate(versions):
        assert LexiconStore(tmp_path).entries("x", version) == {"a": str(number)}


def test_version_of_a_deleted_lexicon_does_not_bring_it_back(tmp_path: Path) -> None:
    """Whichever is first, there is a whole lexicon or none."""
    for _ in range(30):
        store = LexiconStore(tmp_path)
        store.create("x", DETAILS, ENTRIES)
        deleting = threading.Thread(target=store.delete, args=["x"])
        deleting.start()
        try:
            store.add_version("x", DETAILS, ENTRIES)
        except UnknownLexicon:
            pass
        deleting.join()
        assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_interrupted_write_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, adds: bool
) -> None:
    store = LexiconStore(tmp_path)
    if adds:
        store.create("x", DETAILS, ENTRIES)
    before = sorted(tmp_path.rglob("*"))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail) if call == "fsync" else patch.setattr(Path, call, fail)
        with pytest.raises(BundleError, match="No space left"):
            store.add_version("x", DETAILS, {}) if adds else store.create("x", DETAILS, {})

    assert sorted(tmp_path.rglob("*")) == before
    assert store.names() == (["x"] if adds else [])


KILLED = """
import os, signal, sys
from pathlib import Path
from tts_worker.features.lexicons.store import LexiconDetails, LexiconStore

details = LexiconDetails(1, None, 1.0, "", "")
store = LexiconStore(Path(sys.argv[1]))
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.create("y", details, {}) if sys.argv[2] == "create" else store.add_version("x", details, {})
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("action", ["create", "add_version"])
def test_killed_writer_leaves_only_a_remnant(tmp_path: Path, action: str) -> None:
    store = LexiconStore(tmp_path)
    store.create("x", DETAILS, ENTRIES)
    before = sorted(tmp_path.rglob("*"))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), action])
    assert killed.returncode == -signal.SIGKILL

    assert (store.names(), store.versions("x")) == (["x"], (1,))
    assert store.add_version("x", DETAILS, ENTRIES) == 2
    assert len([*tmp_path.rglob("*.part")]) == 1
    store.remove_remnants(time.time())
    assert len([*tmp_path.rglob("*.part")]) == 1, "another process may still write it"
    store.remove_remnants(time.time() + 7_200)
    new = tmp_path / "x" / "2"
    assert sorted(tmp_path.rglob("*")) == sorted([*before, new, new / "entries.json", new / "lexicon.json"])


def about_is(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        about = json.loads((folder / "lexicon.json").read_text()) | changes
        (folder / "lexicon.json").write_text(json.dumps(about))

    return apply


def file_is(name: str, raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(raw)


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (file_is("lexicon.json", b"{"), "not a lexicon of format 1"),
        (file_is("lexicon.json", b"[" * 60_000), "not a lexicon of format 1"),
        (file_is("lexicon.json", b" " * 70_000), "larger than"),
        (file_is("entries.json", b" " * (5 << 20)), "larger than"),
        (file_is("entries.json", b'{"nginx": "apache"}'), "hash"),
        (about_is(format=2), "may come from a newer version"),
        (about_is(more=1), "exactly these keys"),
        (about_is(count="1"), "exactly these keys"),
        (about_is(count=True), "exactly these keys"),
        (about_is(owner=7), "exactly these keys"),
    ],
)
def test_damaged_lexicon_is_refused(tmp_path: Path, harm: Callable[[Path], object], complaint: str) -> None:
    store = LexiconStore(tmp_path)
    store.create("x", DETAILS, ENTRIES)
    harm(tmp_path / "x" / "1")
    with pytest.raises(BundleError, match=complaint):
        store.entries("x", 1)


def test_what_is_no_lexicon_is_left_alone(tmp_path: Path) -> None:
    store = LexiconStore(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "other" / "0x1").mkdir(parents=True)
    for name in store.names():
        with pytest.raises(UnknownLexicon):
            store.versions(name)
    (tmp_path / "half" / "1").mkdir(parents=True)
    with pytest.raises(UnknownLexicon):
        store.entries("half", 1)
    with pytest.raises(TTSWorkerError):
        store.create("file", DETAILS, ENTRIES)
    store.create("empty", DETAILS, ENTRIES)
    assert store.entries("empty", 1) == ENTRIES


SHAPE = {"format", "count", "owner", "created_at_s", "title", "description", "sha256"}


def test_stored_format_is_that_of_version_1(tmp_path: Path) -> None:
    """A committed lexicon is read, and a new one has the same files: a change needs another FORMAT and test data."""
    stored = Path(__file__).parents[2] / "data" / "lexicons" / "format-1"
    old = LexiconStore(stored)
    assert old.names() == ["brands"]
    assert old.versions("brands") == (1, 2)
    assert old.entries("brands", 1) == {"nginx": "engine x"}
    assert old.entries("brands", 2) == {
        "nginx": "engine x",
        "Siobhan": "/ʃɪˈvɔːn/",
        "IT": {"say": "eye tee", "case_sensitive": True},
    }
    assert old.details("brands", 2) == LexiconDetails(3, "app", 1_780_000_000.25, "Brands", "How we are called")

    new = LexiconStore(tmp_path)
    new.create("brands", old.details("brands", 1), old.entries("brands", 1))
    new.add_version("brands", old.details("brands", 2), old.entries("brands", 2))
    files = sorted(file.relative_to(stored) for file in stored.rglob("*"))
    assert sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*")) == files
    for file in files:
        assert (stored / file).is_dir() or (stored / file).read_bytes() == (tmp_path / file).read_bytes()
    assert json.loads((stored / "brands/1/lexicon.json").read_text()).keys() == SHAPE
