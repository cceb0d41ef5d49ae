"""The behaviors of a session, and the transports on which they are tested."""

import pytest

_WITH_ASSERTIONS = ("control", "faults", "recording_client", "sessions", "speaking", "table")

pytest.register_assert_rewrite(*(f"tests.behavior.{name}" for name in _WITH_ASSERTIONS))
