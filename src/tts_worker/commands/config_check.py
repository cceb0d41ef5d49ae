"""``tts-worker config check``: reports everything that is invalid in a configuration, with its line.

Exit codes: 0 valid, 1 invalid settings, 2 the file cannot be read or is not YAML.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from tts_worker.settings import find_config, load_settings
from tts_worker.settings.problems import InvalidSettings, SettingProblem

FILES = (
    ("server", "key_file"),
    ("server", "tls_certificate"),
    ("server", "tls_key"),
    ("server", "tls_client_ca"),
    ("grpc", "tls_certificate"),
    ("grpc", "tls_key"),
    ("grpc", "tls_client_ca"),
    ("text", "lexicon_file"),
)
"""Settings that name a file which must exist when the worker starts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="YAML file, or the name of a packaged one: worker.yaml")


def run(args: argparse.Namespace) -> int:
    file = find_config(args.file)
    problems: Sequence[SettingProblem]
    try:
        settings = load_settings(file)
    except InvalidSettings as error:
        problems = error.problems
    else:
        sections = settings.model_dump()
        named = {path: sections[path[0]].get(path[1]) for path in FILES}
        problems = [
            SettingProblem(path, f"the file {each} does not exist")
            for path, each in named.items()
            if each is not None and not Path(each).is_file()
        ]
    lines = dict(_lines(yaml.compose(file.read_text("utf-8")), ()))
    for problem in problems:
        print(f"{_place(file, problem, lines)}: {problem.key}: {problem.message}")
    if problems:
        return 1
    print(f"{file}: valid")
    return 0


def _place(file: Path, problem: SettingProblem, lines: dict[tuple[str, ...], int]) -> str:
    """Return the file and the line of the nearest key that the file has."""
    path = tuple(map(str, problem.path))
    while path and path not in lines:
        path = path[:-1]
    if not path:
        return str(file) if not problem.path else f"{file}, environment"
    return f"{file}:{lines[path]}"


def _lines(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the line of every key and item."""
    parts: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        parts = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(str(index), item, item) for index, item in enumerate(node.value)]
    for name, at, value in parts:
        yield (*path, name), at.start_mark.line + 1
        yield from _lines(value, (*path, name))
