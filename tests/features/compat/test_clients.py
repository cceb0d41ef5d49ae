"""The table of clients in the docs is that of the tests."""

from __future__ import annotations

import re

import pytest

from tests.features.compat.clients import CLIENTS, PAGE, TESTS, Client, with_table

SOURCES = {file: file.read_text("utf-8") for file in TESTS.rglob("test_*.py") if file.name != "test_clients.py"}
VENDORS = ("cartesia", "deepgram", "elevenlabs", "livekit.plugins", "openai", "pipecat.services")


def test_page_has_the_table() -> None:
    """After a change: ``python -m tests.features.compat.clients``."""
    page = PAGE.read_text("utf-8")
    assert page == with_table(page)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.package}-{client.parts[0]}")
def test_client_is_called_by_a_test(client: Client) -> None:
    loaded = f'LateModule("{client.module}'
    found = [text for text in SOURCES.values() if loaded in text] if client.module else list(SOURCES.values())
    for part in client.parts:
        assert any(part in text for text in found), part


def test_client_that_tests_call_is_in_the_table() -> None:
    named = {
        module
        for text in SOURCES.values()
        for module in re.findall(r'LateModule\("([\w.]+)', text)
        if module.startswith(VENDORS)
    }
    assert len(named) > 10
    prefixes = tuple(client.module for client in CLIENTS if client.module)
    assert [module for module in sorted(named) if not module.startswith(prefixes)] == []
