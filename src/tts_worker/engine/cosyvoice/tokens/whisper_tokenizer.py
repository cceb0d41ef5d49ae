"""Text tokenizer of CosyVoice-300M: the byte-level BPE of OpenAI's Whisper, read from a ``.tiktoken`` file.

A line of the file is a token in base64 and its rank, which is its id. Any two neighbors whose concatenation is a token
may be joined, the lowest rank first; there is no list of merges, so it is derived here. The special tokens follow the
vocabulary in a fixed order: https://github.com/openai/whisper, and those of CosyVoice's own vocabulary at 25 Hz.
"""

from __future__ import annotations

import base64
import binascii
from itertools import chain
from pathlib import Path
from typing import Any

from tts_worker.engine.cosyvoice.bundle.config import WHISPER_CHARACTERS
from tts_worker.engine.cosyvoice.bundle.directory import vocabulary_source
from tts_worker.engine.cosyvoice.tokens.tokenizer import TAG_PATTERN, TextTokenizer
from tts_worker.errors import BundleError, MissingExtra

V1_CONTROL_TAGS = ("[breath]", "[laughter]", "<strong>", "</strong>", "<laughter>", "</laughter>")
"""Marks that CosyVoice-300M-Instruct was trained with, as text."""

WORD_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Whisper's pre-tokenization, which is that of GPT-2."""

MAX_VOCABULARY_BYTES = 8 << 20
_LANGUAGES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk
te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo
ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue
"""
_EVENTS = "ASR AED SER Speech /Speech BGM /BGM Laughter /Laughter Applause /Applause HAPPY SAD ANGRY NEUTRAL"
_TASKS = "translate transcribe startoflm startofprev nospeech notimestamps"
_VOCAL = "TTS/B TTS/O TTS/Q TTS/A TTS/CO TTS/CL TTS/H"
_TIMESTAMPS = 1501  # 0.00 to 30.00 s


def whisper_special_tokens(kind: str) -> tuple[str, ...]:
    """Special tokens of ``WHISPER`` or ``WHISPER_CHARACTERS`` beyond the vocabulary, in id order."""
    own = kind == WHISPER_CHARACTERS
    names = chain(
        ("endoftext", "startoftranscript"),
        _LANGUAGES.split(),
        _EVENTS.split() if own else (),
        _TASKS.split(),
        (f"SPECIAL_TOKEN_{number}" for number in range(1, 31)) if own else (),
        (*_VOCAL.split(), *(f"TTS/SP{number:02d}" for number in range(1, 14))) if own else (),
        (f"{number * 0.02:.2f}" for number in range(_TIMESTAMPS)),
    )
    return tuple(f"<|{name}|>" for name in names)


class WhisperTokenizer(TextTokenizer):
    """The tokenizer of a CosyVoice-300M directory. Thread-safe.

    ``<|endofprompt|>`` and tags such as ``[laughter]`` are no special tokens of this family: the model was trained with
    their characters.
    """

    def __init__(self, file: Path, kind: str, text_rows: int) -> None:
        """Load the vocabulary.

        Args:
            file: The vocabulary.
            kind: ``WHISPER`` or ``WHISPER_CHARACTERS``; selects the special tokens.
            text_rows: Rows of the text embedding; every id must be below.

        Raises:
            BundleError: The file is missing or damaged.
            MissingExtra: The tokenizers library is not installed.
        """
        try:
            from tokenizers import AddedToken
        except ImportError:
            raise MissingExtra("CosyVoice's text tokenizer", "cosyvoice") from None
        ranks = read_ranks(file)
        special = whisper_special_tokens(kind)
        if len(ranks) + len(special) > text_rows:
            raise BundleError(
                f"{file}: has {len(ranks) + len(special)} tokens, but the model has {text_rows} embedding rows"
            )
        vocab = {_symbols(token): rank for token, rank in ranks.items()}
        merges = _merges(ranks)
        self._plain = _encoder(vocab, merges)
        self._special = _encoder(vocab, merges)
        self._special.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
        self._respell = None
        self.special_ids = {token: self._special.token_to_id(token) for token in special}

    def language_ids(self, language: str) -> list[int]:
        """The token of ``language``, as the reference's users write it before a text in another language; or none."""
        token = f"<|{language}|>"
        return [int(self.special_ids[token])] if language in _LANGUAGES.split() else []

    def control_ids(self, pronunciation: str) -> list[int] | None:
        """Ids of control tags, spelled as the model reads them; None if there is anything else, such as phonemes."""
        tags = TAG_PATTERN.findall(pronunciation)
        if not tags or any(tag not in V1_CONTROL_TAGS for tag in tags):
            return None
        return self.encode("".join(tags))


def read_ranks(file: Path) -> dict[bytes, int]:
    """Read a ``.tiktoken`` file: ranks by token, from 0 without gaps.

    Raises:
        BundleError: The file is missing, or is not such a vocabulary.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_VOCABULARY_BYTES + 1)
    except FileNotFoundError:
        raise BundleError(
            f"{file}: is missing: no text can be read. It is no part of the official model directory: get it "
            f"{vocabulary_source(file)}"
        ) from None
    except OSError:
        raise BundleError(f"{file}: is not readable") from None
    ranks: dict[bytes, int] = {}
    try:
        for line in raw.splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token)] = int(rank)
    except (ValueError, binascii.Error):
        raise BundleError(f"{file}: is not a .tiktoken vocabulary") from None
    every_byte = all(bytes([byte]) in ranks for byte in range(256))
    if len(raw) > MAX_VOCABULARY_BYTES or not every_byte or sorted(ranks.values()) != list(range(len(ranks))):
        raise BundleError(f"{file}: is not a complete .tiktoken vocabulary; get it again")
    return ranks


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """Every pair of tokens whose concatenation is a token, by rank of the concatenation."""
    found = []
    for token, rank in ranks.items():
        for place in range(1, len(token)):
            left, right = token[:place], token[place:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], _symbols(left), _symbols(right)))
    return [(left, right) for *_, left, right in sorted(found)]


def _byte_symbols() -> tuple[str, ...]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte) if byte in plain else chr(next(others)) for byte in range(256))


_SYMBOLS = _byte_symbols()


def _symbols(token: bytes) -> str:
    return "".join(_SYMBOLS[byte] for byte in token)


def _encoder(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    # A word that is a token is not split, whichever merges lead to it.
    encoder = Tokenizer(BPE(vocab, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated")
    encoder.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    encoder.decoder = decoders.ByteLevel()
    return encoder
