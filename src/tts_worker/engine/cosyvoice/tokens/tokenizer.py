"""Text tokenizers: Qwen2's byte-level BPE of CosyVoice 2 and 3, and that of OpenAI's Whisper of CosyVoice-300M.

The order of the special tokens defines their ids. User text is plain text: ``<|endofprompt|>`` in it is encoded as
characters unless the caller allows special tokens. Text is not normalized here, but a bundle may have a respelling.

Whisper's vocabulary is a ``.tiktoken`` file. A line of it is a token in base64 and its rank, which is its id. Any two
neighbors whose concatenation is a token may be joined, the lowest rank first; there is no list of merges, so it is
derived here. Its special tokens follow in a fixed order: https://github.com/openai/whisper, and those of CosyVoice's
own vocabulary at 25 Hz.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from tts_worker.engine.cosyvoice.bundle.config import V1, V3, WHISPER_CHARACTERS
from tts_worker.engine.cosyvoice.bundle.directory import Bundle, vocabulary_source
from tts_worker.engine.cosyvoice.tokens import respelling
from tts_worker.engine.cosyvoice.tokens.respelling import Respelling
from tts_worker.errors import BundleError, MissingExtra
from tts_worker.front_end.instruction import END_OF_PROMPT

# Qwen2's pre-tokenization pattern: https://huggingface.co/docs/transformers/model_doc/qwen2
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BASE = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_EVENTS = f"""
{END_OF_PROMPT} [breath] <strong> </strong> [noise] [laughter] [cough] [clucking] [accent] [quick_breath] <laughter>
</laughter> [hissing] [sigh] [vocalized-noise] [lipsmack] [mn]
"""
CONTROL_TAGS = tuple(token for token in _EVENTS.split() if token != END_OF_PROMPT)
"""Special tokens that text may contain: events and marks, such as ``[breath]`` and ``<strong>``."""
_PHONEMES = """
AA AA0 AA1 AA2 AE AE0 AE1 AE2 AH AH0 AH1 AH2 AO AO0 AO1 AO2 AW AW0 AW1 AW2 AY AY0 AY1 AY2 B CH D DH EH EH0 EH1 EH2
ER ER0 ER1 ER2 EY EY0 EY1 EY2 F G HH IH IH0 IH1 IH2 IY IY0 IY1 IY2 JH K L M N NG OW OW0 OW1 OW2 OY OY0 OY1 OY2 P R S
SH T TH UH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn
iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā iān iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong
ou p q r s sh t u uang ue un uo uà uài uàn uàng uá uái uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi
uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu
ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu
ǔ ǔn ǘ ǚ ǜ
"""
TAG_PATTERN = re.compile(r"\[[^\[\]\s]*\]|<[^<>\s]*>|[^\s\[\]<>]+|[\[\]<>]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def special_tokens(version: str) -> tuple[str, ...]:
    """Special tokens of ``version`` (``cosyvoice2`` or ``cosyvoice3``) beyond the text vocabulary, in id order."""
    extra = ("<|endofsystem|>", *(f"[{phoneme}]" for phoneme in _PHONEMES.split())) if version == V3 else ()
    return (*_BASE, *_EVENTS.split(), *extra)


def phonemes(version: str) -> tuple[str, ...]:
    """Phonemes with a token, without brackets: CMU's and parts of pinyin syllables; none for CosyVoice2."""
    return tuple(_PHONEMES.split()) if version == V3 else ()


class TextTokenizer:
    """Two encoders over one vocabulary: with and without special tokens in the text. Thread-safe."""

    def __init__(self, directory: Path, version: str, text_rows: int) -> None:
        """Load the vocabulary.

        Args:
            directory: Contains vocab.json, merges.txt and optionally tokenizer_config.json.
            version: Selects the special tokens.
            text_rows: Rows of the text embedding; every id must be below.

        Raises:
            BundleError: A file is missing or inconsistent.
            MissingExtra: The tokenizers library is not installed.
        """
        library = _tokenizers()
        for name in ("vocab.json", "merges.txt"):
            if not (directory / name).is_file():
                raise BundleError(f"{directory / name}: is missing")
        try:
            model = library.models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
        except Exception as error:  # the library raises nothing more precise
            problem = f"vocab.json and merges.txt are not a valid BPE vocabulary ({error})"
            raise BundleError(f"{directory}: {problem}") from None
        spellings = directory / respelling.FILE
        self._respell = Respelling.load(spellings) if spellings.is_file() else None
        named = _named_in_config(directory / "tokenizer_config.json")
        tokens = list(dict.fromkeys([*named.values(), *special_tokens(version)]))
        self._set_encoders(model, WORD_PATTERN, tokens, library.normalizers.NFC())
        tags = (*CONTROL_TAGS, *(f"[{phoneme}]" for phoneme in phonemes(version)))
        self._control_ids = {tag: self.special_ids[tag] for tag in tags}
        wrong = [token for number, token in named.items() if self.special_ids[token] != number]
        if wrong:
            raise BundleError(
                f"{directory}: tokenizer_config.json gives {wrong[0]!r} an id that does not follow vocab.json"
            )
        if len(self) > text_rows:
            raise BundleError(f"{directory}: has {len(self)} tokens, but the model has {text_rows} embedding rows")

    def _set_encoders(self, model: Any, words: str, special: Iterable[str], normalizer: Any = None) -> None:
        """Make both encoders of a BPE ``model`` over words that match ``words``; only one of them knows ``special``."""
        library = _tokenizers()
        encoders = []
        for _ in range(2):
            encoder = library.Tokenizer(model)
            if normalizer is not None:
                encoder.normalizer = normalizer
            split = library.pre_tokenizers.Split(library.Regex(words), behavior="isolated")
            byte_level = library.pre_tokenizers.ByteLevel(False, use_regex=False)
            encoder.pre_tokenizer = library.pre_tokenizers.Sequence([split, byte_level])
            encoder.decoder = library.decoders.ByteLevel()
            encoders.append(encoder)
        self._plain, self._special = encoders
        tokens = [library.AddedToken(token, normalized=False, special=True) for token in special]
        self._special.add_special_tokens(tokens)
        self.special_ids = {token: self._special.token_to_id(token) for token in special}

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> TextTokenizer:
        """Load the tokenizer of a model directory. Raises as the constructors."""
        config = bundle.config
        if config.family == V1:
            return WhisperTokenizer(bundle.whisper_vocabulary, config.tokenizer_version, config.lm.text_vocab)
        return cls(bundle.text_model_dir, config.tokenizer_version, config.lm.text_vocab)

    def __len__(self) -> int:
        return int(self._special.get_vocab_size())

    @property
    def end_of_prompt_id(self) -> int:
        """The id that separates an instruction from the text."""
        return int(self.special_ids[END_OF_PROMPT])

    def spell(self, text: str) -> str:
        """Return ``text`` as the model reads it: respelled if the bundle says so."""
        return text if self._respell is None else self._respell(text)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of ``text``, respelled if the bundle says so, without added tokens. Lone surrogates become U+FFFD."""
        encoder = self._special if allow_special else self._plain
        plain = _SURROGATE.sub("\ufffd", text)
        spelled = plain if allow_special else self.spell(plain)
        return list(encoder.encode(spelled, add_special_tokens=False).ids)

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """Ids of plain ``text`` that is spelled as the model reads it, and the character after each of them."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        return list(encoding.ids), [end for _, end in encoding.offsets]

    def control_ids(self, pronunciation: str) -> list[int] | None:
        """Ids of control tags and phonemes: ``[laughter]``, ``[j][ǐ]``, or ``T AH0`` for ``[T][AH0]``.

        Returns:
            The ids; None if ``pronunciation`` has anything that is no such token, for example IPA.
        """
        tags = [part if part[0] in "[<" else f"[{part}]" for part in TAG_PATTERN.findall(pronunciation)]
        if not tags or any(tag not in self._control_ids for tag in tags):
            return None
        return [int(self._control_ids[tag]) for tag in tags]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids`` without special tokens."""
        return str(self._special.decode(list(ids), skip_special_tokens=True))


def _tokenizers() -> Any:
    """Import the tokenizers library. Raises MissingExtra."""
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra("CosyVoice's text tokenizer", "cosyvoice") from None
    return tokenizers


def _named_in_config(file: Path) -> dict[int, str]:
    """Special tokens with ids from tokenizer_config.json, in id order."""
    if not file.is_file():
        return {}
    try:
        table = json.loads(file.read_text("utf-8")).get("added_tokens_decoder", {})
        return {int(number): str(table[number]["content"]) for number in sorted(table, key=int)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BundleError(f"{file}: is not a tokenizer configuration") from None


V1_CONTROL_TAGS = ("[breath]", "[laughter]", "<strong>", "</strong>", "<laughter>", "</laughter>")
"""Marks that CosyVoice-300M-Instruct was trained with, as text."""

WHISPER_WORD_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Whisper's pre-tokenization, which is that of GPT-2."""

MAX_VOCABULARY_BYTES = 8 << 20
_WHISPER_LANGUAGES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk
te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo
ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue
"""
_WHISPER_EVENTS = "ASR AED SER Speech /Speech BGM /BGM Laughter /Laughter Applause /Applause HAPPY SAD ANGRY NEUTRAL"
_TASKS = "translate transcribe startoflm startofprev nospeech notimestamps"
_VOCAL = "TTS/B TTS/O TTS/Q TTS/A TTS/CO TTS/CL TTS/H"
_TIMESTAMPS = 1501  # 0.00 to 30.00 s


def whisper_special_tokens(kind: str) -> tuple[str, ...]:
    """Special tokens of ``WHISPER`` or ``WHISPER_CHARACTERS`` beyond the vocabulary, in id order."""
    own = kind == WHISPER_CHARACTERS
    names = chain(
        ("endoftext", "startoftranscript"),
        _WHISPER_LANGUAGES.split(),
        _WHISPER_EVENTS.split() if own else (),
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
        library = _tokenizers()
        ranks = read_ranks(file)
        special = whisper_special_tokens(kind)
        if len(ranks) + len(special) > text_rows:
            raise BundleError(
                f"{file}: has {len(ranks) + len(special)} tokens, but the model has {text_rows} embedding rows"
            )
        vocab = {_symbols(token): rank for token, rank in ranks.items()}
        # A word that is a token is not split, whichever merges lead to it.
        model = library.models.BPE(vocab, _merges(ranks), ignore_merges=True)
        self._set_encoders(model, WHISPER_WORD_PATTERN, special)
        self._respell = None

    def language_ids(self, language: str) -> list[int]:
        """The token of ``language``, as the reference's users write it before a text in another language; or none."""
        token = f"<|{language}|>"
        return [int(self.special_ids[token])] if language in _WHISPER_LANGUAGES.split() else []

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
