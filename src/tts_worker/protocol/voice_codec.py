"""Protobuf codec of the service ``Voices``. The messages have the fields of the records in ``voices``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict

from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload


def encode_voice(voice: VoiceInfo) -> pb.VoiceInfo:
    fields = asdict(voice)
    if (stored := fields["stored"]) is not None:  # a map has no value for "unknown"
        stored["figures"] = {key: value for key, value in stored["figures"].items() if value is not None}
    return pb.VoiceInfo(**fields)


def parse_voice(message: pb.VoiceInfo) -> VoiceInfo:
    return msgspec.convert({"id": message.id, **MessageToDict(message, preserving_proto_field_name=True)}, VoiceInfo)


def encode_upload(upload: VoiceUpload) -> pb.NewVoice:
    return pb.NewVoice(**upload.fields())


def parse_upload(message: pb.NewVoice) -> dict[str, Any]:
    """Return the fields that are set, as ``POST /v1/voices`` takes them."""
    fields = MessageToDict(message, preserving_proto_field_name=True)
    if message.mix:  # with weights of 0, which are an error
        fields["mix"] = [{"voice": part.voice, "weight": part.weight} for part in message.mix]
    return fields
