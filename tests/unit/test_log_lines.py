"""Log lines: a record is one line, whatever a client has put into it."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.logs import JsonLines, TextLines, fields

FORGED = "/x\n2026-11-28 00:00:00,000 INFO tts_worker.audit: add_voice 'boss' key=operator"


def record(message: str = "rejected %s", *args: object, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("tts_worker.test", logging.WARNING, "", 0, message, args, None)
    made.__dict__.update(fields(**values))
    return made


@given(text=st.text())
def test_text_of_a_client_stays_in_its_line(text: str) -> None:
    for formatter in (TextLines(), JsonLines()):
        line = formatter.format(record("rejected %s", text, path=text, client=text))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line


def test_forged_line_of_the_review_is_escaped() -> None:
    line = TextLines().format(record(path=FORGED))
    assert line.count("\n") == 0
    assert "\\n2026-11-28" in line or "\\u000a2026-11-28" in line


def test_value_cannot_pretend_to_be_another_field() -> None:
    line = TextLines().format(record("rejected", client="10.0.0.1 key=admin", code="forbidden"))
    assert line.endswith('client="10.0.0.1 key=admin" code=forbidden')


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_text_of_an_exception_is_indented(formatter: logging.Formatter) -> None:
    made = record("failed")
    try:
        raise ValueError(FORGED)
    except ValueError:
        made.exc_info = sys.exc_info()
    lines = formatter.format(made).split("\n")
    assert all(line.startswith("  ") for line in lines[1:])


@given(text=st.text())
def test_json_line_keeps_the_value(text: str) -> None:
    assert json.loads(JsonLines().format(record("m", path=text)))["path"] == text
