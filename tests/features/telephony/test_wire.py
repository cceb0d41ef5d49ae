"""Messages of media streams: every input is an event, ignored, or an InvalidRequest."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_worker.errors import InvalidRequest
from tts_worker.features.telephony.wire import TELNYX, TWILIO, MediaStreamFormat, StreamEvent

FORMATS = (TWILIO, TELNYX)
NAMES = sorted(
    {"start", "media", "mark", "dtmf", "stop", "payload", "name", "digit", "track", "encoding"}
    | {name for wire in FORMATS for name in (wire.stream_id, wire.call_id, wire.parameters, wire.media_format)}
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["AA==", "MZ1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=8,
)
messages = st.builds(
    lambda event, fields: {**fields, "event": event},
    st.sampled_from(["connected", "start", "media", "mark", "dtmf", "stop", "new", 1, None]),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=6),
)


@given(st.sampled_from(FORMATS), messages.map(json.dumps) | st.text(max_size=20) | st.binary(max_size=4))
def test_any_message_is_an_event_or_invalid(wire: MediaStreamFormat, raw: str | bytes) -> None:
    with suppress(InvalidRequest):
        assert isinstance(wire.parse(raw), (*get_args(StreamEvent), type(None)))


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.provider)
def test_errors_name_the_field_and_not_its_value(wire: MediaStreamFormat) -> None:
    start: dict[str, Any] = {wire.call_id: "secret call"}
    with pytest.raises(InvalidRequest, match=wire.call_id) as caught:
        wire.parse(json.dumps({"event": "start", wire.stream_id: "MZ", "start": start}))
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidRequest, match=r"media\.payload is not valid base64"):
        wire.parse('{"event": "media", "media": {"payload": "A"}}')


def test_audio_of_the_other_direction_is_ignored() -> None:
    assert TWILIO.parse('{"event": "media", "media": {"track": "outbound", "payload": "AA=="}}') is None
