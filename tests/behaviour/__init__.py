"""One table of what every session does, and the ways to a worker over which it is held."""

import pytest

pytest.register_assert_rewrite("tests.behaviour.behaviours", "tests.behaviour.ear")
