"""Code lines of each package, and the ceilings that ``test_layers`` holds them to.

Prints the ceilings that fit the code as it is. After code has left a package, lower them:

    python -m tests.unit.ceilings > tests/data/ceilings.tsv

A package that grows above its ceiling needs the reason in the commit that raises it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "tts_worker"
TABLE = Path(__file__).parents[1] / "data" / "ceilings.tsv"

APART = ("features", "client", "integrations")
"""Packages that do not count to the core."""

CORE = "core"
"""Row of the table: all packages that are not ``APART``."""

_SUBPACKAGES = ("engine/cosyvoice",)
"""Folders with a row of their own, besides the top ones and the features."""

_NO_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})
_STEP = 10
"""Ceilings are multiples of this, so that a small change seldom needs another one."""


def code_lines(source: str) -> int:
    """Return the number of lines that are no blank line, comment or docstring."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    written = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    lines = source.split("\n")
    return sum(bool(lines[line - 1].strip()) for line in written - docstrings if line <= len(lines))


def package_of(path: Path) -> str:
    """Return the row of the table to which a file of the package belongs: its folder, of features the feature."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    rows = ("/".join(folders[:depth]) for depth in range(len(folders), 1, -1))
    apart = (row for row in rows if row in _SUBPACKAGES or row.rpartition("/")[0] == "features")
    return next(apart, folders[0] if folders else "(files)")


def measured() -> dict[str, int]:
    """Return the code lines of each package and of the core, without generated files."""
    lines: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            lines[package_of(path)] += code_lines(path.read_text("utf-8"))
    core = sum(number for package, number in lines.items() if package.split("/")[0] not in APART)
    return {CORE: core, **dict(sorted(lines.items()))}


def ceilings() -> dict[str, int]:
    """Return the ceilings of the table."""
    rows = (line.split("\t") for line in TABLE.read_text("utf-8").splitlines())
    return {package: int(number) for package, number in rows}


if __name__ == "__main__":
    for package, number in measured().items():
        sys.stdout.write(f"{package}\t{-(-number // _STEP) * _STEP}\n")
