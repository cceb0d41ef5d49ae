"""Many cases in one test: a test of its own would cost each case, in every process, more than what most compute."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each case, as ``pytest.mark.parametrize`` does, and report all that fail in the end.

    It is for tests without fixtures: what one case leaves in a fixture, the next one would find.

    Args:
        names: Arguments of the test, as one text with commas or several.
        cases: Values of the arguments; the values themselves where there is one argument.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    rows = [dict(zip(keys, (case,) if len(keys) == 1 else case, strict=True)) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        assert inspect.signature(test).parameters.keys() == {*keys}, "it has fixtures"

        @wraps(test)
        def run() -> None:
            failed = []
            for row in rows:
                try:
                    test(**row)
                except (Exception, pytest.fail.Exception) as error:
                    values = ", ".join(f"{key}={value!r}" for key, value in row.items())
                    failed.append(f"{values}\n{type(error).__name__}: {error}")
            if failed:
                pytest.fail("\n\n".join((f"{len(failed)} of {len(rows)} cases failed", *failed)), pytrace=False)

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for its arguments
        assert rows, "no cases"
        return run

    return decorate
