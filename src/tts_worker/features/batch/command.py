"""``tts-worker batch``: has a running worker synthesize a file of texts, and writes one audio file for each.

The folder keeps the id of the batch in ``.tts-worker-batch.json``, so that a repeated call with the same arguments
fetches what is missing, and submits again what has failed or what the worker no longer has.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints
from uuid import uuid4

from tts_worker.atomic_files import write_atomically
from tts_worker.audio.encoders import AudioFormat
from tts_worker.client import ClientSettings, connect
from tts_worker.client.batches import BatchOptions, BatchText, UnknownBatch, WorkerBatches
from tts_worker.commands.common import quiet_logs
from tts_worker.commands.progress import Bar
from tts_worker.errors import InvalidRequest, TTSWorkerError

STATE = ".tts-worker-batch.json"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPTIONS = BatchOptions.__annotations__.keys() - {"response_format", "lexicon"}  # a line may have a lexicon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help='text file with one item per line, or JSON lines such as {"id": "intro", "input": "Welcome."} with voice, '
        "speed, seed, language, instructions and lexicon where they differ (-: standard input)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the audio files")
    parser.add_argument(
        "--url",
        default="ws://127.0.0.1:8080",
        help="the running worker (default ws://127.0.0.1:8080; API key: TTS_WORKER_API_KEY)",
    )
    parser.add_argument("--voice", help="voice, one of those listed by `tts-worker voices`")
    parser.add_argument("--model", help="engine, if several have the voice")
    parser.add_argument("--speed", type=float, help="0.5 to 2.0 (default 1.0)")
    parser.add_argument(
        "--format", choices=[each.value for each in AudioFormat], default="wav", help="of the files (default wav)"
    )
    parser.add_argument("--sample-rate", type=int, metavar="HZ", help="8000 to 48000 (default 24000)")
    parser.add_argument(
        "--restart", action="store_true", help="cancel the unfinished batch of the folder and begin anew"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    texts = parse_texts(_read(args.file))
    options: dict[str, Any] = {name: value for name in _OPTIONS if (value := getattr(args, name, None)) is not None}
    options["response_format"] = args.format
    folder = BatchOutput(args.out, AudioFormat(args.format).extension, texts)
    try:
        return asyncio.run(_run(args, folder, options))
    except KeyboardInterrupt:
        if not args.quiet:
            print("the worker continues the batch; the same command fetches the rest", file=sys.stderr)
        raise


# -- input ------------------------------------------------------------------------------------------------------------


def _read(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8 (byte {error.start})") from None


def parse_texts(content: str) -> list[BatchText]:
    """Return the items of a file, each with an id. They are JSON lines if the first line begins with a brace.

    Raises:
        InvalidRequest: A line is invalid, two items have the same id, or there is none; names the line.
    """
    # Not ``splitlines``: JSON strings and texts may contain other separators.
    lines = [(number, line.strip()) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidRequest("the file has no text")
    is_json = lines[0][1].startswith("{")
    texts: list[BatchText] = []
    line_of: dict[str, int] = {}
    for position, (number, line) in enumerate(lines, 1):
        text = _parse_item(line, number) if is_json else BatchText(line)
        text = text if text.id else replace(text, id=f"{position:05}")
        # Two names that differ in case are the same file on some systems.
        first = line_of.setdefault(str(text.id).lower(), number)
        if first != number:
            raise InvalidRequest(f"line {number}: the id {text.id} is also that of line {first}")
        texts.append(text)
    return texts


def _parse_item(line: str, number: int) -> BatchText:
    try:
        data = json.loads(line)
    except ValueError:
        raise InvalidRequest(f"line {number} is not valid JSON") from None
    if not isinstance(data, dict) or not isinstance(data.get("input"), str):
        raise InvalidRequest(f'line {number}: an item is an object with its text as "input"')
    for name, value in data.items():
        if name not in _FIELDS:
            raise InvalidRequest(f"line {number}: unknown field {name[:64]!r}; there are: {', '.join(_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, _FIELDS[name]):
            raise InvalidRequest(f"line {number}: the type of {name} is wrong")
    name = data.get("id")
    if name and not _ID.fullmatch(name):
        raise InvalidRequest(f"line {number}: an id has letters, digits and ._-, at most 64, and begins with no sign")
    return BatchText(**data)


_FIELDS = {name: kind | int if kind == float | None else kind for name, kind in get_type_hints(BatchText).items()}


# -- output -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchState:
    """What the folder knows of its last batch.

    Attributes:
        batch: Its id; empty while the worker has not answered.
        arguments: Digest of the texts and options.
        numbers: The texts that it has, by number.
        is_finished: All its results were fetched.
        key: Its idempotency key.
    """

    batch: str
    arguments: str
    numbers: tuple[int, ...]
    is_finished: bool = False
    key: str = ""


class BatchOutput:
    """The audio files of texts in a folder, and the state of their batch. Its methods raise InvalidRequest."""

    def __init__(self, path: Path, extension: str, texts: Sequence[BatchText]) -> None:
        self.path = path
        self.texts = texts
        self._extension = extension

    def file(self, number: int) -> Path:
        """Return the file of a text. Its name is this side's, not the worker's."""
        return self.path / f"{self.texts[number].id}.{self._extension}"

    def missing(self, numbers: Sequence[int] | None = None) -> list[int]:
        """Return those of the texts that have no file."""
        return [
            each for each in (range(len(self.texts)) if numbers is None else numbers) if not self.file(each).exists()
        ]

    def read_state(self) -> BatchState | None:
        """Return the state; None if there is none."""
        try:
            data = json.loads((self.path / STATE).read_bytes())
            return BatchState(
                str(data["batch"]),
                str(data["arguments"]),
                tuple(int(each) for each in data["numbers"]),
                bool(data["is_finished"]),
                str(data.get("key", "")),
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError):
            raise InvalidRequest(f"{self.path / STATE} is damaged; without it the batch begins anew") from None

    def begin(self, state: BatchState) -> None:
        """Write the state of a new batch, whose files are missing from now on."""
        for number in state.numbers:
            try:
                self.file(number).unlink(missing_ok=True)
            except OSError as error:
                raise InvalidRequest(f"cannot replace {self.file(number)}: {error.strerror}") from None
        self.write_state(state)

    def write_state(self, state: BatchState) -> None:
        self._write(self.path / STATE, json.dumps(asdict(state)).encode())

    def restore_state(self, state: BatchState | None) -> None:
        if state is not None:
            self.write_state(state)
            return
        with suppress(OSError):
            (self.path / STATE).unlink()

    def write_audio(self, number: int, audio: bytes) -> None:
        self._write(self.file(number), audio)

    def make(self) -> None:
        """Make the folder before the worker has work."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"cannot write to {self.path}: {error.strerror}") from None

    def _write(self, file: Path, data: bytes) -> None:
        """Write a file that appears whole."""
        try:
            write_atomically(file, data)
        except OSError as error:
            raise InvalidRequest(f"cannot write {file}: {error.strerror}") from None


# -- the batch --------------------------------------------------------------------------------------------------------


async def _run(args: argparse.Namespace, folder: BatchOutput, options: dict[str, Any]) -> int:
    texts = [asdict(text) for text in folder.texts]
    arguments = hashlib.sha256(json.dumps([texts, options], sort_keys=True).encode()).hexdigest()
    folder.make()
    async with connect(args.url, ClientSettings(api_key=os.environ.get("TTS_WORKER_API_KEY"))) as client:
        with Bar(shown=not args.quiet, unit=f"of {len(texts)} items") as bar:
            failures = await _Synthesis(client.batches, folder, arguments, bar).run(options, restart=args.restart)
    for number in sorted(failures):
        error = failures[number]
        print(f"error: {folder.texts[number].id}: {error.message} ({error.code.value})", file=sys.stderr)
    if not args.quiet:
        print(f"{len(texts) - len(failures)} of {len(texts)} items -> {folder.path}", file=sys.stderr)
    return 1 if failures else 0


class _Synthesis:
    """One call of the command."""

    def __init__(self, batches: WorkerBatches, folder: BatchOutput, arguments: str, bar: Bar) -> None:
        self._batches = batches
        self._folder = folder
        self._arguments = arguments
        self._bar = bar
        self._failures: dict[int, TTSWorkerError] = {}

    async def run(self, options: dict[str, Any], *, restart: bool) -> dict[int, TTSWorkerError]:
        """Fetch what is missing; return the failed items by number."""
        state = await self._last(restart=restart)
        if state is not None and await self._continue(state):
            return self._failures
        if state is None or state.batch:
            numbers = self._folder.missing() if state is not None else range(len(self._folder.texts))
            state = BatchState("", self._arguments, tuple(numbers), key=str(uuid4()))
        if state.numbers:
            await self._fetch(await self._submit(state, options), 0)
        return self._failures

    async def _submit(self, state: BatchState, options: dict[str, Any]) -> BatchState:
        """Submit the texts of a state, which the folder has from now on: what becomes of it is known by its key."""
        before = self._folder.read_state()
        self._folder.write_state(state)
        texts = [self._folder.texts[number] for number in state.numbers]
        try:
            batch = await self._batches.submit(texts, idempotency_key=state.key, **options)
        except TTSWorkerError as error:
            if not error.retryable:  # the worker has refused it
                self._folder.restore_state(None if before == state else before)
            raise
        state = replace(state, batch=batch.id)
        self._folder.begin(state)
        return state

    async def _last(self, *, restart: bool) -> BatchState | None:
        """Return the state of the batch to continue; None to begin anew."""
        state = self._folder.read_state()
        if state is None:
            return None
        if restart:
            if state.batch:
                with suppress(UnknownBatch):
                    await self._batches.cancel(state.batch)
            return None
        if state.arguments == self._arguments:
            return state
        if not state.is_finished and state.batch:
            raise InvalidRequest(
                f"{self._folder.path} has an unfinished batch of other texts or options: "
                "repeat its command, use another folder, or --restart to cancel it"
            )
        return None

    async def _continue(self, state: BatchState) -> bool:
        """Fetch what was not fetched; return whether there was anything."""
        if not state.batch:
            return False
        try:
            progress = await self._batches.get(state.batch)
            failed = {each.index: each.error for each in progress.errors}
            missing = set(self._folder.missing(state.numbers))
            start = next(
                (at for at, number in enumerate(state.numbers) if number in missing and at not in failed), None
            )
            if start is None and state.is_finished:
                return False
            start = len(state.numbers) if start is None else start
            self._failures = {
                state.numbers[at]: error for at, error in failed.items() if at < start and error is not None
            }
            await self._fetch(state, start)
        except UnknownBatch:
            self._failures.clear()
            return False
        return True

    async def _fetch(self, state: BatchState, start: int) -> None:
        total = len(self._folder.texts)
        received = total - len(state.numbers) + start
        self._bar.update(f"batch {state.batch}", received, total)
        async with aclosing(self._batches.results(state.batch, start=start)) as results:
            async for result in results:
                number = state.numbers[result.index]
                if result.error is not None:
                    self._failures[number] = result.error
                else:
                    await asyncio.to_thread(self._folder.write_audio, number, result.audio)
                received += 1
                self._bar.update(f"batch {state.batch}", received, total)
        self._folder.write_state(replace(state, is_finished=True))
