"""The codecs: messages survive both encodings, and invalid ones are errors that show no value."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tts_worker.errors import GRPC_STATUS, HTTP_STATUS, ErrorCode, ErrorInfo, InvalidRequest, TTSWorkerError
from tts_worker.protocol import json_codec
from tts_worker.protocol.messages import (
    ChunkMessage,
    ClearMessage,
    CloseMessage,
    ConfigureMessage,
    EndMessage,
    FlushMessage,
    InvalidMessage,
    Message,
    NothingStoppedMessage,
    PausedMessage,
    PauseMessage,
    PingMessage,
    PlayedMessage,
    PongMessage,
    ReadyMessage,
    RejectedMessage,
    ResumedMessage,
    ResumeMessage,
    StartedMessage,
    StartMessage,
    StopMessage,
    TextMessage,
    WordsMessage,
    report_message,
)
from tts_worker.types import Alignment, Outcome, Receipt, SessionOptions, UrlMode, Word

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
samples = st.integers(0, 2**40)
numbers = st.integers(1, 2**40)
flags = st.booleans()
voices: dict[str, Any] = {
    "voice": st.none() | names,
    "speed": st.floats(0.5, 2.0),
    "seed": st.integers(0, 2**62),
    "language": st.none() | st.sampled_from(["en-US", "de"]),
    "instruct": st.none() | texts,
}
starts = st.builds(
    StartMessage,
    **voices,
    model=st.none() | names,
    needs=st.lists(names, max_size=3).map(tuple),
    realtime=flags,
    raw_chunks=flags,
    lead_ms=st.none() | st.floats(0, 1_000),
    frame_ms=st.none() | st.integers(5, 200),
    sample_rate=st.sampled_from([None, 8_000, 48_000]),
    encoding=st.sampled_from([None, "pcm_s16le", "mulaw", "opus", "wav"]),
    lexicon=st.none() | names | st.dictionaries(names, texts, max_size=3),
    markdown=st.none() | flags,
    urls=st.sampled_from([None, "drop", "host", "keep"]),
    normalize=st.none() | flags,
    pause_timeout_s=st.none() | st.floats(0.1, 60),
    text_idle_timeout_s=st.none() | st.floats(0.1, 60),
    flush_after_ms=st.none() | st.floats(0, 1_000),
)
stops = st.builds(
    StopMessage, played_samples=st.none() | samples, utterance=st.none() | numbers, reason=st.none() | names
)
client_messages = st.one_of(
    starts,
    st.builds(TextMessage, text=texts, context=names),
    st.builds(EndMessage, context=names),
    st.sampled_from([FlushMessage(), PauseMessage(), ResumeMessage()]),
    stops,
    st.builds(PlayedMessage, samples=samples, utterance=st.none() | numbers),
)
words = st.lists(st.builds(Word, texts, *(samples for _ in range(4))), max_size=3).map(tuple)
receipts = st.builds(
    Receipt,
    reason=texts,
    samples_generated=samples,
    samples_sent=samples,
    samples_played=st.none() | samples,
    text_spoken=texts,
    text_remaining=texts,
    words=words,
    alignment=st.sampled_from(Alignment),
)
errors = st.builds(ErrorInfo, st.sampled_from(ErrorCode), names, flags, st.none() | st.floats(0, 100))
reports = st.builds(
    lambda outcome, receipt, error, context: report_message(
        outcome, receipt, error if outcome is Outcome.ERROR else None, context=context
    ),
    st.sampled_from(Outcome),
    receipts,
    errors,
    names,
)
worker_messages = st.one_of(
    st.builds(ReadyMessage, protocol=st.just(1), session=names, sample_rate=st.just(24_000), voice=names),
    st.builds(StartedMessage, utterance=st.just(0) | numbers, context=names, **{**voices, "voice": names}),
    st.builds(WordsMessage, words=words),
    st.builds(ChunkMessage, **dict.fromkeys(("utterance", "index", "start_sample", "samples"), samples), sha256=names),
    st.builds(PausedMessage, applied=flags, position_samples=samples),
    st.builds(ResumedMessage, applied=flags, position_samples=samples),
    st.builds(NothingStoppedMessage, applied=st.just(False), position_samples=samples),
    reports,
    st.builds(RejectedMessage.of, errors, st.none() | names, names),
)


@settings(deadline=None, max_examples=60)
@given(
    message=client_messages
    | st.builds(PingMessage, id=st.none() | st.integers(-(2**63), 2**63 - 1) | names)
    | st.builds(TextMessage, text=texts, end=flags)
    | st.sampled_from([CloseMessage(), EndMessage(), ClearMessage(reason="x")])
)
def test_client_messages_survive_json(message: Any) -> None:
    decoded = json_codec.parse_client_message(json_codec.dumps(message))
    assert (type(decoded), decoded) == (type(message), message)


@settings(deadline=None, max_examples=60)
@given(message=worker_messages | st.builds(PongMessage, id=st.none() | st.integers(0, 9) | names))
def test_worker_messages_survive_json(message: Any) -> None:
    decoded = json_codec.parse_worker_message(json_codec.dumps(message))
    assert (type(decoded), decoded) == (type(message), message)


@settings(deadline=None, max_examples=60)
@given(message=client_messages | st.builds(ConfigureMessage, **voices))
def test_client_messages_survive_protobuf(message: Any) -> None:
    codec = pytest.importorskip("tts_worker.protocol.proto_codec", reason="needs the extra 'grpc'")
    request = codec.encode_client_message(message)
    decoded = codec.parse_client_message(type(request).FromString(request.SerializeToString()))
    assert (type(decoded), decoded) == (type(message), message)


@settings(deadline=None, max_examples=60)
@given(message=worker_messages)
@example(message=ChunkMessage(utterance=0, index=0, start_sample=0, samples=2**31, sha256="0"))
def test_worker_messages_survive_protobuf(message: Any) -> None:
    codec = pytest.importorskip("tts_worker.protocol.proto_codec", reason="needs the extra 'grpc'")
    response = codec.encode_worker_message(message)
    decoded = codec.parse_worker_message(type(response).FromString(response.SerializeToString()))
    assert (type(decoded), decoded) == (type(message), message)


@settings(deadline=None, max_examples=30)
@given(start=starts)
def test_start_and_session_options_convert(start: StartMessage) -> None:
    assert StartMessage.of(start.options()) == start
    for mode in UrlMode:
        assert StartMessage.of(SessionOptions(urls=mode)).options().urls is mode


def test_start_in_a_url() -> None:
    query = {"voice": "a", "speed": "1.5", "needs": "x,y", "realtime": "no", "markdown": "1", "frame_ms": "20"}
    expected = StartMessage(voice="a", speed=1.5, needs=("x", "y"), realtime=False, markdown=True, frame_ms=20)
    assert json_codec.parse_start_query({**query, "unknown": "1"}) == expected
    with pytest.raises(InvalidRequest, match="speed"):
        json_codec.parse_start_query({"speed": "fast"})


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ('{"type": "secret"}', "type"),
        ('{"type": {"secret": 1}}', "type"),
        ('{"type": "start", "urls": "secret"}', "urls"),
        ('{"type": "start", "needs": ["a", {"secret": 1}]}', "needs"),
        ('{"type": "start", "instruct": 7}', "instruct"),
        ('{"type": "ping", "id": ["secret"]}', "id"),
        ('{"type": "ping", "id": 99999999999999999999999}', "id"),
        ('{"type": "stop", "played_samples": 1.5}', "played_samples"),
        ('{"secret": 1}', "type"),
        ('"secret"', "object"),
    ],
)
def test_error_names_the_field_and_no_value(raw: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        json_codec.parse_client_message(raw)
    assert field in caught.value.message
    assert "secret" not in caught.value.message
    assert "99999" not in caught.value.message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"type": "start", "sample_rate": "8000"},
            "sample_rate must be one of 8000, 16000, 22050, 24000, 44100, 48000",
        ),
        ({"type": "start", "sample_rate": 12}, "sample_rate must be one of 8000, 16000, 22050, 24000, 44100, 48000"),
        ({"type": "start", "encoding": "mp3"}, "encoding must be one of pcm_s16le, mulaw, alaw, opus, wav"),
        ({"type": "start", "frame_ms": "20"}, "frame_ms must be a whole number, not text"),
        ({"type": "start", "speed": [1]}, "speed must be a number, not a list"),
        ({"type": "start", "voice": "x" * 129}, "voice must be text of at most 128 characters"),
        ({"type": "start", "needs": ["x"] * 17}, "needs must be a list of at most 16 items"),
        ({"type": "start", "needs": [1]}, "needs[0] must be text, not a whole number"),
        ({"type": "start", "lexicon": [1]}, "lexicon must be text or an object, not a list"),
        ({"type": "ping", "id": [1]}, "id must be a whole number or text, not a list"),
        ({"type": "stop", "played_samples": -1}, "played_samples must be a whole number of at least 0"),
        ({"type": "played", "samples": 1, "utterance": "a"}, "utterance must be a whole number, not text"),
        ({"type": "text"}, "text is missing"),
        ({"type": "text", "text": None}, "text must be text, not null"),
    ],
)
def test_errors_are_plain_english(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        json_codec.parse_client_message(json.dumps(fields))
    assert caught.value.message == text


def test_errors_of_a_url_do_not_mention_its_text() -> None:
    with pytest.raises(InvalidRequest, match=r"^frame_ms must be a whole number$"):
        json_codec.parse_start_query({"frame_ms": "20.5"})


def test_lone_surrogates_are_accepted_in_text_only() -> None:
    message = json_codec.parse_client_message('{"type": "text", "text": "\\ud83d"}')
    assert isinstance(message, TextMessage)
    assert message.text == "\ud83d"
    for raw in ('{"type": "text", "text": "a", "context": "\\udfff"}', '{"type": "start", "instruct": "a\\udfffb"}'):
        with pytest.raises(InvalidRequest, match="must not contain lone surrogates"):
            json_codec.parse_client_message(raw)


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], {"\ud800": "\ud800"}], ids=["text", "list", "object"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in json_codec.CLIENT_MESSAGES for name in (*kind.__struct_fields__, "unknown")],
)
def test_lone_surrogates_in_any_field_are_accepted_or_rejected(kind: type[Message], name: str, value: object) -> None:
    with suppress(InvalidMessage):
        json_codec.parse_client_message(json.dumps({"type": kind.type_name(), name: value}))


def test_the_field_with_lone_surrogates_is_named() -> None:
    with pytest.raises(InvalidMessage, match=r"^encoding must be one of ") as caught:
        json_codec.parse_client_message('{"type": "start", "encoding": "\\ud800", "context": "a"}')
    assert caught.value.message.isascii()
    with pytest.raises(InvalidMessage, match=r"^end must be true or false, not text$") as caught:
        json_codec.parse_client_message('{"type": "text", "text": "a", "end": "\\ud800", "context": "a"}')
    assert (caught.value.command, caught.value.context) == ("text", "a")
    with pytest.raises(InvalidMessage, match=r"^names of fields must not contain lone surrogates$"):
        json_codec.parse_client_message('{"type": "text", "text": "a", "\\ud800": 1}')


@pytest.mark.parametrize("change", [{"sample_rate": "\ud800"}, {"channels": {"\ud800": 1}}, {"\ud800": 1}])
def test_lone_surrogates_of_a_worker_violate_the_protocol(change: dict[str, object]) -> None:
    ready = {"type": "ready", "protocol": 1, "session": "a", "sample_rate": 24_000, "voice": "b"}
    assert isinstance(json_codec.parse_worker_message(json.dumps(ready)), ReadyMessage)
    with pytest.raises(json_codec.ProtocolError):
        json_codec.parse_worker_message(json.dumps({**ready, **change}))


def test_names_of_other_programs_are_escaped() -> None:
    encoded = json_codec.dumps(RejectedMessage(context="\udfff"))
    assert encoded.isascii()
    assert json.loads(encoded)["context"] == "\udfff"


def test_messages_of_a_newer_worker() -> None:
    assert json_codec.parse_worker_message('{"type": "hologram"}') is None
    newer = json_codec.parse_worker_message('{"type": "rejected", "code": "quantum_flux", "retryable": true, "new": 1}')
    assert isinstance(newer, RejectedMessage)
    assert newer.error == ErrorInfo(ErrorCode.INTERNAL, "the worker reported an error", True)
    for raw in ("null", "[", '{"type": "done"}', '{"type": "words", "words": 5}'):
        with pytest.raises(json_codec.ProtocolError):
            json_codec.parse_worker_message(raw)


@settings(deadline=None, max_examples=40)
@given(message=client_messages | worker_messages)
def test_messages_match_the_schema(message: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json_codec.json_schema()
    union = {"$ref": f"#/$defs/{type(message).__name__}", "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator(union).validate(json.loads(json_codec.dumps(message)))


def test_documentation_names_every_message_and_field() -> None:
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text))))
    for kind in (*json_codec.CLIENT_MESSAGES, *json_codec.WORKER_MESSAGES):
        missing = {kind.type_name(), *kind.__struct_fields__} - words
        assert not missing, f"docs/protocol.md does not name {missing} of {kind.__name__}"


def test_documentation_lists_every_error() -> None:
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\d+) \| `(\w+)` \| (yes|no) \|", text.partition("## Errors")[2])
    retryable = {kind.code for kind in TTSWorkerError.__subclasses__() if kind.retryable}
    assert rows == [
        (code.value, str(HTTP_STATUS[code]), GRPC_STATUS[code], "yes" if code in retryable else "no")
        for code in ErrorCode
    ]


def test_documentation_lists_the_fields_by_message() -> None:
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
    rows = text.partition("## Worker messages")[2].partition("\n## ")[0]
    kinds: list[type[Message]] = [
        WordsMessage,
        ChunkMessage,
        PausedMessage,
        PongMessage,
        ReadyMessage,
        RejectedMessage,
        ResumedMessage,
        StartedMessage,
    ]
    for kind in kinds:
        row = re.search(rf"(?m)^\| [^|]*`{kind.type_name()}`[^|]* \| (.*?) \|", rows)
        assert row is not None
        assert set(kind.__struct_fields__) <= set(re.findall(r"\w+", row[1])), kind.__name__
