"""Protobuf codec of the service ``Voices``."""

from __future__ import annotations

from typing import Any

from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.voices import StoredVoiceInfo, VoiceInfo, VoiceUpload


def encode_voice(voice: VoiceInfo) -> pb.VoiceInfo:
    message = pb.VoiceInfo(
        id=voice.id,
        name=voice.name,
        engine=voice.engine,
        languages=voice.languages,
        description=voice.description,
        tags=voice.tags,
        styles=voice.styles,
        capabilities=voice.capabilities,
        license=voice.license or "",
        sample_rate=voice.sample_rate,
        is_default=voice.is_default,
    )
    if (stored := voice.stored) is not None:
        message.stored.CopyFrom(
            pb.StoredVoice(
                source=stored.source,
                created_at=stored.created_at or "",
                owner=stored.owner or "",
                consent=stored.consent,
                figures={key: value for key, value in stored.figures.items() if value is not None},
                notes=stored.notes,
                not_checked=stored.not_checked,
            )
        )
    return message


def parse_voice(message: pb.VoiceInfo) -> VoiceInfo:
    stored = message.stored
    return VoiceInfo(
        id=message.id,
        name=message.name,
        engine=message.engine,
        languages=tuple(message.languages),
        description=message.description,
        tags=tuple(message.tags),
        styles=tuple(message.styles),
        capabilities=tuple(message.capabilities),
        license=message.license or None,
        sample_rate=message.sample_rate,
        is_default=message.is_default,
        stored=StoredVoiceInfo(
            source=stored.source,
            created_at=stored.created_at or None,
            owner=stored.owner or None,
            consent=stored.consent,
            figures=dict(stored.figures),
            notes=tuple(stored.notes),
            not_checked=tuple(stored.not_checked),
        )
        if message.HasField("stored")
        else None,
    )


def encode_upload(upload: VoiceUpload) -> pb.NewVoice:
    fields = {**upload.fields(), "mix": [pb.MixPart(voice=name, weight=part) for name, part in upload.mix.items()]}
    return pb.NewVoice(**fields)


def parse_upload(message: pb.NewVoice) -> dict[str, Any]:
    """Return the fields that are set, as ``POST /v1/voices`` takes them."""
    fields: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        repeated = descriptor.name in ("languages", "tags")
        fields[descriptor.name] = list(value) if repeated else value
    if message.mix:
        fields["mix"] = [{"voice": part.voice, "weight": part.weight} for part in message.mix]
    return fields
