"""State of the engine is phases, counts and data: no mutable booleans, and no phase changes that make no sense."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from itertools import product
from pathlib import Path

import pytest

from tests.cases import each_case
from tests.fakes.assigned_booleans import assigned_booleans
from tools.engine_simulator.stage_times import VirtualClock
from tts_worker.engine import loop, process, shell
from tts_worker.engine.cosyvoice import phases
from tts_worker.engine.cosyvoice.audio import chunks
from tts_worker.engine.cosyvoice.tokens import interleave, runs
from tts_worker.engine.cpu.phrases import sequence as phrases
from tts_worker.engine.phases import change_phase

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "src" / "tts_worker" / "engine", ROOT / "tools" / "engine_simulator", ROOT / "tools" / "reference")
FILES = {path: path.relative_to(folder).as_posix() for folder in FOLDERS for path in sorted(folder.rglob("*.py"))}

ALLOWED = {
    "cosyvoice/ops/__init__.py: FusedOperator.is_excluded": "a setting of the process",
    "cosyvoice/ops/__init__.py: _Switch.is_on": "a setting of the process",
}
"""Mutable booleans that are not the state of an engine, and what they are."""

TABLES: list[dict[Enum, frozenset[Enum]]] = [
    loop.TRANSITIONS,
    process.TRANSITIONS,
    shell.TRANSITIONS,
    phases.SEQUENCE_TRANSITIONS,
    phases.TOKEN_PASS_TRANSITIONS,
    phases.TEXT_TRANSITIONS,
    chunks.SEGMENT_TRANSITIONS,
    interleave.TRANSITIONS,
    runs.RUN_TRANSITIONS,
    phrases.TRANSITIONS,
]  # type: ignore[assignment]


def is_boolean(value: ast.expr | None) -> bool:
    """Whether ``value`` gives True or False by its form."""
    match value:
        case ast.Constant():
            return isinstance(value.value, bool)
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="bool")):
            return True
        case ast.BoolOp():
            return all(map(is_boolean, value.values))
        case _:
            return False


def mutable_booleans(source: str) -> Iterator[str]:
    """Yield the attributes that hold a boolean which may change.

    What ``__init__`` computes is a setting. A literal there is not: if it never changed, it would need no attribute.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in set(_fields(node)) | set(_assigned(node)))


def _fields(node: ast.ClassDef) -> Iterator[str]:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if any(text.startswith("dataclass") and "frozen=True" not in text for text in decorators):
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.annotation) == "bool":
                yield ast.unparse(statement.target)
    if any(ast.unparse(base).split(".")[-1] in ("Flag", "IntFlag") for base in node.bases):
        yield "a set of booleans"


def _assigned(node: ast.ClassDef) -> Iterator[str]:
    for function in node.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in ast.walk(function):
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
                targets = [statement.target]
            else:
                continue
            is_setting = function.name == "__init__" and not isinstance(statement.value, ast.Constant)
            if is_boolean(statement.value) and not is_setting:
                for target in targets:
                    # What a call returned is not ours to count: weakref.finalize(...).atexit = False sets an option.
                    if isinstance(target, ast.Attribute) and not isinstance(target.value, ast.Call):
                        yield ast.unparse(target).removeprefix("self.")


def phase_enums(source: str) -> Iterator[str]:
    """Yield the names of the enums whose docstring draws a life: ``A -> B``."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or "Enum" not in map(ast.unparse, node.bases):
            continue
        if "->" in str(ast.get_docstring(node)):
            yield node.name


def unchecked_changes(source: str, enums: set[str]) -> Iterator[str]:
    """Yield the assignments of a member of ``enums`` to an attribute outside ``__init__``, without ``change_phase``."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name == "__init__":
            continue
        for statement in ast.walk(node):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
                value = statement.value
                is_checked = isinstance(value, ast.Call) and ast.unparse(value.func) == "change_phase"
                if not is_checked and any(
                    isinstance(part, ast.Attribute) and ast.unparse(part.value) in enums for part in ast.walk(value)
                ):
                    yield ast.unparse(statement)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_has_code(folder: Path) -> None:
    assert any(folder in path.parents for path in FILES)


def test_every_life_of_phases_has_a_table() -> None:
    found = {name for path in FILES for name in phase_enums(path.read_text("utf-8"))}
    assert found == {type(next(iter(table))).__name__ for table in TABLES}


def test_phases_change_by_their_tables_only() -> None:
    names = {type(next(iter(table))).__name__ for table in TABLES}
    found = [
        f"{path.name}: {change}"
        for path in FILES
        for change in unchecked_changes(path.read_text("utf-8"), names)
        if path.parent.name != "reference"  # it repeats what the reference does wrong
    ]
    assert found == []


def test_engines_have_no_mutable_booleans() -> None:
    found = {
        f"{name}: {attribute}"
        for path, name in FILES.items()
        for attribute in mutable_booleans(path.read_text("utf-8"))
    }
    assert found == set(ALLOWED), "use a phase (engine/phases.py), a count, or the data that it follows from"


@each_case(
    ("body", "found"),
    [
        ("def __init__(self):\n  self.done = False", "C.done"),
        ("def f(self):\n  self.a.done = self.b = self.n > 3", "C.a.done C.b"),
        ("def f(self):\n  self.late |= not self.n", "C.late"),
        ("def f(self):\n  self.x: bool = bool(self.n)", "C.x"),
        ("def __init__(self, paced):\n  self.is_call = paced and not self.n", ""),
        ("def f(self):\n  self.name = self.name or 'none'", ""),
        ("def f(self):\n  finalize(self, print).atexit = False", ""),
        ("done: bool = False", ""),
    ],
)
def test_mutable_booleans_are_found(body: str, found: str) -> None:
    assert " ".join(sorted(mutable_booleans("class C:\n " + body.replace("\n", "\n ")))) == found
    as_dataclass = "@dataclass\nclass C:\n " + body.replace("\n", "\n ")
    assert ("C.done" in mutable_booleans(as_dataclass)) == ("done" in body and "C.a" not in found)


class _Clock(VirtualClock):
    """Its form hides a boolean from ``mutable_booleans``."""

    def __init__(self, is_late: bool) -> None:
        super().__init__()
        self.is_setting = is_late

    def hide(self, is_late: bool) -> None:
        self.now_us = 1
        self.late = is_late
        self.now_us, self.early = 2, not is_late
        self.either = self.late and self.early


def test_assigned_booleans_are_recorded_in_any_form() -> None:
    with assigned_booleans() as assigned:
        _Clock(True).hide(True)
    assert assigned == ["_Clock.late", "_Clock.early", "_Clock.either"]


@each_case("table", TABLES)
def test_only_changes_of_the_table_are_legal(table: dict[Enum, frozenset[Enum]]) -> None:
    phases_of_table = list(type(next(iter(table))))
    assert [*table] == phases_of_table
    for before, after in product(phases_of_table, phases_of_table):
        if after in table[before]:
            assert change_phase(before, after, table) is after
        else:
            with pytest.raises(ValueError, match="cannot change"):
                change_phase(before, after, table)
