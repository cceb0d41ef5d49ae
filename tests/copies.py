"""Runs tests in copies of the process that has collected them: ``-p tests.copies --copies 4``, where there is ``fork``.

Each process of pytest-xdist imports and collects all tests again, which takes longer than most modules of them. A copy
has them. It is given one portion of the tests at a time (``pytest_portion``), in the order of collection, and shares
what fixtures of the session make.
"""

from __future__ import annotations

import atexit
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

Portion = list[int]
"""Indices of ``session.items``; empty: there are no more."""

Reports = list[dict[str, Any]]
"""What is to report about one test."""


class _Hooks:
    @pytest.hookspec(firstresult=True)
    def pytest_portion(self, item: pytest.Item) -> str | None:
        """Return what the tests that one copy runs together have in common; otherwise it is their module."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(_Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--copies", type=int, default=0, help="run tests in so many copies of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if not option.copies or option.collectonly or session.testsfailed:
        return None
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.showfspath = False  # the tests of several modules take turns
    reporter.flush()
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one folder for all copies
    with _Run(session).ended() as run:
        run.until_all_have_run(option.copies)
    return True


@dataclass
class _Copy:
    """A copy of this process, as it looks from here.

    Attributes:
        process: Its id.
        connection: Takes portions, one more before the last test of a portion, and gives reports.
        waiting: The tests that it was given and that have not ended.
    """

    process: int
    connection: Connection
    waiting: Portion = field(default_factory=list)


class _Run:
    """All tests of a session, in copies of this process."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._copies: list[_Copy] = []
        of = session.config.hook.pytest_portion

        def portion(index: int) -> str:
            item = session.items[index]
            return of(item=item) or item.nodeid.partition("::")[0]

        self._portions = deque([*tests] for _, tests in groupby(range(len(session.items)), portion))

    @contextmanager
    def ended(self) -> Iterator[_Run]:
        """End all copies in the end; in case of an error, with what their tests have opened."""
        try:
            yield self
        except BaseException:
            for copy in self._copies:
                os.kill(copy.process, signal.SIGINT)
            raise
        finally:
            for copy in self._copies:
                copy.connection.close()
                os.waitpid(copy.process, 0)

    def until_all_have_run(self, copies: int) -> None:
        """Give out all portions, and report what comes back.

        Raises:
            Failed: As many tests failed as ``--maxfail`` says.
        """
        for _ in range(min(copies, len(self._portions))):
            self._start(self._next())
        while any(copy.waiting for copy in self._copies):
            for connection in wait([copy.connection for copy in self._copies if copy.waiting]):
                copy = next(each for each in self._copies if each.connection is connection)
                reports: Reports | None = None
                ended = False
                try:
                    reports = copy.connection.recv()
                except (EOFError, ConnectionError):
                    ended = True
                if ended:
                    self._replace(copy)
                elif reports is None:
                    portion = self._next()
                    copy.waiting += portion
                    with suppress(ConnectionError):  # it has just ended
                        copy.connection.send(portion)
                else:
                    self._report(copy.waiting.pop(0), reports)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)

    def _next(self) -> Portion:
        return self._portions.popleft() if self._portions else []

    def _start(self, portion: Portion) -> None:
        ours, theirs = Pipe()
        process = os.fork()
        if not process:
            for connection in (ours, *(copy.connection for copy in self._copies)):
                connection.close()
            _become_copy(self._session, theirs, portion)
        theirs.close()
        self._copies.append(_Copy(process, ours, [*portion]))

    def _replace(self, copy: _Copy) -> None:
        """Report the test that has ended a copy; run those that were left to it in another one."""
        self._copies.remove(copy)
        copy.connection.close()
        how = os.waitstatus_to_exitcode(os.waitpid(copy.process, 0)[1])
        index, *left = copy.waiting
        item = self._session.items[index]
        message = f"its process ended: {signal.Signals(-how).name if how < 0 else how}"
        report = pytest.TestReport(item.nodeid, item.location, dict(item.keywords), "failed", message, "call")
        self._report(index, [_serialized(self._session, report)])
        if left:
            self._start(left)

    def _report(self, index: int, reports: Reports) -> None:
        config, item = self._session.config, self._session.items[index]
        config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in reports:
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            config.hook.pytest_runtest_logreport(report=report)
        config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _serialized(session: pytest.Session, report: pytest.TestReport) -> dict[str, Any]:
    data: dict[str, Any] = session.config.hook.pytest_report_to_serializable(config=session.config, report=report)
    return data


# -- in a copy --------------------------------------------------------------------------------------------------------


class _Recorder:
    """Keeps the reports of a test."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self.reports: Reports = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(_serialized(self._session, report))


def _become_copy(session: pytest.Session, connection: Connection, portion: Portion) -> NoReturn:
    """Run portions until one is empty; end this process, and leave the end of the session to the original."""
    code = 1
    try:
        # The original has gone, or does not want to know any more.
        with suppress(EOFError, ConnectionError, KeyboardInterrupt):
            _run_portions(session, connection, portion)
        atexit._run_exitfuncs()  # folders that are deleted at the end of the process
        code = 0
    except BaseException:
        session.config.get_terminal_writer().write(traceback.format_exc(), flush=True)
    finally:
        os._exit(code)


def _run_portions(session: pytest.Session, connection: Connection, portion: Portion) -> None:
    """Run the tests of a portion, and of those that follow until one is empty.

    Raises:
        KeyboardInterrupt: The run ends; what the test has opened is closed.
    """
    plugins = session.config.pluginmanager
    writer = session.config.get_terminal_writer()
    plugins.unregister(name="terminalreporter")
    plugins.register(SimpleNamespace(_tw=writer), "terminalreporter")  # pytest-timeout writes there what hangs
    capture = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()  # into files whose positions all copies would share
    capture.start_global_capturing()
    recorder = _Recorder(session)
    plugins.register(recorder)
    while portion:
        index, *portion = portion
        if not portion:  # before the last one: what its fixtures made is kept if the next test needs it
            connection.send(None)
            portion = connection.recv()
        item = session.items[index]
        recorder.reports = []
        try:
            following = session.items[portion[0]] if portion else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except KeyboardInterrupt:
            item.config.hook.pytest_runtest_teardown(item=item, nextitem=None)
            raise
        connection.send(recorder.reports)
