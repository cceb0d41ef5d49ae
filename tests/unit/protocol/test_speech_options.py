"""``SessionOptions`` is the one list of options; whatever repeats its names or defaults agrees with it.

A new option is added there, and every test here fails that has not been told of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tts_worker.client.agent import PluginOptions
from tts_worker.client.async_tts import SpeechOptions
from tts_worker.client.batches import BatchOptions, BatchText
from tts_worker.commands import say
from tts_worker.features.batch import command as batch
from tts_worker.features.batch.request import BatchItem, BatchRequest
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.features.grpc.options import parse_start_options
from tts_worker.protocol import proto_codec
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.messages import StartMessage
from tts_worker.types import SessionOptions, SynthesisParams, UrlMode

OPTIONS = {field.name: field for field in dataclasses.fields(SessionOptions)}
OF_TRANSPORT = {"own_clock", "buffered", "reports_playback"}
"""How a transport plays the audio; no client sets them."""

OF_CLIENT = OPTIONS.keys() - OF_TRANSPORT
PACING = {"lead_ms", "frame_ms", "raw_chunks", "pause_timeout_s", "text_idle_timeout_s", "encoding", "needs"}
"""Options of a conversation, which a whole text does not need."""

VOICING = {field.name for field in dataclasses.fields(SynthesisParams)}

DOCS = Path(__file__).parents[3] / "docs"


def test_voicing_is_part_of_the_options() -> None:
    assert OPTIONS.keys() > VOICING
    params = SessionOptions(speed=1.5, seed=7, language="en", instruct="slowly").voicing("heart")
    assert params == SynthesisParams("heart", 1.5, 7, "en", "slowly")


def test_start_has_every_option_of_a_client() -> None:
    assert set(StartMessage.__struct_fields__) == OF_CLIENT
    assert StartMessage().options() == SessionOptions()


def test_start_keeps_every_option() -> None:
    changed = SessionOptions(**{name: other(name) for name in OF_CLIENT})
    assert StartMessage.of(changed).options() == changed


def other(name: str) -> Any:
    """Return a valid value of an option that is not its default."""
    texts = {"encoding": "opus", "urls": "host", "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    kinds: dict[str, Any] = {"bool": True, "float": 0.5, "int": 8_000, "str": texts.get(name, "word")}
    kinds |= {"Mapping[str, Any] | str": {"a": "b"}, "tuple[str, ...]": ("instruct",), "UrlMode": UrlMode.HOST}
    kind = str(OPTIONS[name].type).removesuffix(" | None")
    return (not OPTIONS[name].default) if kind == "bool" and OPTIONS[name].default is not None else kinds[kind]


def test_protobuf_has_every_option_of_start() -> None:
    """The trace context is in the metadata of the call."""
    message = StartMessage.of(SessionOptions(**{name: other(name) for name in OF_CLIENT - {"traceparent"}}))
    request = pb.ConverseRequest.FromString(proto_codec.encode_client_message(message).SerializeToString())
    assert proto_codec.parse_client_message(request) == message


def test_options_of_a_grpc_session_are_those_of_start() -> None:
    names = OF_CLIENT - {"raw_chunks", "model", "needs", "encoding", "lexicon"}
    given = {name: str(getattr(value := other(name), "value", value)).lower() for name in names}
    assert parse_start_options({**given, "frame_ms": "20"}, StreamFormat()).unknown == ()


def test_python_client_has_the_options_of_a_text() -> None:
    assert SpeechOptions.__annotations__.keys() == OF_CLIENT - PACING


@pytest.mark.parametrize("kind", [SpeechOptions, PluginOptions, BatchOptions])
def test_docstring_names_every_option(kind: type) -> None:
    assert re.findall(r"(?m)^ {8}(\w+): ", kind.__doc__ or "") == list(kind.__annotations__)


def test_plugins_have_the_options_of_a_conversation() -> None:
    """``max_ahead_s`` is the lead in the words of agent frameworks."""
    names = {"max_ahead_s": "lead_ms", "normalize": "normalize"}
    options = {names.get(name, name) for name in PluginOptions.__annotations__}
    assert options == (SpeechOptions.__annotations__.keys() | {"lead_ms"}) - {"sample_rate", "realtime", "traceparent"}


def test_batches_have_the_options_of_a_voice() -> None:
    voicing = {
        "instructions" if field.name == "instruct" else field.name for field in dataclasses.fields(SynthesisParams)
    }
    of_item = {"id", "input", "lexicon", *voicing}
    assert BatchItem.model_fields.keys() == of_item
    assert {field.name for field in dataclasses.fields(BatchText)} == of_item
    of_batch = {"model", "lexicon", "sample_rate", "response_format", *voicing}
    assert BatchRequest.model_fields.keys() - {"items"} == of_batch
    assert BatchOptions.__annotations__.keys() == of_batch
    defaults = SessionOptions()
    for name in of_batch & OPTIONS.keys():
        assert BatchRequest.model_fields[name].default == getattr(defaults, name), name


def test_say_has_the_options_of_a_voice() -> None:
    """``batch`` has those that its file rarely tells of each item: voice, model and speed."""
    for command, wanted in ((say, VOICING), (batch, {"voice", "model", "speed"})):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        options = {option for action in parser._actions for option in action.option_strings}
        assert {f"--{name}" for name in wanted} <= options


def test_protocol_page_lists_the_options() -> None:
    row = next(
        line for line in (DOCS / "protocol.md").read_text("utf-8").splitlines() if line.startswith("| `start` |")
    )
    listed = re.search(r"`([a-z_ ]+)`, all optional", row)
    assert listed is not None
    assert set(listed[1].split()) == OF_CLIENT
