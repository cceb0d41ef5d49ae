"""The command line stays small: a new option needs an old one to go, or a reason to raise the ceiling."""

from __future__ import annotations

import argparse
import importlib

from tts_worker.cli import all_commands

MOST_OPTIONS = 110


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The options of a parser and of its subcommands, by their last name, without ``--help``."""
    found: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [f"{name} {option}" for name, inner in action.choices.items() for option in options_of(inner)]
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            found.append(action.option_strings[-1])
    return found


def test_all_commands_together_have_few_options() -> None:
    options = []
    for name, command in all_commands().items():
        parser = argparse.ArgumentParser()
        importlib.import_module(command.module).add_arguments(parser)
        options += [f"{name} {option}" for option in options_of(parser)]
    assert {"say --voice", "voice add --audio", "bench latency --turns", "voicepack pull --out"} <= set(options)
    assert len(options) <= MOST_OPTIONS, f"{len(options)} options:\n" + "\n".join(options)
