"""Wire compatibility: stable field numbers, older clients and up-to-date generated code."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor

from tts_worker.errors import GRPC_STATUS, ErrorCode, ErrorInfo
from tts_worker.features.compat import cosyvoice_pb2
from tts_worker.protocol import proto_codec, tts_worker_pb2
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.types import Alignment, Outcome, Receipt, Word

ROOT = Path(__file__).parents[3]

# The protocol that orchestrators have: message -> field -> number. All other fields are extensions.
FIELDS: dict[str, dict[str, int]] = {
    "StartSessionRequest": {"session_id": 1, "model_id": 2, "options": 3},
    "StartSessionResponse": {"success": 1, "message": 2},
    "EndSessionRequest": {"session_id": 1},
    "EndSessionResponse": {"success": 1},
    "TextChunk": {"session_id": 1, "text": 2, "is_final": 3, "sequence_number": 4},
    "AudioFrame": {
        "session_id": 1,
        "audio_data": 2,
        "sample_rate": 3,
        "frame_duration_ms": 4,
        "sequence_number": 5,
        "is_final": 6,
    },
    "ControlRequest": {"session_id": 1, "command": 2},
    "ControlResponse": {"success": 1, "message": 2, "timestamp_ms": 3},
    "ListModelsRequest": {},
    "ModelInfo": {"model_id": 1, "family": 2, "is_loaded": 3, "languages": 4, "metadata": 5},
    "ListModelsResponse": {"models": 1},
    "LoadModelRequest": {"model_id": 1, "preload_only": 2},
    "LoadModelResponse": {"success": 1, "message": 2, "load_duration_ms": 3},
    "UnloadModelRequest": {"model_id": 1},
    "UnloadModelResponse": {"success": 1, "message": 2},
    "GetCapabilitiesRequest": {},
    "Capabilities": {
        "streaming": 1,
        "zero_shot": 2,
        "lora": 3,
        "cpu_ok": 4,
        "languages": 5,
        "emotive_zero_prompt": 6,
        "max_concurrent_sessions": 7,
    },
    "GetCapabilitiesResponse": {"capabilities": 1, "resident_models": 2, "metrics": 3},
}
METHODS = {
    "StartSession": (False, False),
    "EndSession": (False, False),
    "Synthesize": (True, True),
    "Control": (False, False),
    "ListModels": (False, False),
    "LoadModel": (False, False),
    "UnloadModel": (False, False),
    "GetCapabilities": (False, False),
}


@pytest.mark.parametrize("name", FIELDS)
def test_base_fields_keep_numbers_below_100(name: str) -> None:
    message: Descriptor = tts_worker_pb2.DESCRIPTOR.message_types_by_name[name]
    numbers = {field.name: field.number for field in message.fields}
    assert {field: number for field, number in numbers.items() if number < 100} == FIELDS[name]


def test_service_and_command_numbers() -> None:
    service = tts_worker_pb2.DESCRIPTOR.services_by_name["TTSService"]
    assert service.full_name == "tts.TTSService"
    assert {m.name: (m.client_streaming, m.server_streaming) for m in service.methods} == METHODS
    assert dict(pb.ControlCommand.items()) == {"PAUSE": 0, "RESUME": 1, "STOP": 2, "RELOAD": 3}


def test_cosyvoice_field_numbers() -> None:
    numbers = {
        message.name: {field.name: field.number for field in message.fields}
        for message in cosyvoice_pb2.DESCRIPTOR.message_types_by_name.values()
    }
    assert numbers == {
        "Request": {"sft_request": 1, "zero_shot_request": 2, "cross_lingual_request": 3, "instruct_request": 4},
        "sftRequest": {"spk_id": 1, "tts_text": 2},
        "zeroshotRequest": {"tts_text": 1, "prompt_text": 2, "prompt_audio": 3},
        "crosslingualRequest": {"tts_text": 1, "prompt_audio": 2},
        "instructRequest": {"tts_text": 1, "spk_id": 2, "instruct_text": 3},
        "Response": {"tts_audio": 1},
    }


def _old_pool() -> descriptor_pool.DescriptorPool:
    """The descriptors of an old client, without our extensions."""
    file = descriptor_pb2.FileDescriptorProto()
    tts_worker_pb2.DESCRIPTOR.CopyToProto(file)
    old = [message for message in file.message_type if message.name in FIELDS]
    for message in old:
        base_fields = [field for field in message.field if field.number < 100]
        del message.field[:]
        message.field.extend(base_fields)
        del message.oneof_decl[:]
    del file.message_type[:]
    file.message_type.extend(old)
    del file.service[:]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[attr-defined,unused-ignore]
    return pool


def old(name: str) -> Any:
    return message_factory.GetMessageClass(_old_pool().FindMessageTypeByName(f"tts.{name}"))


def test_an_old_client_reads_extended_frames() -> None:
    frame = pb.AudioFrame(
        session_id="s",
        audio_data=b"\1\2",
        sample_rate=48_000,
        frame_duration_ms=20,
        sequence_number=3,
        is_final=True,
        generation=7,
        pts_samples=960,
        words=[pb.Word(text="hi")],
        receipt=pb.Receipt(outcome="done"),
    )
    seen = old("AudioFrame").FromString(frame.SerializeToString())
    assert (seen.session_id, seen.audio_data, seen.sequence_number, seen.is_final) == ("s", b"\1\2", 3, True)
    assert pb.AudioFrame.FromString(seen.SerializeToString()) == frame, "unknown fields must survive"


def test_the_worker_reads_requests_of_old_clients() -> None:
    chunk = old("TextChunk")(session_id="s", text="hi", is_final=True, sequence_number=1)
    seen = pb.TextChunk.FromString(chunk.SerializeToString())
    assert (seen.text, seen.is_final, seen.flush) == ("hi", True, False)
    empty = pb.ControlRequest.FromString(old("ControlRequest")().SerializeToString())
    assert (empty.session_id, empty.command, empty.HasField("played_ms")) == ("", pb.PAUSE, False)


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    written = {path.name: path for path in _generator().generate(tmp_path)}
    for module in (tts_worker_pb2, cosyvoice_pb2):
        committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        source = written[f"{module.__name__.rpartition('.')[2]}.py"].read_text("utf-8")
        begin = source.index("AddSerializedFile(") + len("AddSerializedFile(")
        literal = source[begin : source.index("\n", begin)].rstrip(")")
        assert committed == descriptor_pb2.FileDescriptorProto.FromString(_bytes(literal))
    assert set(written) == {path.name for path in (ROOT / "src").rglob("*_pb2*") if path.suffix != ".pyc"}


def test_generated_code_accepts_the_oldest_versions_of_the_client() -> None:
    """Generated code raises on import if grpcio or protobuf is older than its compiler's."""
    requirements = (ROOT / "packages" / "tts-worker-client" / "pyproject.toml").read_text("utf-8")
    texts = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*_pb2*.py")]
    grpc_versions = {found for text in texts for found in re.findall(r"GRPC_GENERATED_VERSION = '(.+)'", text)}
    protobuf_versions = {found for text in texts for found in re.findall(r"Protobuf Python Version: (.+)", text)}
    assert grpc_versions == {_compiler_version()}
    assert set(re.findall(r'"grpcio>=([\d.]+)"', requirements)) == grpc_versions
    assert set(re.findall(r'"protobuf>=([\d.]+)"', requirements)) == protobuf_versions


def _compiler_version() -> str:
    (version,) = re.findall(r'^COMPILER = "(.+)"$', (ROOT / "proto" / "generate.py").read_text("utf-8"), re.MULTILINE)
    return str(version)


def _bytes(literal: str) -> bytes:
    value = ast.literal_eval(literal)
    assert isinstance(value, bytes)
    return value


def test_every_error_code_has_a_grpc_status() -> None:
    import grpc

    assert set(GRPC_STATUS) == set(ErrorCode)
    assert all(name in grpc.StatusCode.__members__ for name in GRPC_STATUS.values())


def test_receipts_words_and_errors_round_trip() -> None:
    word = Word("hi", 0, 2, 100, 2_400)
    for played in (None, 0, 77):
        receipt = Receipt("stop", 9_000, 4_800, played, "hi", " there", (word,), Alignment.MEASURED)
        message = proto_codec.encode_receipt(receipt, Outcome.STOPPED, 24_000)
        assert proto_codec.parse_receipt(message) == receipt
        assert proto_codec.parse_outcome(message) is Outcome.STOPPED
    for error in (ErrorInfo(ErrorCode.OVER_CAPACITY, "full", True, 1.5), ErrorInfo(ErrorCode.INTERNAL, "x")):
        assert proto_codec.parse_error(proto_codec.encode_error(error)) == error


def test_unknown_values_of_a_newer_worker_get_defaults() -> None:
    assert proto_codec.parse_error(pb.Error(code="quantum_flux", retryable=True)).code is ErrorCode.INTERNAL
    newer = pb.Receipt(outcome="transcended", alignment="telepathic")
    assert proto_codec.parse_outcome(newer) is Outcome.DONE
    assert proto_codec.parse_receipt(newer).alignment is Alignment.ESTIMATED


def test_spawning_a_process_writes_nothing() -> None:
    program = (
        "import asyncio, subprocess, tts_worker.server.grpc, grpc\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    subprocess.run(['true'], preexec_fn=lambda: None)\n"  # uvloop forks as this does
        "    await server.stop(None)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not done.stderr
