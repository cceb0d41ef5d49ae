"""Signed provenance: what is signed is verified, and what was changed is not."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import soundfile

from tests.conftest import serving
from tts_worker import cli
from tts_worker.audio.encoders import AudioFormat, open_encoder, wav_file
from tts_worker.errors import ConfigError, InvalidRequest, SynthesisFailed

pytest.importorskip("c2pa", reason="needs the extra provenance")

from tts_worker.features.marking.provenance import FileProvenance, verify


@dataclass(frozen=True)
class Signer:
    chain: Path
    key: Path
    authority: Path


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """A signer whose certificate is from an authority of its own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    folder = tmp_path_factory.mktemp("signer")
    now = datetime.datetime.now(datetime.timezone.utc)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def certificate(name: str, public: ec.EllipticCurvePublicKey, *, is_authority: bool) -> bytes:
        names = [
            x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"),
                    x509.NameAttribute(NameOID.COMMON_NAME, each),
                ]
            )
            for each in (name, "Authority")
        ]
        usage = x509.KeyUsage(not is_authority, False, False, False, False, is_authority, is_authority, False, False)
        builder = (
            x509.CertificateBuilder(names[1], names[0], public, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(is_authority, None), True)
            .add_extension(usage, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False)
        )
        if not is_authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), False)
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root = certificate("Authority", authority_key.public_key(), is_authority=True)
    files = Signer(folder / "chain.pem", folder / "key.pem", folder / "authority.pem")
    files.authority.write_bytes(root)
    files.chain.write_bytes(certificate("Worker", key.public_key(), is_authority=False) + root)
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def mp3() -> bytes:
    encoder = open_encoder(AudioFormat.MP3)
    return encoder.encode(bytes(48_000)) + encoder.finish()


@pytest.mark.parametrize(("kind", "data"), [(AudioFormat.WAV, wav_file(bytes(48_000))), (AudioFormat.MP3, mp3())])
def test_signed_file_is_verified(kind: AudioFormat, data: bytes, signer: Signer) -> None:
    signed = FileProvenance(signer.chain, signer.key).sign(data, kind)
    found = verify(signed)
    assert found is not None
    assert (found.valid, found.trusted, found.synthetic) == (True, False, True)
    assert found.signer == "Example, Worker"
    assert found.generator.startswith("tts-worker ")
    trusting = verify(signed, signer.authority.read_bytes())
    assert trusting is not None
    assert trusting.trusted
    changed = bytearray(signed)
    changed[signed.index(data[-2_000:-1_000]) + 500] ^= 1
    broken = verify(bytes(changed))
    assert broken is not None
    assert not broken.valid
    assert verify(data) is None


def test_other_formats_are_not_signed(signer: Signer) -> None:
    assert FileProvenance(signer.chain, signer.key).sign(b"fLaC", AudioFormat.FLAC) == b"fLaC"


@pytest.mark.parametrize("data", [b"", b"fLaC", b"RIFF0000WAVE", b"ID3", wav_file(bytes(48))[:30]])
def test_unreadable_file_is_a_typed_error(data: bytes) -> None:
    try:
        found = verify(data)
    except InvalidRequest:
        return
    assert found is None


def test_unusable_certificates_are_refused(signer: Signer, tmp_path: Path) -> None:
    for chain in (signer.authority, tmp_path / "missing.pem", signer.key):
        with pytest.raises(ConfigError, match=r"marking\.certificate"):
            FileProvenance(chain, signer.key)


@pytest.mark.parametrize("kind", [AudioFormat.WAV, AudioFormat.FLAC])
def test_file_is_signed_in_its_place(kind: AudioFormat, signer: Signer, tmp_path: Path) -> None:
    file, link = tmp_path / "speech", tmp_path / "link"
    file.write_bytes(wav_file(bytes(48_000)))
    file.chmod(0o600)
    link.symlink_to(file)
    FileProvenance(signer.chain, signer.key).sign_file(link, kind)
    assert (verify(file.read_bytes()) is not None) == (kind is AudioFormat.WAV)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"speech", "link"}


def test_file_that_cannot_be_signed_stays_as_it_is(signer: Signer, tmp_path: Path) -> None:
    file = tmp_path / "speech.wav"
    file.write_bytes(b"RIFF")
    with pytest.raises(SynthesisFailed):
        FileProvenance(signer.chain, signer.key).sign_file(file, AudioFormat.WAV)
    assert file.read_bytes() == b"RIFF"
    assert [*tmp_path.iterdir()] == [file]


async def test_batch_results_are_signed(signer: Signer, tmp_path: Path) -> None:
    marking = {"certificate": str(signer.chain), "key": str(signer.key)}
    async with serving(marking=marking) as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        for kind, is_signed in (("wav", True), ("mp3", True), ("flac", False)):
            batch = await client.post("/v1/batch", json={"items": [{"input": "Hello."}], "response_format": kind})
            answer = await client.get(f"{batch.headers['location']}/results?checksums=true", timeout=60)
            result = json.loads(answer.text)
            audio = base64.b64decode(result["audio"])
            assert result["sha256"] == hashlib.sha256(audio).hexdigest()
            assert cli.main(["verify", str(written(tmp_path / f"speech.{kind}", audio))]) == (0 if is_signed else 2)


@pytest.mark.parametrize("suffix", ["wav", "mp3", "flac"])
def test_files_of_say_are_signed(suffix: str, signer: Signer, tmp_path: Path) -> None:
    settings = [f"--set=marking.certificate={signer.chain}", f"--set=marking.key={signer.key}"]
    file = tmp_path / f"speech.{suffix}"
    assert cli.main(["say", "--quiet", "--engine", "tone", "--out", str(file), *settings, "Hello."]) == 0
    samples, _ = soundfile.read(file)
    assert len(samples) > 1_000
    assert cli.main(["verify", str(file)]) == (2 if suffix == "flac" else 0)


def written(file: Path, data: bytes) -> Path:
    file.write_bytes(data)
    return file


async def test_whole_downloads_are_signed(signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marking = {"certificate": str(signer.chain), "key": str(signer.key)}
    file = tmp_path / "speech.wav"
    async with serving(marking=marking) as address, httpx.AsyncClient() as client:
        for stream in (True, False):
            body = {"input": "Hello.", "response_format": "wav", "stream": stream}
            answer = await client.post(f"http://{address}/v1/audio/speech", json=body)
            file.write_bytes(answer.content)
            assert cli.main(["verify", str(file)]) == (3 if stream else 0)
            assert ("no provenance" in capsys.readouterr().out) == stream
    assert cli.main(["verify", str(signer.authority), str(file)]) == 0
    assert "(trusted)" in capsys.readouterr().out
    assert cli.main(["verify", str(tmp_path / "none.wav")]) == 2
    assert cli.main(["verify", str(signer.authority)]) == 2
