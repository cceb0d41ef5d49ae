"""Manifest of the published model directories: files, sizes, SHA-256 hashes and URLs.

A file is *verified* (size and hash match), *unknown* (the hash differs or is not recorded: small files change between
revisions), or of *wrong size*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tts_worker.errors import UnknownModel

BLOCK_BYTES = 1 << 20


class Need(Enum):
    """When a file is downloaded."""

    ALWAYS = "always"
    ON_REQUEST = "on request"  # the reinforcement-tuned language model


class Verdict(Enum):
    VERIFIED = "verified"
    UNKNOWN = "unknown"
    WRONG_SIZE = "wrong size"


@dataclass(frozen=True)
class ModelFile:
    """One published file.

    Attributes:
        path: Path in the model directory.
        size_bytes: Its size; None: not recorded, so the server's is taken.
        sha256: Its hash; None: not recorded.
        need: When it is downloaded.
        url: Where it is published, if not with the model.
    """

    path: str
    size_bytes: int | None
    sha256: str | None = None
    need: Need = Need.ALWAYS
    url: str | None = None

    def judge(self, file: Path, progress: Callable[[int], None] | None = None) -> Verdict:
        """Compare ``file`` with the manifest. ``progress`` is called with the number of bytes hashed so far."""
        if self.size_bytes is not None and file.stat().st_size != self.size_bytes:
            return Verdict.WRONG_SIZE
        known = self.sha256 is not None and sha256_of(file, progress) == self.sha256
        return Verdict.VERIFIED if known else Verdict.UNKNOWN


@dataclass(frozen=True)
class PublishedModel:
    """A published model directory. ``urls``: URL templates by source, with ``{path}`` for the file."""

    name: str
    folder: str
    urls: dict[str, str]
    files: tuple[ModelFile, ...]

    @property
    def weights(self) -> tuple[ModelFile, ...]:
        """Weight files and vocabularies of Whisper; a recorded hash must match."""
        return tuple(file for file in self.files if file.path.endswith((".pt", ".onnx", ".tiktoken")))


def sha256_of(file: Path, progress: Callable[[int], None] | None = None) -> str:
    digest = hashlib.sha256()
    done = 0
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            if progress:
                progress(done)
    return digest.hexdigest()


def published(name: str) -> PublishedModel:
    """Return the manifest entry of a model. Raises UnknownModel."""
    for model in PUBLISHED:
        if model.name == name:
            return model
    raise UnknownModel(f"there is no published model {name[:64]!r}; there are: {', '.join(m.name for m in PUBLISHED)}")


# Not listed: model.safetensors of the text model, since llm.pt holds the tuned weights of all its tensors, and the
# published estimator ONNX, which lacks the mask and the caches that streaming needs.
_TEXT_MODEL = (
    ModelFile("CosyVoice-BlankEN/config.json", 659, "168aa1bd401abc3bc262ba15ba4e499627a8b4e006e9d050b47c22de20660185"),
    ModelFile(
        "CosyVoice-BlankEN/merges.txt", 1402109, "ac8ff86a72bee70828fbc1119bc4398c6f3a9a6e490d7b0dbe917be025478bd0"
    ),
    ModelFile(
        "CosyVoice-BlankEN/tokenizer_config.json",
        1287,
        "482bd979881423375ca5414e4e0d94cd7c5349dbb17fffd46b4d36d71e62a1bc",
    ),
    ModelFile(
        "CosyVoice-BlankEN/vocab.json", 2776833, "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910"
    ),
)
_CAMPPLUS = ModelFile("campplus.onnx", 28303423, "a6ac6a63997761ae2997373e2ee1c47040854b4b759ea41ec48e4e42df0f4d73")
_WHISPER_VOCABULARY = ModelFile(
    "multilingual.tiktoken",
    816730,
    "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126",
    url="https://raw.githubusercontent.com/openai/whisper/v20250625/whisper/assets/multilingual.tiktoken",
)


def _cosyvoice_300m(name: str, folder: str, own: tuple[ModelFile, ...], tokenizer_sha256: str | None) -> PublishedModel:
    """Return a CosyVoice-300M model.

    Args:
        name: Its name.
        folder: Its folder.
        own: Its configuration, speakers and weights.
        tokenizer_sha256: Hash of its speech tokenizer, if recorded.
    """
    return PublishedModel(
        name=name,
        folder=folder,
        urls={
            "huggingface": f"https://huggingface.co/FunAudioLLM/{folder}/resolve/main/{{path}}",
            "modelscope": f"https://www.modelscope.cn/models/iic/{folder}/resolve/master/{{path}}",
        },
        files=(
            *own,
            _WHISPER_VOCABULARY,
            _CAMPPLUS,
            ModelFile("speech_tokenizer_v1.onnx", 522624269, tokenizer_sha256),
        ),
    )


_V1_UNRECORDED = tuple(
    ModelFile(path, None) for path in ("cosyvoice.yaml", "spk2info.pt", "hift.pt", "flow.pt", "llm.pt")
)
# As the package s3tokenizer checks it.
_V1_TOKENIZER_SHA256 = "23b5a723ed9143aebfd9ffda14ac4c21231f31c35ef837b6a13bb9e5488abb1e"

PUBLISHED = (
    PublishedModel(
        name="cosyvoice2-0.5b",
        folder="CosyVoice2-0.5B",
        urls={
            "huggingface": "https://huggingface.co/FunAudioLLM/CosyVoice2-0.5B"
            "/resolve/eec1ae6c79877dbd9379285cf8789c9e0879293d/{path}",
            "modelscope": "https://www.modelscope.cn/models/iic/CosyVoice2-0.5B/resolve/master/{path}",
        },
        files=(
            ModelFile("cosyvoice2.yaml", 7330, "0af2c0d010c477187c39f3e8fd5f1ae2e4e6f90ad03ba37c10ed6c6a87b05959"),
            *_TEXT_MODEL,
            _CAMPPLUS,
            ModelFile(
                "speech_tokenizer_v2.onnx",
                496082973,
                "d43342aa12163a80bf07bffb94c9de2e120a8df2f9917cd2f642e7f4219c6f71",
            ),
            ModelFile("hift.pt", 83390254, "3386cc880324d4e98e05987b99107f49e40ed925b8ecc87c1f4939432d429879"),
            ModelFile("flow.pt", 450575567, "ff4c2f867674411e0a08cee702996df13fa67c1cd864c06108da88d16d088541"),
            ModelFile("llm.pt", 2023316821, "b144ef55b51ce8cfb79a73c90dbba0bdaba4e451c0ebcfab20f769264f84a608"),
        ),
    ),
    PublishedModel(
        name="cosyvoice3-0.5b",
        folder="Fun-CosyVoice3-0.5B",
        urls={
            "huggingface": "https://huggingface.co/FunAudioLLM/Fun-CosyVoice3-0.5B-2512"
            "/resolve/29e01c4e8d000f4bcd70751be16fa94bf3d85a18/{path}",
            "modelscope": "https://www.modelscope.cn/models/FunAudioLLM/Fun-CosyVoice3-0.5B-2512/resolve/master/{path}",
        },
        files=(
            ModelFile("cosyvoice3.yaml", 6934),
            *_TEXT_MODEL,
            _CAMPPLUS,
            ModelFile(
                "speech_tokenizer_v3.onnx",
                969451503,
                "23236a74175dbdda47afc66dbadd5bcb41303c467a57c261cb8539ad9db9208d",
            ),
            ModelFile("hift.pt", 83202622, "b279d7641eb97ae55b3b540cfba4f953c26492a2df758328a89a4d007ab87a65"),
            ModelFile("flow.pt", 1329116148, "a6fab32a7825e5b0bc855ddd948f8db9370b0a786fbc249caa4595e95b608e4b"),
            ModelFile("llm.pt", 2024669519, "69f43bd545131c30e98947fb360ea8b4dc9916d8e83dded7757c7ea4f5a24970"),
            ModelFile(
                "llm.rl.pt",
                2024682701,
                "74d34b01a80c7154670ae75ac372d1b1712c78bceae9f467eb9f1f6f61ec764f",
                Need.ON_REQUEST,
            ),
        ),
    ),
    _cosyvoice_300m("cosyvoice-300m", "CosyVoice-300M", _V1_UNRECORDED, _V1_TOKENIZER_SHA256),
    _cosyvoice_300m(
        "cosyvoice-300m-sft",
        "CosyVoice-300M-SFT",
        (
            ModelFile("cosyvoice.yaml", 6421),
            ModelFile("spk2info.pt", 7772),
            ModelFile("hift.pt", 81896716, "91e679b6ca1eff71187ffb4f3ab0444935594cdcc20a9bd12afad111ef8d6012"),
            ModelFile("flow.pt", 419900943, "21eae78c105b5e1c6c337b04f667843377651b4bcfb2d43247ed3ad7fd0a3470"),
            ModelFile("llm.pt", 1242994835, "d198ce56636e1eb1c9d0cb0d6e3529de8fdfd3fd45075c346296b0d6dcfc54ea"),
        ),
        _V1_TOKENIZER_SHA256,
    ),
    _cosyvoice_300m("cosyvoice-300m-instruct", "CosyVoice-300M-Instruct", _V1_UNRECORDED, None),
)
