"""Tests use what modules show: how often they reach into private names of the product may only fall."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

MAX_REACHES = 62
"""How many there are. Lower it with the number; a test that needs more should see its effect, or a public name."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name != "_"


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private functions, classes, variables and attributes that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if is_private(name):
            yield name


def reaches(tree: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines at which a test uses one of the private ``names``, imports it, or names it to replace it."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if name in names:
                yield node.lineno, name
            case ast.ImportFrom(names=imported):
                yield from ((node.lineno, each.name) for each in imported if each.name in names)
            case ast.Call(args=arguments):
                texts = (each.value for each in arguments if isinstance(each, ast.Constant))
                found = (text.rpartition(".")[2] for text in texts if isinstance(text, str))
                yield from ((node.lineno, name) for name in found if name in names)


def test_reaches_into_private_names_do_not_increase() -> None:
    product = [path for folder in ("src", "tools", "packages") for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {name for path in product for name in defined_names(ast.parse(path.read_bytes()))}
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_bytes())
        of_product = frozenset(names - {*defined_names(tree)})  # the test may have one of that name itself
        found += [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in reaches(tree, of_product)]
    assert len(found) <= MAX_REACHES, "\n".join(found)
    assert len(found) == MAX_REACHES, f"there are {len(found)} by now: lower MAX_REACHES"


def test_each_kind_of_reach_is_found() -> None:
    test = "x._a\nself._a\nsuper()._a\nfrom m import _a\npatch.setattr('m._a', 1)\npatch.setattr(m, '_a', 1)\nx._b"
    assert sorted(line for line, _ in reaches(ast.parse(test), frozenset({"_a"}))) == [1, 4, 5, 6]
