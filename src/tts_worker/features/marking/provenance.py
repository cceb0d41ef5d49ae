"""Signed provenance in WAV and MP3 files: C2PA manifests that say "made by a trained model" (C2PA 2.1, c2pa-python)."""

from __future__ import annotations

import importlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tts_worker.atomic_files import hidden_path
from tts_worker.audio.encoders import AudioFormat, wav_file
from tts_worker.errors import ConfigError, InvalidRequest, MissingExtra, SynthesisFailed
from tts_worker.version import __version__

SYNTHETIC = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's term for media made by a model from training data."""

_TYPES = {AudioFormat.WAV: "audio/wav", AudioFormat.MP3: "audio/mpeg"}
_TRIAL = wav_file(bytes(4_800))
_UNTRUSTED = "signingCredential.untrusted"
_MANIFEST = {
    "claim_generator_info": [{"name": "tts-worker", "version": __version__}],
    "title": "Synthetic speech",
    "assertions": [
        {
            "label": "c2pa.actions",
            "data": {"actions": [{"action": "c2pa.created", "digitalSourceType": SYNTHETIC}]},
        }
    ],
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the manifest of a file says.

    Attributes:
        valid: Whether the file is what was signed.
        trusted: Whether the certificate is from an authority that was given.
        synthetic: Whether it says that a model made the audio.
        signer: Organization and name in the certificate.
        generator: What made the file.
        problems: Codes of what is wrong, as C2PA names them.
    """

    valid: bool
    trusted: bool
    synthetic: bool
    signer: str
    generator: str
    problems: tuple[str, ...]


class FileProvenance:
    """Signs files.

    Args:
        certificate: PEM file of the certificate chain, the signer's first, for ES256 (P-256).
        key: PEM file of its private key; None if it is in ``certificate``.

    Raises:
        ConfigError: A file cannot be read, or cannot sign.
        MissingExtra: c2pa-python is not installed.
    """

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        c2pa = _c2pa("marking.certificate")
        try:
            info = c2pa.C2paSignerInfo(
                alg=b"es256",
                sign_cert=certificate.read_bytes(),
                private_key=(key or certificate).read_bytes(),
                ta_url=None,
            )
            self._signer = c2pa.Signer.from_info(info)
            self.sign(_TRIAL, AudioFormat.WAV)
        except OSError as error:
            raise ConfigError(f"marking.certificate: {error.filename} cannot be read: {error.strerror}") from None
        except (c2pa.C2paError, SynthesisFailed) as error:
            raise ConfigError(f"marking.certificate cannot sign: {error}") from None

    def sign(self, data: bytes, audio_format: AudioFormat) -> bytes:
        """Return a WAV or MP3 file with a signed manifest, any other file as it is. Raises SynthesisFailed."""
        if audio_format not in _TYPES:
            return data
        signed = io.BytesIO()
        self._sign(io.BytesIO(data), signed, audio_format)
        return signed.getvalue()

    def sign_file(self, path: Path, audio_format: AudioFormat) -> None:
        """Do the same with a file of any length. If that fails, the file stays as it is.

        Raises:
            SynthesisFailed: It cannot be signed.
            OSError: It cannot be read or replaced.
        """
        if audio_format not in _TYPES:
            return
        path = path.resolve()  # a link stays one
        partial = hidden_path(path.parent, path.name, "part")
        try:
            with path.open("rb") as source, partial.open("w+b") as signed:
                self._sign(source, signed, audio_format)
            shutil.copymode(path, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _sign(self, source: BinaryIO, signed: BinaryIO, audio_format: AudioFormat) -> None:
        c2pa = _c2pa("signing")
        try:
            with c2pa.Builder(_MANIFEST) as builder:
                builder.sign(self._signer, _TYPES[audio_format], source, signed)
        except c2pa.C2paError as error:
            raise SynthesisFailed(f"the file cannot be signed: {error}") from None


def verify(data: bytes, authorities: bytes = b"") -> Provenance | None:
    """Check the provenance of a WAV or MP3 file; None if it has none.

    Args:
        data: The file.
        authorities: PEM certificates of the authorities to trust.

    Raises:
        InvalidRequest: The file is of another type, or its manifest is damaged.
        MissingExtra: c2pa-python is not installed.
    """
    c2pa = _c2pa("checking provenance")
    kind = _kind(data)
    try:
        reader = c2pa.Reader(kind, io.BytesIO(data), context=_context(c2pa, authorities))
        with reader:
            report = json.loads(reader.json())
    except c2pa.C2paError.ManifestNotFound:
        return None
    except (c2pa.C2paError, ValueError) as error:
        raise InvalidRequest(f"the provenance cannot be read: {error}") from None
    return _summarize(report)


def _summarize(report: dict[str, Any]) -> Provenance:
    manifest = report["manifests"][report["active_manifest"]]
    problems = tuple(each["code"] for each in report.get("validation_status", ()))
    actions = [
        action
        for assertion in manifest.get("assertions", ())
        if assertion["label"].startswith("c2pa.actions")
        for action in assertion["data"].get("actions", ())
    ]
    signature = manifest.get("signature_info", {})
    generator = (manifest.get("claim_generator_info") or [{}])[0]
    return Provenance(
        valid=not any(problem != _UNTRUSTED for problem in problems),
        trusted=_UNTRUSTED not in problems and not problems,
        synthetic=any(action.get("digitalSourceType") == SYNTHETIC for action in actions),
        signer=", ".join(filter(None, (signature.get("issuer"), signature.get("common_name")))),
        generator=" ".join(filter(None, (generator.get("name"), generator.get("version")))),
        problems=problems,
    )


def _context(c2pa: Any, authorities: bytes) -> Any:
    """Return how files are checked: nothing is fetched from a network."""
    settings: dict[str, Any] = {"verify": {"verify_trust": True, "remote_manifest_fetch": False, "ocsp_fetch": False}}
    if authorities:
        settings["trust"] = {"user_anchors": authorities.decode("ascii", "replace")}
    return c2pa.Context.from_dict(settings)


def _kind(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _TYPES[AudioFormat.WAV]
    if data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return _TYPES[AudioFormat.MP3]
    raise InvalidRequest("only WAV and MP3 files have provenance")


def _c2pa(purpose: str) -> Any:
    try:
        return importlib.import_module("c2pa")
    except ImportError:
        raise MissingExtra(purpose, "provenance") from None
