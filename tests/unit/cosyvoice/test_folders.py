"""The folders of the engine import in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tts_worker.engine import cosyvoice, cpu

PACKAGE = "tts_worker.engine.cosyvoice."
ENGINE = "engine.py and its neighbors"
FOLDERS = ("ops", "networks", "v1", "bundle", "execution", "tokens", "audio", "voices", ENGINE)
"""Lowest first: a folder imports from itself and the ones before it."""


def imports(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file and what it imports, for types and inside functions, too."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                yield from ((path, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)


def test_folders_of_cosyvoice_import_those_before_them() -> None:
    root = Path(cosyvoice.__path__[0])
    assert {path.parent.name for path in root.glob("*/__init__.py")} == {*FOLDERS} - {ENGINE}
    order = {name: place for place, name in enumerate(FOLDERS)}
    seen = 0
    for path, imported in imports(root):
        if imported.startswith(PACKAGE):
            importer = path.relative_to(root).parts[0]
            name = imported.removeprefix(PACKAGE).split(".")[0]
            above, below = order.get(importer, order[ENGINE]), order.get(name, order[ENGINE])
            assert above >= below, f"{path}: imports {imported}"
            seen += 1
    assert seen > 300


def test_voices_for_a_cpu_do_not_import_each_other() -> None:
    root = Path(cpu.__path__[0])
    for path, imported in imports(root):
        if imported.startswith("tts_worker.engine.cpu."):
            voice = path.relative_to(root).parts[0]
            assert imported.split(".")[3] in ("phrases", voice), f"{path}: imports {imported}"
