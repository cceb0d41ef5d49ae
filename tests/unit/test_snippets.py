"""README and docs: Python compiles and imports, shell parses; commands, flags, extras and settings exist."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.cases import each_case
from tools.bench.__main__ import COMMANDS as BENCHMARKS
from tts_worker.cli import all_commands
from tts_worker.commands.doctor import all_extras
from tts_worker.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tools").rglob("*.md")),
]
SHELLS = ("sh", "bash", "shell", "console")
TOOLS = ("tools.bench", "tools.parity", "tools.random_bundle", "tools.reference")


class Snippet(NamedTuple):
    page: str
    line: int
    language: str
    text: str


def snippets(*languages: str) -> list[Snippet]:
    """The fenced blocks in one of ``languages``."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        name = page.relative_to(ROOT).as_posix()
        for block in re.finditer(r"(?ms)^( *)```(\w+)\n(.*?)^ *```$", text):
            line = text[: block.start()].count("\n") + 1
            snippet = Snippet(name, line, block[2], textwrap.dedent(block[3]))
            if snippet.language in languages:
                found.append(snippet)
    return found


def pasted(snippet: Snippet) -> list[ast.AST]:
    """Parse the block and every comment in it that is code."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    trees = [compile(snippet.text, f"{snippet.page}:{snippet.line}", "exec", flags, dont_inherit=True)]
    for comment in re.findall(r"(?m)^\s*# (\S.*)$", snippet.text):
        try:
            trees.append(compile(comment, "comment", "exec", flags, dont_inherit=True))
        except SyntaxError:
            continue  # prose
    return [node for tree in trees for node in ast.walk(tree)]


def top_level_names(module: str) -> set[str]:
    """Names defined in ``module``, read without importing it because an integration needs its framework."""
    found = importlib.util.find_spec(module)
    assert found is not None, f"there is no module {module}"
    assert found.origin is not None
    names = (
        {file.stem for file in Path(found.origin).parent.glob("*.py")} if found.submodule_search_locations else set()
    )
    for node in ast.walk(ast.parse(Path(found.origin).read_text("utf-8"))):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names


@each_case("snippet", snippets("python"))
def test_python_snippet_compiles_and_imports(snippet: Snippet) -> None:
    for node in pasted(snippet):
        match node:
            case ast.Import(names=names):
                modules = [(name.name, []) for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                modules = [(module, [name.name for name in names])]
            case ast.BinOp(left=ast.Constant(), op=ast.BitOr()):
                pytest.fail(f"{ast.unparse(node)}: a TypeError where it is pasted")
                continue
            case _:
                continue
        for name, members in modules:
            if name.split(".")[0] == "tts_worker":
                assert set(members) <= top_level_names(name), name


@each_case("snippet", snippets(*SHELLS))
def test_shell_snippet_parses(snippet: Snippet) -> None:
    parsed = subprocess.run(["bash", "-n"], input=snippet.text, capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr


@each_case("snippet", snippets(*SHELLS))
def test_shell_snippet_uses_commands_that_exist(snippet: Snippet) -> None:
    joined = re.sub(r"\\\n\s*", " ", snippet.text)
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        commands: list[list[str]] = [[]]
        for token in lexer:
            if set(token) <= set("|&;()<>"):
                commands.append([])
            else:
                commands[-1].append(token)
        for number, words in enumerate(commands):
            if number and words[:1] and words[0] in all_commands() and "tts-worker" in line:
                pytest.fail(f"{line!r} is a pipeline: one command per line")
            if words[:1] == ["tts-worker"]:
                check_command(words[1:])
            if words[:2] == ["python", "-m"] and words[2] in TOOLS:
                check_tool(words[2], words[3:])


@each_case("page", PAGES)
def test_named_extras_exist(page: Path) -> None:
    named = re.findall(r"\bextras? `([a-z-]+)`", page.read_text("utf-8"))
    assert {*named} - {*all_extras(), "quality"} == set()


@each_case("page", PAGES)
def test_named_settings_exist(page: Path) -> None:
    fields = {name: getattr(field.annotation, "model_fields", None) for name, field in Settings.model_fields.items()}
    named = re.findall(r"`([a-z]+)\.([a-z]+_[a-z_]+)[`:]", page.read_text("utf-8"))
    unknown = {(section, name) for section, name in named if fields.get(section) and name not in fields[section]}
    assert unknown <= {("session", "sample_rate_hz")}  # an attribute in the Python client


def check_command(words: list[str]) -> None:
    if words[:1] in ([], ["--version"], ["--help"]):
        return
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in all_commands()), None)
    assert name is not None, f"there is no command {' '.join(words[:2])!r}"
    parse(all_commands()[name].module, words[len(name.split()) :])


def check_tool(tool: str, words: list[str]) -> None:
    module = f"{tool}.command"
    if tool == "tools.bench":
        assert words[0] in BENCHMARKS, f"there is no benchmark {words[0]!r}"
        module = f"tools.bench.commands.{words.pop(0)}"
    parse(module, words)


def parse(module: str, words: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(module).add_arguments(parser)
    parser.parse_args(words)


@each_case("snippet", snippets("yaml", "json"))
def test_data_snippet_is_valid(snippet: Snippet) -> None:
    if snippet.language == "json":
        for line in snippet.text.splitlines():
            if line.strip().startswith("{") and line.strip().endswith("}"):
                json.loads(line)
        return
    data = yaml.safe_load(snippet.text)
    sections = set(data) & set(Settings.model_fields)
    for section in sections:
        fields = getattr(Settings.model_fields[section].annotation, "model_fields", None)
        if fields is not None:
            assert set(data[section] or {}) <= set(fields), section
