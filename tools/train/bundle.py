"""The bundle that is trained: CosyVoice 2's official layout with a new tokenizer and new sizes, without weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from torch import Tensor

from tools.train.codes import CodeBook
from tools.train.config import Config
from tts_worker.engine.cosyvoice.bundle.config import V2
from tts_worker.engine.cosyvoice.bundle.directory import TEXT_MODEL_DIR, Bundle
from tts_worker.engine.cosyvoice.tokens.tokenizer import WORD_PATTERN, special_tokens

VOICE = "nano"
CODES = "codes.json"
SPEAKER_SIZE = 192
_TEMPLATE = Path(__file__).with_name("cosyvoice2.yaml")
_OFFICIAL = {
    "harmonics": 8,
    "rates": [8, 5, 3],
    "rate_kernels": [16, 11, 7],
    "fft": 16,
    "hop": 4,
    "source_kernels": [7, 7, 11],
    "source_dilations": [[1, 3, 5]] * 3,
    "source_filter": False,
}
_FILTER = {
    **_OFFICIAL,
    "harmonics": 23,
    "rates": [4],
    "rate_kernels": [8],
    "fft": 480,
    "hop": 120,
    "source_kernels": [7],
    "source_dilations": [[1]],
    "source_filter": True,
}
_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


def write_skeleton(path: Path, config: Config, book: CodeBook, corpus: list[str]) -> Bundle:
    """Write everything but the weights: YAML, sizes of the text model, tokenizer, code book and speaker."""
    text_model = path / TEXT_MODEL_DIR
    text_model.mkdir(parents=True, exist_ok=True)
    if config.initial:
        for name in _TOKENIZER_FILES:
            shutil.copyfile(Path(config.initial) / TEXT_MODEL_DIR / name, text_model / name)
    else:
        train_tokenizer(text_model, corpus, config.sizes.text_vocab)
    vocab = json.loads((text_model / "vocab.json").read_text("utf-8"))
    width, layers, heads, kv_heads, inner = config.sizes.lm
    sizes = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": -(-(len(vocab) + len(special_tokens(V2))) // 64) * 64,
    }
    (text_model / "config.json").write_text(json.dumps(sizes, indent=1) + "\n", "utf-8")
    (path / "cosyvoice2.yaml").write_text(_yaml(config, len(book)), "utf-8")
    book.save(path / CODES)
    (path / "configuration.json").write_text('{"framework": "Pytorch", "task": "text-to-speech"}\n', "utf-8")
    torch.save({VOICE: {"embedding": speaker()}}, path / "spk2info.pt")
    return Bundle.open(path)


def speaker() -> Tensor:
    """Embedding of the only speaker, ``[1, 192]``: arbitrary, since there is no other one."""
    generator = torch.Generator().manual_seed(7)
    return F.normalize(torch.randn(1, SPEAKER_SIZE, generator=generator), dim=1)


def train_tokenizer(folder: Path, corpus: list[str], size: int) -> None:
    """Write a byte-level BPE tokenizer in Qwen2's form."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.model.save(str(folder))
    base = special_tokens(V2)[:3]
    first = tokenizer.get_vocab_size()
    added = {str(first + i): {"content": token, "special": True} for i, token in enumerate(base)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}) + "\n", "utf-8")


def set_pace(path: Path, pace: float) -> None:
    """Write into the YAML of the bundle ``path`` how many speech tokens a unit of text weight has.

    The word times of a voice without a prompt follow from it.
    """
    file = path / "cosyvoice2.yaml"
    text = re.sub(r"\n+pace: .*", "", file.read_text("utf-8"))
    file.write_text(f"{text.rstrip()}\n\npace: {pace:.3f}\n", "utf-8")


def _yaml(config: Config, codes: int) -> str:
    sizes = config.sizes
    encoder_width, encoder_heads, encoder_inner, encoder_layers = sizes.encoder
    channels, unet_heads, head_size, blocks, mid_blocks = sizes.unet
    values = {
        "name": config.name,
        "lm_width": sizes.lm[0],
        "codes": codes,
        "top_p": config.top_p,
        "encoder_width": encoder_width,
        "encoder_heads": encoder_heads,
        "encoder_inner": encoder_inner,
        "encoder_layers": encoder_layers,
        "channels": channels,
        "head_size": head_size,
        "blocks": blocks,
        "mid_blocks": mid_blocks,
        "unet_heads": unet_heads,
        "vocoder": sizes.vocoder,
        "kernels": list(sizes.vocoder_kernels),
        "dilations": list(map(list, sizes.vocoder_dilations)) or [[1, 3, 5]] * len(sizes.vocoder_kernels),
        **(_FILTER if sizes.source_filter else _OFFICIAL),
        "pitch": sizes.pitch,
    }
    return _TEMPLATE.read_text("utf-8").format(**values)
