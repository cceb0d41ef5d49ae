"""One table of what every session does, and the ways to a worker over which it is held."""

import pytest

_CHECKING = ("control", "ear", "faults", "sessions", "speaking", "table")

pytest.register_assert_rewrite(*(f"tests.behaviour.{name}" for name in _CHECKING))
