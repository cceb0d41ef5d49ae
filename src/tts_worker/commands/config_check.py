"""``tts-worker config check``: reports everything that is invalid in a configuration, with its line.

Exit codes: 0 valid, 1 invalid settings, 2 the file cannot be read or is not YAML.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import yaml

from tts_worker.errors import TTSWorkerError
from tts_worker.feature import FileCheck, features
from tts_worker.server.tls import load_context
from tts_worker.settings import Settings, check_directory, find_config, load_settings, read_lexicon
from tts_worker.settings.keys import read_key_file
from tts_worker.settings.problems import InvalidSettings, SettingProblem
from tts_worker.voices.packs import read_voicepacks


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
        problems = list(_file_problems(settings))
    lines = dict(_lines(yaml.compose(file.read_text("utf-8")), ()))
    for problem in problems:
        print(f"{_place(file, problem, lines)}: {problem.key}: {problem.message}")
    if problems:
        return 1
    print(f"{file}: valid")
    return 0


def _file_problems(settings: Settings) -> Iterator[SettingProblem]:
    """Open the files that the settings name as the worker does, and yield what it would refuse."""
    server, grpc, text = settings.server, settings.grpc, settings.text
    checks: list[FileCheck] = []
    if server.key_file is not None:
        checks.append((("server", "key_file"), partial(read_key_file, server.key_file)))
    for name, section in (("server", server), ("grpc", grpc)):
        if (certificate := section.tls_certificate) is not None:
            load = partial(load_context, name, certificate, section.tls_key, section.tls_client_ca)
            checks.append(((name, "tls_certificate"), load))
    checks.append((("text", "lexicon"), partial(read_lexicon, text)))
    if (packs := settings.voices.directory) is not None:
        checks.append((("voices", "directory"), partial(check_directory, "voices.directory", packs, must_exist=True)))
        checks.append((("voices", "directory"), partial(read_voicepacks, packs)))
    for feature in features().values():
        checks += () if feature.file_checks is None else feature.file_checks(settings)
    for path, check in checks:
        try:
            check()
        except TTSWorkerError as error:
            yield _problem(path, error.message)


def _problem(path: tuple[str, str], message: str) -> SettingProblem:
    """Describe the problem of a file; ``message`` may begin with the settings, the first of which is to blame."""
    named = re.match(rf"({path[0]})\.(\w+)(, \w+\.\w+)*: ", message)
    return (
        SettingProblem(path, message) if named is None else SettingProblem((named[1], named[2]), message[named.end() :])
    )


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
