"""What the documentation tells people to type is what the commands understand."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from dataclasses import fields
from pathlib import Path

from tests.cases import each_case
from tools.reference.compat import Compat
from tts_worker.cli import all_commands

ROOT = Path(__file__).parents[3]
PAGE = "".join((ROOT / name).read_text("utf-8") for name in ("docs/cosyvoice.md", "tools/README.md"))
TYPED = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
OURS = [line for line in TYPED if line.startswith("tts-worker ")]


@each_case("line", OURS)
def test_documented_command_parses(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    assert words[0] in all_commands()
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(all_commands()[words[0]].module).add_arguments(parser)
    parser.parse_args(words[1:])


def test_every_command_and_compat_switch_is_documented() -> None:
    assert {shlex.split(line)[1] for line in OURS} == {"say", "serve", "voice", "voicepack", "export"}
    assert {tool for line in TYPED for tool in re.findall(r"^python -m (\S+)", line)} >= {
        "tools.parity",
        "tools.random_bundle",
        "tools.reference",
    }
    assert [field.name for field in fields(Compat) if f"`{field.name}`" not in PAGE] == []
