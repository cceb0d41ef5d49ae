"""What every vendor's API does alike: the same audio, errors in its own form, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from tests.behavior.faults import fault_at
from tests.behavior.table import LONG
from tests.behavior.transports import Setup, serve_setup
from tests.conftest import serving
from tests.features.compat.vendors import DOWNLOADS, SOCKETS, Download, Refused, Socket, Vendor
from tests.integration.test_websocket import until_live_sessions
from tts_worker.engine.tone import Fault
from tts_worker.errors import HTTP_STATUS, ErrorCode

KEY = "key-of-a-client"
TEXT = "Hello there, my friend. How are you today?"
BYTES = 2 * 24 * 60 * sum(map(str.isalpha, TEXT))  # at least: the tone engine takes 60 ms a letter
QUIET = bytes(2 * 2_400)  # 100 ms
VENDORS: tuple[Vendor, ...] = (*DOWNLOADS, *SOCKETS)
BY_NAME = {"ids": lambda value: getattr(value, "name", repr(value))}
every_vendor = pytest.mark.parametrize("vendor", VENDORS, **BY_NAME)
every_socket = pytest.mark.parametrize("vendor", SOCKETS, **BY_NAME)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address() -> AsyncIterator[str]:
    # On a busy machine the gap between two messages may exceed flush_after_ms.
    async with serving(session={"flush_after_ms": 0}) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded() -> AsyncIterator[str]:
    async with serving(server={"api_keys": [KEY]}) as address:
        yield address


async def spoken(vendor: Vendor, address: str, text: str = TEXT, **options: Any) -> bytes:
    async with aclosing(vendor.speak(address, text, **options)) as audio:  # type: ignore[type-var]
        return b"".join([part async for part in audio])


async def refusal(vendor: Vendor, address: str, text: str = TEXT, **options: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await spoken(vendor, address, text, **options)
    return caught.value


def check(vendor: Vendor, error: Refused, code: ErrorCode) -> None:
    """Check that it is this error: in a response with its status, else in a message."""
    expected = vendor.codes.get(code.value, code.value) if error.status == 0 else code.value
    assert error.code.lower() == expected.lower()
    assert error.status in (0, vendor.statuses.get(code.value, HTTP_STATUS[code]))
    assert error.status or isinstance(vendor, Socket)
    assert error.message


@every_vendor
async def test_audio_is_that_of_all_others(address: str, vendor: Vendor) -> None:
    for voice in ("tone", "tone-low"):
        expected = await spoken(DOWNLOADS[0], address, voice=voice)
        assert len(expected) >= BYTES
        own = {"size": len(expected)} if isinstance(vendor, Socket) else {}
        assert await spoken(vendor, address, voice=voice, **own) == expected


@every_socket
@pytest.mark.parametrize("chars", [1, 7])
async def test_audio_does_not_depend_on_how_the_text_is_cut(address: str, vendor: Socket, chars: int) -> None:
    parts = [TEXT[start : start + chars] for start in range(0, len(TEXT), chars)]
    expected = await spoken(DOWNLOADS[0], address)
    assert await spoken(vendor, address, parts=parts, size=len(expected)) == expected


@every_vendor
@pytest.mark.parametrize("text", ["...", "🎉", "—"])
async def test_turn_with_nothing_to_say_is_silence(address: str, vendor: Vendor, text: str) -> None:
    own = {"size": len(QUIET)} if isinstance(vendor, Socket) else {}
    assert await spoken(vendor, address, text, **own) == QUIET


@every_vendor
async def test_key_is_read_where_the_client_has_it(guarded: str, vendor: Vendor) -> None:
    expected = await spoken(DOWNLOADS[0], guarded, key=KEY)
    own = {"size": len(expected)} if isinstance(vendor, Socket) else {}
    assert await spoken(vendor, guarded, key=KEY, **own) == expected
    error = await refusal(vendor, guarded, key="wrong")
    assert error.status == 401
    check(vendor, error, ErrorCode.UNAUTHENTICATED)


@every_vendor
async def test_unknown_voice_is_refused(address: str, vendor: Vendor) -> None:
    error = await refusal(vendor, address, voice="missing")
    check(vendor, error, ErrorCode.UNKNOWN_VOICE)
    assert "missing" in error.message


@every_vendor
async def test_invalid_message_is_refused(address: str, vendor: Vendor) -> None:
    error = await refusal(vendor, address, fields=vendor.invalid)
    check(vendor, error, ErrorCode.INVALID_REQUEST)
    assert TEXT not in error.message
    await until_live_sessions(address, 0)


@every_vendor
async def test_too_long_text_is_refused(address: str, vendor: Vendor) -> None:
    check(vendor, await refusal(vendor, address, "x" * 100_001), ErrorCode.TEXT_TOO_LONG)


@pytest.mark.parametrize("vendor", DOWNLOADS, **BY_NAME)
async def test_blank_text_is_refused(address: str, vendor: Download) -> None:
    check(vendor, await refusal(vendor, address, " \n"), ErrorCode.UNSPEAKABLE_TEXT)


@every_vendor
async def test_client_that_goes_frees_the_session(address: str, vendor: Vendor) -> None:
    async with aclosing(vendor.speak(address, LONG * 20)) as audio:  # type: ignore[type-var]
        assert await anext(audio)
    await until_live_sessions(address, 0)


@every_socket
async def test_stop_frees_the_session(address: str, vendor: Socket) -> None:
    async with vendor.dial(address) as socket:
        await vendor.write(socket, [LONG * 5])
        await anext(vendor.read(socket))
        await socket.send(json.dumps(vendor.stop))
        await until_live_sessions(address, 0)


@pytest.mark.asyncio(loop_scope="function")
@every_vendor
async def test_full_worker_refuses(vendor: Vendor) -> None:
    async with (
        serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address,
        SOCKETS[0].dial(address) as busy,
    ):
        await SOCKETS[0].write(busy, [LONG])
        await anext(SOCKETS[0].read(busy))
        check(vendor, await refusal(vendor, address), ErrorCode.OVER_CAPACITY)


@pytest.mark.asyncio(loop_scope="function")
@every_vendor
@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.TRUNCATE])
async def test_incomplete_speech_is_an_error(vendor: Vendor, fault: Fault) -> None:
    async with serve_setup(Setup(engine=fault_at(fault, chunk=2, generation=1))) as address:
        assert (await refusal(vendor, address, LONG)).message
        await until_live_sessions(address, 0)
