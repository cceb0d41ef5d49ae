"""``tts-worker completion``: prints a script with which a shell completes commands, options and their values.

The script is static: a completion starts no Python.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tts_worker.cli import all_commands
from tts_worker.errors import TTSWorkerError
from tts_worker.voices.installed import cpu_voices
from tts_worker.voices.packs import read_voicepack

SHELLS = ("bash", "zsh", "fish")

_USE = {
    "bash": "tts-worker completion bash >~/.local/share/bash-completion/completions/tts-worker",
    "zsh": "tts-worker completion zsh >~/.tts-worker.zsh && echo '. ~/.tts-worker.zsh' >>~/.zshrc",
    "fish": "tts-worker completion fish >~/.config/fish/completions/tts-worker.fish",
}


@dataclass(slots=True)
class CommandWords:
    """What can follow a command: its options, and the values of those that have a list of them."""

    options: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    operands: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    summaries = {name: command.summary for name, command in all_commands().items()}
    words = {name: words_of(name) for name in summaries}
    if args.shell == "fish":
        script = fish_script(words, summaries)
    else:
        script = bash_script(words) if args.shell == "bash" else zsh_script(words)
    print(f"# {_USE[args.shell]}\n{script}", end="")
    return 0


def words_of(command: str) -> CommandWords:
    """Return the words of a command, from its parser; none of a command that cannot run in this installation."""
    words = CommandWords()
    parser = argparse.ArgumentParser()
    try:
        module = importlib.import_module(all_commands()[command].module)
        module.add_arguments(parser)
    except (ModuleNotFoundError, TTSWorkerError):  # an extra is missing
        return words
    _collect(parser, words)
    return words


def _collect(parser: argparse.ArgumentParser, words: CommandWords) -> None:
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        words.options += [name for name in names if name not in words.options]
        choices = _voices() if "--voice" in names else [str(choice) for choice in action.choices or ()]
        if choices and names:
            words.values.update(dict.fromkeys(names, choices))
        elif choices:
            words.operands += choices
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _collect(inner, words)


def _voices() -> list[str]:
    """Return the names and aliases of the voices that are installed."""
    voices = ["heart"]
    with suppress(TTSWorkerError):
        for name, folder in cpu_voices().items():
            voices.append(name)
            with suppress(TTSWorkerError):
                voices += read_voicepack(folder).pack.aliases
    return voices


def bash_script(words: Mapping[str, CommandWords]) -> str:
    """Return the script for bash. File names complete where no word does."""
    cases = []
    for name, known in words.items():
        inner = [
            f"        {option}) words={_quoted(' '.join(values))} ;;" for option, values in sorted(known.values.items())
        ]
        inner.append(f"        *) words={_quoted(' '.join([*known.operands, *known.options]))} ;;")
        cases += [f"    {_quoted(name)})", '      case "$previous" in', *inner, "      esac ;;"]
    groups = [
        f"    {group}) [ $COMP_CWORD -eq 2 ] && words={_quoted(' '.join(members))} ;;"
        for group, members in _groups(words).items()
    ]
    first = " ".join(dict.fromkeys([*(name.split()[0] for name in words), "--help", "--version"]))
    return "\n".join(
        (
            "_tts_worker() {",
            "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}",
            "  local words= command=${COMP_WORDS[1]}",
            f"  [ $COMP_CWORD -eq 1 ] && words={_quoted(first)}",
            f'  case "$command" in {"|".join(_groups(words))})',
            '    [ $COMP_CWORD -gt 2 ] && command="$command ${COMP_WORDS[2]}" ;;',
            "  esac",
            '  [ $COMP_CWORD -gt 1 ] && case "$command" in',
            *cases,
            *groups,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _tts_worker tts-worker",
            "",
        )
    )


def zsh_script(words: Mapping[str, CommandWords]) -> str:
    """Return the script for zsh, which runs that for bash."""
    head = (
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }",
        "autoload -Uz bashcompinit && bashcompinit",
    )
    return "\n".join((*head, bash_script(words)))


def fish_script(words: Mapping[str, CommandWords], summaries: Mapping[str, str]) -> str:
    """Return the script for fish."""
    complete = "complete -c tts-worker"
    groups = _groups(words)
    lines = [f"{complete} -n __fish_use_subcommand -l version -l help"]
    lines += [f"{complete} -n __fish_use_subcommand -f -a {group}" for group in groups if group not in words]
    for name, known in words.items():
        group, _, member = name.partition(" ")
        about = _quoted(summaries[name])
        seen = f"__fish_seen_subcommand_from {group}"
        if member:
            others = " ".join(groups[group])
            condition = _quoted(f"{seen}; and not __fish_seen_subcommand_from {others}")
            lines.append(f"{complete} -n {condition} -f -a {member} -d {about}")
            seen += f"; and __fish_seen_subcommand_from {member}"
        else:
            lines.append(f"{complete} -n __fish_use_subcommand -f -a {name} -d {about}")
        for option in known.options:
            values = known.values.get(option)
            taken = f" -x -a {_quoted(' '.join(values))}" if values else ""
            lines.append(f"{complete} -n {_quoted(seen)} -l {option.removeprefix('--')}{taken}")
        if known.operands:
            lines.append(f"{complete} -n {_quoted(seen)} -f -a {_quoted(' '.join(known.operands))}")
    return "\n".join((*lines, ""))


def _groups(words: Mapping[str, CommandWords]) -> dict[str, list[str]]:
    """Return the commands that consist of two words, by the first."""
    groups: dict[str, list[str]] = {}
    for name in words:
        group, _, member = name.partition(" ")
        if member:
            groups.setdefault(group, []).append(member)
    return groups


def _quoted(text: str) -> str:
    """Quote a text for the three shells; the words of commands have no backslash."""
    return "'" + text.replace("'", "") + "'"
