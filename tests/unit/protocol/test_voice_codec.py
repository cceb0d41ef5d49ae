"""Voices over gRPC are the same as over HTTP: one set of fields, and nothing is lost."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.voice_codec import encode_upload, encode_voice, parse_upload, parse_voice
from tts_worker.protocol.voices import StoredVoiceInfo, VoiceInfo, VoiceUpload
from tts_worker.voices.upload import NewVoice

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
lists = st.lists(texts, max_size=3).map(tuple)
optional = st.none() | texts.filter(bool)
numbers = st.floats(allow_nan=False, allow_infinity=False)
stored = st.builds(
    StoredVoiceInfo,
    source=texts.filter(bool),
    created_at=optional,
    owner=optional,
    consent=st.booleans(),
    figures=st.dictionaries(texts, numbers, max_size=3),
    notes=lists,
    not_checked=lists,
)
voices = st.builds(
    VoiceInfo,
    id=texts,
    name=texts,
    engine=texts,
    languages=lists,
    description=texts,
    tags=lists,
    styles=lists,
    capabilities=lists,
    license=optional,
    sample_rate=st.integers(0, 2**31 - 1),
    is_default=st.booleans(),
    gender=optional,
    aliases=lists,
    stored=st.none() | stored,
)


def names(record: type) -> set[str]:
    return {field.name for field in fields(record)}


def test_messages_have_the_fields_of_the_records() -> None:
    for record, message in ((VoiceInfo, pb.VoiceInfo), (StoredVoiceInfo, pb.StoredVoice), (VoiceUpload, pb.NewVoice)):
        assert names(record) == {field.name for field in message.DESCRIPTOR.fields}


def test_worker_takes_the_fields_that_clients_send() -> None:
    assert names(VoiceUpload) == NewVoice.model_fields.keys()


@given(voices)
def test_voice_survives_grpc(voice: VoiceInfo) -> None:
    assert parse_voice(encode_voice(voice)) == voice


def test_figure_without_a_value_is_left_out() -> None:
    voice = VoiceInfo("ann", stored=StoredVoiceInfo(figures={"snr_db": None, "level_db": -20.5}))
    assert parse_voice(encode_voice(voice)).stored == StoredVoiceInfo(figures={"level_db": -20.5})


@given(
    st.builds(
        VoiceUpload,
        name=texts,
        transcript=texts,
        consent=st.booleans(),
        style=texts,
        languages=lists,
        tags=lists,
        description=texts,
        gender=texts,
        license=texts,
        title=texts,
        engine=texts,
        mix=st.dictionaries(texts, numbers, max_size=3),
        prompt=texts,
    )
)
def test_upload_has_the_same_fields_over_grpc_and_http(upload: VoiceUpload) -> None:
    fields = {key: [*value] if isinstance(value, tuple) else value for key, value in upload.fields().items()}
    assert parse_upload(encode_upload(upload)) == fields


def test_weight_of_zero_stays_in_a_mix() -> None:
    """Left out, it would be the default weight instead of an error."""
    message = pb.NewVoice(name="ann", mix=[pb.MixPart(voice="bob")])
    assert parse_upload(message)["mix"] == [{"voice": "bob", "weight": 0}]
