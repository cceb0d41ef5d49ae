"""Programs as real processes that start in a few milliseconds: copies of a process that has imported the package.

A Python process takes a second of processor time to import the package, and two with PyTorch. Tests of what programs do
after that start them here; tests of the start itself use ``subprocess``.

    with Program("-m", "tts_worker", "serve", "--port", "0", stdout=PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        server.terminate()
        assert server.wait() == 0
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE, CompletedProcess, TimeoutExpired
from types import TracebackType
from typing import IO, Any

NETWORKS = "torch.onnx", "tts_worker.engine.cosyvoice.engine", "tts_worker.engine.cosyvoice.loader"
"""What programs with a CosyVoice model import in addition, except ONNX Runtime, which starts a thread."""

PACKAGE = (
    *("tts_worker.serving", "tts_worker.engine.tone", "tts_worker.engine.cpu.hibari.engine"),
    *("uvicorn", "uvloop", "httptools", "websockets.asyncio.client", "httpx", "soundfile"),
)
"""What most programs import, beside their commands."""

_MAX_REQUEST = 1 << 20
_ROOT = Path(__file__).parents[2]


@lru_cache
def _parent(modules: tuple[str, ...]) -> socket.socket:
    """Start the process that the programs are copies of; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Program:
    """A running program, with what tests use of ``subprocess.Popen``. It is killed at the end of the ``with``.

    Attributes:
        pid: Its process.
        stdin: Where ``PIPE`` was asked for, a stream to its standard input, binary or text as it was started.
        stdout: The same of its standard output.
        stderr: The same of its standard error.
        returncode: How it ended, as in ``subprocess``; None until ``wait`` or ``poll`` has seen it.
    """

    def __init__(
        self,
        *words: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        file_limit: int = resource.RLIM_INFINITY,
        modules: tuple[str, ...] = (),
    ) -> None:
        """Start ``python`` with these words.

        Args:
            words: ``-m`` and a module, or ``-c`` and the program itself, and arguments.
            cwd: Its folder.
            env: Its environment; what Python itself reads at its start has no effect.
            stdin: As for ``subprocess``, also the two below.
            stdout: Its standard output, or None for that of this process.
            stderr: Its standard error, or None for that of this process.
            text: Whether the pipes are of text.
            file_limit: Bytes that a file may have.
            modules: What its parent has imported beside ``PACKAGE``, such as ``NETWORKS``.
        """
        request = {
            "words": words,
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "file_limit": file_limit,
        }
        mode = "" if text else "b"
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        with _open_files() as theirs:
            if stdin == PIPE:
                read, write = os.pipe()
                self.stdin = open(write, f"w{mode}")  # noqa: SIM115
                stdin = theirs(read)
            if stdout == PIPE:
                read, write = os.pipe()
                self.stdout = open(read, f"r{mode}")  # noqa: SIM115
                stdout = theirs(write)
            if stderr == PIPE:
                read, write = os.pipe()
                self.stderr = open(read, f"r{mode}")  # noqa: SIM115
                stderr = theirs(write)
            standard = [_descriptor(given, default, theirs) for default, given in enumerate((stdin, stdout, stderr))]
            self._status, reply = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with reply:
                message = json.dumps(request).encode()
                socket.send_fds(_parent(modules), [message], [*standard, reply.fileno()])
            self.pid = int(self._status.recv(64))

    def poll(self) -> int | None:
        """Return how it ended, or None."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return how it ended.

        Raises:
            TimeoutExpired: It goes on.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutExpired(f"program {self.pid}", timeout or 0.0)
            self._ended()
        assert self.returncode is not None
        return self.returncode

    def _ended(self) -> None:
        self.returncode = int(self._status.recv(64))
        self._status.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, more: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write ``more`` to its standard input, wait for its end, and return what is left of its outputs."""
        outputs = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        with ThreadPoolExecutor(2) as readers:
            reading = [readers.submit(stream.read) for stream in outputs]
            if self.stdin is not None:
                if more is not None:
                    self.stdin.write(more)
                self.stdin.close()
            try:
                self.wait(timeout)
            finally:
                self.kill()  # otherwise the readers would not end
            read = iter([each.result() for each in reading])
        return tuple(None if stream is None else next(read) for stream in (self.stdout, self.stderr))  # type: ignore

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def run(*words: str, **options: Any) -> CompletedProcess[str]:
    """Run a program to its end, and return its outputs. ``options``: those of ``Program``."""
    with Program(*words, **{"stdout": PIPE, "stderr": PIPE, **options}, text=True) as program:
        out, err = program.communicate(timeout=300)
        return CompletedProcess(words, program.wait(), out, err)


@contextmanager
def _open_files() -> Iterator[Any]:
    """Yield a function that takes descriptors, which are closed in the end."""
    opened: list[int] = []

    def keep(descriptor: int) -> int:
        opened.append(descriptor)
        return descriptor

    try:
        yield keep
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _descriptor(given: int | IO[Any] | None, default: int, keep: Any) -> int:
    """Return the descriptor of a standard stream."""
    if given is None:
        return default
    if not isinstance(given, int):
        return given.fileno()
    return keep(os.open(os.devnull, os.O_RDWR)) if given == subprocess.DEVNULL else given  # type: ignore[no-any-return]


# -- the parent -------------------------------------------------------------------------------------------------------


def _import(modules: list[str]) -> None:
    from tts_worker.cli import all_commands

    for module in (*PACKAGE, *(command.module for command in all_commands().values()), *modules):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:  # of an extra
            if error.name is None or error.name.startswith("tts_worker"):
                raise
    assert len(os.listdir("/proc/self/task")) == 1, "a library has started a thread, of which a copy has only the locks"
    _keep_forever()


def _keep_forever() -> None:
    """Spare the copies to take apart at their end what was imported, which takes longer than most of them run."""
    names = [dict(vars(module)) for module in list(sys.modules.values()) if module is not None]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(names))
    gc.collect()
    gc.freeze()


def _copies(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Copy this process for each request; return in a copy, with its request and its standard streams.

    Raises:
        SystemExit: In this process, when there will be no more requests.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    message, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, 4)
                    if not message:
                        sys.exit()
                    *standard, reply = descriptors
                    pid = os.fork()
                    if not pid:
                        control.close()
                        return json.loads(message), standard
                    for descriptor in standard:
                        os.close(descriptor)
                    os.write(reply, str(pid).encode())
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reply))
                else:
                    pid, reply = key.data
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(BrokenPipeError):  # no test waits
                        os.write(reply, str(code).encode())
                    os.close(reply)


def _run(request: dict[str, Any], standard: list[int]) -> None:
    """Become the program of a request."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, max(standard) + 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], resource.RLIM_INFINITY))
    kind, program, *arguments = request["words"]
    sys.argv = [kind, *arguments]
    if kind == "-c":
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(program, "<string>", "exec"), vars(main))
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _import(sys.argv[2:])
    _run(*_copies(socket.socket(fileno=int(sys.argv[1]))))
