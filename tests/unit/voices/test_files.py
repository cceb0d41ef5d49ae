"""A stored voice comes back as it was, and one that was made to harm is refused at once and touches nothing."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from tts_worker.atomic_files import remove_remnants
from tts_worker.errors import BundleError, IllegalCommand, InvalidRequest, TTSWorkerError, UnknownVoice
from tts_worker.voices.files import (
    Voice,
    hide_voice,
    load_voice,
    save_voice,
    stored_hash,
    stored_voices,
    voice_folder,
)

SIZES: dict[str, Any] = {
    "text_rows": 100,
    "speech_tokens": 6561,
    "mel_bins": 80,
    "spk_size": 192,
    "frames_per_token": 2,
    "token_rate_hz": 25,
    "tolerance_frames": 2,
}
BAD_NAMES = ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "x" * 65, "a\0b", "a\n", "a b", "C:x"]
BAD_NAMES += ["\U00020000" * 64, "中" * 64 + "@" + "中" * 32]  # too many bytes for the name of a file


def voice(tokens: int = 10) -> Voice:
    random = np.random.default_rng(tokens)
    return Voice(
        family="cosyvoice3",
        prompt_text="what was said",
        prompt_text_ids=random.integers(0, 100, 5).astype(np.int32),
        tokens=random.integers(0, 6561, tokens).astype(np.int32),
        mel=random.normal(size=(2 * tokens, 80)).astype(np.float32),
        embedding=random.normal(size=192).astype(np.float32),
        seconds=tokens / 25,
        notes=("a note",),
    )


def equal(a: Voice, b: Voice) -> bool:
    same = all(np.array_equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True))
    return same and (a.family, a.prompt_text, a.seconds, a.notes) == (b.family, b.prompt_text, b.seconds, b.notes)


floats = hnp.from_dtype(np.dtype(np.float32), min_value=-999, max_value=999, allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=25)
@given(
    text=st.text(st.characters(codec="utf-8"), max_size=40),
    ids=hnp.arrays(np.int32, st.integers(0, 20)),
    mel=hnp.arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=floats),
    embedding=hnp.arrays(np.float32, st.integers(0, 9), elements=floats),
)
def test_voice_round_trips(
    tmp_path_factory: pytest.TempPathFactory, text: str, ids: Any, mel: Any, embedding: Any
) -> None:
    root = tmp_path_factory.mktemp("voices")
    saved = Voice("cosyvoice2", text, ids, ids[::-1], mel, embedding, 3.25, -1.5)

    save_voice(root, "x", saved)

    assert equal(load_voice(root, "x"), saved)
    assert load_voice(root, "x").content_hash == saved.content_hash


def test_content_hash_ignores_the_name(tmp_path: Path) -> None:
    save_voice(tmp_path, "a", voice())
    save_voice(tmp_path, "b", voice())

    assert load_voice(tmp_path, "a").content_hash == load_voice(tmp_path, "b").content_hash
    for changed in (
        replace(voice(), family="cosyvoice2"),
        replace(voice(), prompt_text="other"),
        replace(voice(), tokens=voice().tokens[::-1]),
        replace(voice(), embedding=voice().embedding * 2),
        replace(voice(), prompt_text_ids=voice().tokens, tokens=voice().prompt_text_ids),
    ):
        assert changed.content_hash != voice().content_hash


def test_voices_are_listed_and_not_overwritten(tmp_path: Path) -> None:
    save_voice(tmp_path, "zoe", voice())
    save_voice(tmp_path, "中文女", voice())
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "voice.safetensors").write_bytes(b"")

    assert stored_voices(tmp_path) == ["zoe", "中文女"]
    assert stored_voices(tmp_path / "nowhere") == []
    with pytest.raises(IllegalCommand, match="already"):
        save_voice(tmp_path, "zoe", voice(5))
    save_voice(tmp_path, "zoe", voice(5), replace=True)
    assert len(load_voice(tmp_path, "zoe").tokens) == 5
    with pytest.raises(UnknownVoice, match="there are: zoe"):
        load_voice(tmp_path, "half")


@pytest.mark.parametrize("name", ["中" * 64, "\U00020000" * 50, "x" * 64 + "@" + "y" * 32])
def test_longest_names_are_stored_and_hidden(tmp_path: Path, name: str) -> None:
    save_voice(tmp_path, name, voice())
    save_voice(tmp_path, name, voice(5), replace=True)
    assert stored_voices(tmp_path) == [name]
    hide_voice(tmp_path, name)
    assert len(load_voice(tmp_path, name, deleted=True).tokens) == 5


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unsafe_voice_name_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "above" / "voices"
    for use in (voice_folder, load_voice, hide_voice, stored_hash, lambda *at: save_voice(*at, voice())):
        with pytest.raises(InvalidRequest, match="name"):
            use(root, name)
    assert list(tmp_path.rglob("*")) == []


def change_json(key: str, value: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        about = json.loads((folder / "voice.json").read_text("utf-8"))
        about[key] = value
        (folder / "voice.json").write_text(json.dumps(about))

    return apply


def drop_key(folder: Path) -> None:
    about = json.loads((folder / "voice.json").read_text("utf-8"))
    del about["notes"]
    (folder / "voice.json").write_text(json.dumps(about))


def json_is(raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "voice.json").write_bytes(raw)


def tensors_are(raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "voice.safetensors").write_bytes(raw)


class Code:
    def __reduce__(self) -> Any:
        return pytest.fail, ("the voice ran code",)


def zip_bomb(folder: Path) -> None:
    with zipfile.ZipFile(folder / "voice.safetensors", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escaped", b"\0" * 50_000_000)


def header(table: object) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text


def arrays(**changed: Any) -> bytes:
    """The file of a voice with some tensors replaced, by arrays of the same or another form."""
    return save({**voice().tensors(), **changed})


def spoiled(value: float) -> bytes:
    mel = voice().mel.copy()
    mel[3, 4] = value
    return arrays(mel=mel)


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (json_is(b"{"), "not valid JSON"),
        (json_is(b"[" * 60_000), "not valid JSON"),
        (json_is(b'{"a":' * 8_000 + b"1" + b"}" * 8_000), "not (valid JSON|a voice of format)"),  # Python 3.14 reads it
        (json_is(b"x" * 70_000), "larger than"),
        (json_is(b"[]"), "not a voice of format"),
        (json_is(b"\xff\xfe"), "not valid JSON"),
        (change_json("format", 2), "not a voice of format"),
        (change_json("weights", "../../../etc/passwd"), "exactly these keys"),
        (drop_key, "exactly these keys"),
        (change_json("prompt_text", "x" * 5000), "text field that is too long"),
        (change_json("prompt_text", 7), "text field that is too long"),
        (change_json("seconds", "3"), "seconds is not a number in range"),
        (change_json("gain_db", 1e308), "gain_db is not a number in range"),
        (change_json("notes", "x"), "notes that are not"),
        (change_json("content_hash", "0" * 64), "hash does not match"),
        (change_json("family", "cosyvoice2"), "hash does not match"),
        (lambda folder: (folder / "voice.safetensors").unlink(), "is missing"),
        (tensors_are(b""), "not a complete safetensors"),
        (tensors_are(pickle.dumps(Code())), "not a complete safetensors"),
        (zip_bomb, "not a complete safetensors"),
        (tensors_are(struct.pack("<Q", 1 << 40) + b"{}"), "not a complete safetensors"),
        (lambda folder: tensors_are(b"\0" * (9 << 20))(folder), "larger than"),
        (lambda folder: tensors_are(struct.pack("<Q", 8 << 20) + b" " * (8 << 20))(folder), "larger than"),
        (tensors_are(header({"mel": ONE})), "not a complete safetensors"),
        (tensors_are(header({"mel": ONE}) + b"\0" * 4), "exactly these tensors"),
        (tensors_are(header({"mel": {**ONE, "shape": [1 << 60]}}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"mel": {**ONE, "shape": [2]}}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"mel": {**ONE, "shape": [-1]}}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"mel": {**ONE, "shape": "x"}}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"mel": {**ONE, "dtype": "F33"}}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"mel": {**ONE, "dtype": ["F32"]}}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"mel": 7}) + b"\0" * 4), "not a complete safetensors"),
        (tensors_are(header({"a\x01b": ONE}) + b"\0" * 4), "exactly these tensors"),
        (tensors_are(header({"a": ONE, "b": ONE}) + b"\0" * 8), "not a complete safetensors"),
        (tensors_are(header({"a": {**ONE, "data_offsets": [4, 8]}}) + b"\0" * 8), "not a complete safetensors"),
        (tensors_are(header([1])), "not a complete safetensors"),
        (tensors_are(header({"__metadata__": {"a": 1}})), "not a complete safetensors"),
        (tensors_are(struct.pack("<Q", 22) + b'{"a":{"x":1},"a":null}'), "not a complete safetensors"),
        (tensors_are(arrays(mel=voice().mel.astype(np.float64))), "exactly these tensors"),
        (tensors_are(arrays(extra=voice().mel)), "exactly these tensors"),
        (tensors_are(arrays(mel=voice().mel.reshape(-1))), "mel has 1 dimensions"),
        (tensors_are(arrays(tokens=voice().tokens.reshape(2, 5))), "tokens has 2 dimensions"),
        (tensors_are(arrays(mel=np.zeros((20_000, 80), np.float32))), "mel has 20000 rows"),
        (tensors_are(arrays(prompt_text_ids=np.zeros(1_000_000, np.int32))), "prompt_text_ids has 1000000 rows"),
        (tensors_are(spoiled(float("nan"))), "NaN"),
        (tensors_are(spoiled(float("inf"))), "NaN, infinite"),
        (tensors_are(spoiled(1e9)), "out-of-range"),
        (tensors_are(arrays(tokens=voice().tokens[::-1])), "hash does not match"),
        (lambda folder: (folder / "voice.safetensors").write_bytes(arrays()[:-1]), "not a complete safetensors"),
    ],
)
def test_hostile_voice_is_refused(tmp_path: Path, harm: Callable[[Path], object], complaint: str) -> None:
    folder = save_voice(tmp_path / "voices", "x", voice())
    harm(folder)
    before = sorted(tmp_path.rglob("*"))
    started_s = time.thread_time()

    with pytest.raises(BundleError, match=complaint):
        load_voice(tmp_path / "voices", "x")

    # Work of this thread, so that a stalled machine does not count; the heap may be collected meanwhile.
    assert time.thread_time() - started_s < 1
    assert sorted(tmp_path.rglob("*")) == before


@settings(deadline=None, max_examples=100)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), length=st.integers(0, 10_000), cut=st.booleans())
def test_changed_byte_is_detected(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, length: int, cut: bool
) -> None:
    root = tmp_path_factory.mktemp("voices")
    file = save_voice(root, "x", voice()) / "voice.safetensors"
    raw = bytearray(file.read_bytes())
    if cut:
        changed = bytes(raw[: length % len(raw)])
    else:
        raw[at % len(raw)] ^= byte or 1
        changed = bytes(raw)
    file.write_bytes(changed)

    try:
        loaded = load_voice(root, "x")
    except BundleError:
        return
    # What did not matter (a blank of the padding, say) may differ; what is spoken may not.
    assert equal(loaded, voice())


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (replace(voice(), mel=voice().mel[:, :79]), "other dimensions"),
        (replace(voice(), embedding=voice().embedding[:5]), "other dimensions"),
        (replace(voice(), tokens=voice().tokens + 6561), "ids that this model does not have"),
        (replace(voice(), tokens=-voice().tokens), "ids that this model does not have"),
        (replace(voice(), prompt_text_ids=np.array([100], np.int32)), "ids that this model does not have"),
        (replace(voice(), mel=voice().mel[:-2]), "different durations"),
        (voice(tokens=40 * 25), "prompt has 40 s"),
    ],
)
def test_voice_of_another_model_is_refused(changed: Voice, complaint: str) -> None:
    voice().check(**SIZES)
    replace(voice(), mel=voice().mel[:-1]).check(**SIZES)  # voice conversion of the reference leaves one frame
    with pytest.raises(BundleError, match=complaint):
        changed.check(**SIZES)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_interrupted_write_leaves_the_old_voice_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, replaces: bool
) -> None:
    if replaces:
        save_voice(tmp_path, "x", voice(5))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail) if call == "fsync" else patch.setattr(Path, "rename", fail)
        with pytest.raises(BundleError, match="No space left"):
            save_voice(tmp_path, "x", voice(), replace=replaces)

    assert stored_voices(tmp_path) == (["x"] if replaces else [])
    assert [path.name for path in tmp_path.iterdir()] == (["x"] if replaces else [])


def test_remnants_of_a_crash_are_removed_when_they_are_old(tmp_path: Path) -> None:
    save_voice(tmp_path, "x", voice())
    for name in (".x.1.ab.part", ".x.1.ab.old"):
        (tmp_path / name).mkdir()

    remove_remnants(tmp_path, 60, time.time())
    assert len(list(tmp_path.iterdir())) == 3
    remove_remnants(tmp_path, 60, time.time() + 120)

    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_hidden_voice_is_read_only_as_a_deleted_one(tmp_path: Path) -> None:
    saved = voice()
    save_voice(tmp_path, "x", saved)
    save_voice(tmp_path, "x.1.ab", saved)
    hidden = hide_voice(tmp_path, "x")
    hide_voice(tmp_path, "x.1.ab")
    assert stored_voices(tmp_path) == []
    for name in ("x", "x.1.ab"):
        assert load_voice(tmp_path, name, deleted=True).content_hash == saved.content_hash
        assert stored_hash(tmp_path, name, deleted=True) == saved.content_hash
        with pytest.raises(UnknownVoice):
            load_voice(tmp_path, name)
        with pytest.raises(UnknownVoice):
            hide_voice(tmp_path, name)
    shutil.rmtree(hidden)
    with pytest.raises(UnknownVoice):
        load_voice(tmp_path, "x", deleted=True)


def test_write_error_leaves_no_voice(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a file where the folder should be")

    with pytest.raises(TTSWorkerError, match="cannot be written"):
        save_voice(tmp_path, "x", voice())

    assert stored_voices(tmp_path) == []
