"""What the tools import: no circles, a pure simulator, and little on a machine that has only PyTorch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLOCKS_AND_TENSORS = {"asyncio", "time", "threading", "torch", "socket", "random", "datetime"}
PYTORCH_MACHINE = {
    *sys.stdlib_module_names,
    "numpy",
    "torch",
    "tokenizers",
    "safetensors",
    "yaml",
    "tts_worker",
    "tools",
}


@cache
def modules() -> dict[str, ast.Module]:
    """The tools by name, parsed."""
    found = {}
    for path in sorted((ROOT / "tools").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


def imports(nodes: Iterator[ast.AST]) -> set[str]:
    """The modules that these nodes import; of a package, the modules in it that are named."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            found |= inner or {str(node.module)}
    return found


def test_tools_import_each_other_without_circles() -> None:
    """Imports inside functions and for types count."""
    graph = {name: imports(ast.walk(tree)) & modules().keys() - {name} for name, tree in modules().items()}
    while leaves := {name for name, imported in graph.items() if not imported & graph.keys()}:
        graph = {name: imported for name, imported in graph.items() if name not in leaves}
    assert not graph, f"these import each other: {', '.join(graph)}"


def test_simulator_has_no_clock_and_no_tensors() -> None:
    wrong = {
        (name, imported)
        for name, tree in modules().items()
        if name.startswith("tools.engine_simulator")
        for imported in imports(ast.walk(tree))
        if imported.split(".")[0] in CLOCKS_AND_TENSORS
    }
    assert not wrong


@pytest.mark.parametrize("tool", ["tools.reference.speech", "tools.random_bundle.writer", "tools.bench.commands.gpu"])
def test_gpu_machine_needs_only_pytorch(tool: str) -> None:
    """Whatever the tool imports of the tools, at any place, imports at its top only what such a machine has."""
    waiting, seen = [tool], {tool}
    while waiting:
        name = waiting.pop()
        tree = modules()[name]
        missing = {each for each in imports(iter(tree.body)) if each.split(".")[0] not in PYTORCH_MACHINE}
        assert not missing, f"{name} imports {missing}"
        new = (imports(ast.walk(tree)) & modules().keys()) - seen
        seen |= new
        waiting += sorted(new)
