"""Command line entry point: imports the module of the command and turns typed errors into exit codes.

Exit codes: 0 success, 1 failure (the reason is on standard error), 2 wrong usage, 75 the device is lost for this
process (start it again), 130 interrupted. A command is a module of ``tts_worker.commands`` with
``add_arguments(parser)`` and ``run(args)``. It is imported late, so that a command runs where the packages of
the others are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol, cast

from tts_worker.errors import DeviceLost, ErrorCode, MissingExtra, TTSWorkerError
from tts_worker.feature import Command, feature_commands
from tts_worker.logs import discard_output
from tts_worker.version import __version__

COMMANDS: dict[str, str] = {
    "say": "speak text to the loudspeaker, a file or standard output; also text from a pipe, as it arrives",
    "serve": "run the server: WebSocket, OpenAI-compatible speech API, web page, metrics",
    "config init": "write a configuration with settings, their defaults and their meaning",
    "config check": "report everything that is invalid in a configuration, by line",
    "doctor": "report what is installed, what is missing and how to install it",
}
"""Command of the core -> summary. ``config init`` is the module ``config_init``. Features add further commands."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "say": (
        'say "Hello there."',
        'say --speed 1.2 --out hello.mp3 "Hello there."',
        "say --file story.txt --out story.wav",
        'say --url ws://127.0.0.1:8080 --voice heart "Hello there."',
    ),
    "serve": (
        "serve --open",
        "serve --port 9000 --config worker.yaml",
        "serve --set session.lead_ms=60",
    ),
    "config init": ("config init --short", "config init /etc/tts-worker.yaml"),
    "config check": ("config check worker.yaml",),
    "doctor": ("doctor", "doctor --json"),
}
"""Command of the core -> examples for its help, without the program's name."""

_EXAMPLES_TITLE = "examples:"

EXIT_DEVICE_LOST = 75
"""EX_TEMPFAIL of sysexits.h: the device is lost for this process, but the next one may use it."""

_COSYVOICE_PACKAGES = frozenset({"torch", "tokenizers"})
"""Packages of the extra ``cosyvoice`` that its commands import."""

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""A full disk, a quota, and ``ulimit -f``."""

_MISUSE = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.CONFIG, ErrorCode.UNKNOWN_VOICE, ErrorCode.UNKNOWN_MODEL})


class CommandModule(Protocol):
    """What a command consists of."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; argparse exits directly on ``--help`` and wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    name, command = _find_command(words)
    if command is None:
        return _help(words)
    rest = words[len(name.split()) :]
    summary = _sentence(command.summary)
    return run_module(f"tts-worker {name}", command.module, rest, description=summary, examples=command.examples)


def run_module(
    prog: str, module: str, words: Sequence[str], *, description: str = "", examples: Sequence[str] = ()
) -> int:
    """Import the module of a command and run it as ``run_command`` does."""
    try:
        command = cast(CommandModule, importlib.import_module(module))
    except ModuleNotFoundError as error:
        return _fail(_missing_extra(prog, error))
    return run_command(prog, command, words, description=description, examples=examples)


def all_commands() -> dict[str, Command]:
    """Return the commands of the core and of the features, by name."""
    return {**{name: _own_command(name) for name in COMMANDS}, **feature_commands()}


def _own_command(name: str) -> Command:
    module = f"tts_worker.commands.{name.replace(' ', '_')}"
    return Command(COMMANDS[name], module, EXAMPLES.get(name, ()))


def run_command(
    prog: str, module: CommandModule, words: Sequence[str], *, description: str = "", examples: Sequence[str] = ()
) -> int:
    """Parse the arguments of a command, run it and return the exit code; a typed error goes to standard error."""
    parser = _Parser(
        prog=prog,
        description=description or module.__doc__,
        epilog=_examples(examples),
        formatter_class=_HelpFormatter,
    )
    try:
        module.add_arguments(parser)
        code = module.run(parser.parse_args(words))
        sys.stdout.flush()
        return code
    except TTSWorkerError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        return _fail(_missing_extra(prog, error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output is gone (``| head``)
        discard_output()
        return 1
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        discard_output()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def _fail(error: TTSWorkerError) -> int:
    """Report ``error`` and return the exit code of the command."""
    print(f"error: {error.message}", file=sys.stderr)
    if isinstance(error, DeviceLost):
        _exit_without_destructors(EXIT_DEVICE_LOST)
    return 2 if error.code in _MISUSE else 1


def _missing_extra(prog: str, error: ModuleNotFoundError) -> MissingExtra:
    """Return the error that names the extra with the missing package.

    Raises:
        ModuleNotFoundError: It belongs to no extra, so that ``error`` is a defect.
    """
    if error.name not in _COSYVOICE_PACKAGES:
        raise error
    return MissingExtra(prog, "cosyvoice")


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, but not the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES_TITLE) else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    """Suggests the option that was probably meant."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            message += _suggestion(unknown[1], options)
        super().error(message)


def _suggestion(word: str, known: Iterable[str]) -> str:
    """Return a question that names the most similar of the known words, or nothing."""
    similar = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _examples(lines: Sequence[str]) -> str | None:
    return "\n".join((_EXAMPLES_TITLE, *(f"  tts-worker {line}" for line in lines))) if lines else None


def _exit_without_destructors(code: int) -> NoReturn:
    """End the process: an ordinary exit frees the memory of a device that does not answer, which may hang or abort."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or its reader is gone
            stream.flush()
    os._exit(code)


def _sentence(text: str) -> str:
    """Return ``text`` as a sentence; names keep their capitals."""
    return f"{text[:1].upper()}{text[1:]}."


def _find_command(words: list[str]) -> tuple[str, Command | None]:
    """Return the longest command that ``words`` begin with; reads the records of features if the core has none."""
    names = (" ".join(words[:2]), " ".join(words[:1]))
    if (own := next(filter(COMMANDS.__contains__, names), None)) is not None:
        return own, _own_command(own)
    commands = feature_commands()
    name = next(filter(commands.__contains__, names), names[-1])
    return name, commands.get(name)


def _help(words: list[str]) -> int:
    if words == ["--version"]:
        print(f"tts-worker {__version__}")
        return 0
    wants_help = not words or words[0] in ("-h", "--help", "help")
    commands = all_commands()
    group = words[0] if words and any(name.startswith(f"{words[0]} ") for name in commands) else ""
    shown = {name: command.summary for name, command in commands.items() if name.startswith(group)}
    lines = [f"  {name:15} {text}" for name, text in shown.items()]
    text = "\n".join(["usage: tts-worker COMMAND [--help] ...", "", *lines])
    if wants_help or (group and set(words[1:]) <= {"-h", "--help"}):
        print(text)
        return 0
    asked = " ".join(words[:2] if group else words[:1])[:64]
    print(f'error: there is no command "{asked}"{_suggestion(asked, commands)}\n{text}', file=sys.stderr)
    return 2


def entry() -> None:
    """Console script."""
    _open_standard_streams()
    sys.exit(main())


def _open_standard_streams() -> None:
    """Open the null device for standard streams that are closed.

    Otherwise sockets take their numbers, and libuv aborts the process when it closes a descriptor below 3.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (as long as the process)


if __name__ == "__main__":
    entry()
