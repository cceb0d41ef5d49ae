"""The weights of a bundle: brought to one spelling, compared with what the configuration asks for, looked at for sense.

Owns the old and new key names and what makes weights fit to serve: complete, of the right shapes, finite, of a sane
size. Which tensors there must be is asked of the networks themselves, built without memory from the configuration.
It must not know files (tensor_files.py, bundle.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.flow.model import Flow
from tts_worker.engine.cosyvoice.hift import Hift
from tts_worker.engine.cosyvoice.lm import SpeechLM
from tts_worker.engine.tensor_files import finite_range
from tts_worker.errors import BundleError
from tts_worker.voicepack.report import Problem, listed

Shape = tuple[int, ...]
PARTS = ("llm", "flow", "hift")
OPTIONAL_KEYS = frozenset({"llm.model.lm_head.weight", "decoder.estimator.rotary_embed.inv_freq"})
"""Not learned: tied to the text embedding, and a constant. A file without them is complete."""
MAX_ABS = 1e5  # trained weights stay far below, also the largest norms and biases of Qwen2

# A key that only one kind of file has: to say what a foreign file is.
_MARKS = {
    "llm_embedding.weight": "CosyVoice2's language model (llm.pt)",
    "llm_decoder.weight": "a language model (llm.pt)",
    "encoder.encoders.0.norm_mha.weight": "CosyVoice2's flow (flow.pt)",
    "decoder.estimator.transformer_blocks.0.attn.to_q.weight": "CosyVoice3's flow (flow.pt)",
    "conv_post.bias": "a vocoder (hift.pt)",
}


def expected_shapes(config: CosyVoiceConfig, part: str) -> dict[str, Shape]:
    """Keys and shapes of ``part`` (``llm``, ``flow`` or ``hift``) in the current spelling."""
    with torch.device("meta"):
        if part == "llm":
            state = SpeechLM(config.lm).state_dict()
        elif part == "flow":
            state = Flow(config.flow).state_dict()
        else:
            state = Hift(config.hift).state_dict()
    return {key: tuple(tensor.shape) for key, tensor in state.items()}


def normalise_keys(part: str, tensors: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """The current spelling: ``generator.`` stripped from the vocoder, weight norm as ``parametrizations``.

    Raises BundleError if two keys become one.
    """
    if part != "hift":
        return dict(tensors)
    renamed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        new = key.replace("generator.", "")
        for old, number in (("weight_g", 0), ("weight_v", 1)):
            if new.endswith(f".{old}"):
                new = f"{new.removesuffix(old)}parametrizations.weight.original{number}"
        if new in renamed:
            raise BundleError(f"{file}: holds {new[:120]!r} in two spellings")
        renamed[new] = tensor
    return renamed


def check_tensors(expected: Mapping[str, Shape], tensors: Mapping[str, Tensor], file: str) -> list[Problem]:
    """Missing, unknown, mis-shaped or non-floating tensors; keys in the current spelling."""
    missing = [key for key in expected if key not in tensors and key not in OPTIONAL_KEYS]
    unknown = [key for key in tensors if key not in expected]
    common = [key for key in expected if key in tensors]
    if missing and unknown and len(missing) * 2 > len(expected):
        is_what = next(
            (what for key, what in _MARKS.items() if key in tensors and key not in expected), "something else"
        )
        return [Problem(file, f"this is {is_what}, not what belongs here; was it swapped or of another family?")]
    wrong_shape = [
        f"{key} is {list(tensors[key].shape)}, not {list(expected[key])}"
        for key in common
        if tuple(tensors[key].shape) != expected[key]
    ]
    wrong_type = [f"{key} is {tensors[key].dtype}" for key in common if not tensors[key].is_floating_point()]
    found = ((missing, "missing"), (wrong_shape, "wrong shape"), (wrong_type, "not floating point"))
    problems = [Problem(file, listed(what, items)) for items, what in found if items]
    if unknown:
        problems.append(Problem(file, listed("not used", unknown), fatal=False))
    return problems


def check_values(tensors: Mapping[str, Tensor], file: str) -> list[Problem]:
    """Part of the numeric self-check: NaN, infinities, absurd sizes, matrices that are all zero."""
    broken = []
    absurd = []
    empty = []
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        low, high = finite_range(tensor)
        if not abs(low) + abs(high) < float("inf"):
            broken.append(key)
        elif max(-low, high) > MAX_ABS:
            absurd.append(f"{key} reaches {max(-low, high):.3g}")
        elif low == high == 0 and tensor.dim() > 1:
            empty.append(key)
    found = (
        (broken, "NaN or infinite values in", True),
        (absurd, "values of absurd size:", True),
        (empty, "all zero:", False),
    )
    return [Problem(file, listed(what, items), fatal) for items, what, fatal in found if items]


def complete(expected: Mapping[str, Shape], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Exactly the expected keys in ``dtype``. What is not learned does not come from the file: the text model's output
    layer is its embedding (tied, unused), the rotary frequencies are a formula."""
    full: dict[str, Tensor] = {}
    for key, shape in expected.items():
        if key not in OPTIONAL_KEYS:
            full[key] = tensors[key].to(dtype)
        elif key.startswith("llm."):
            full[key] = full["llm.model.model.embed_tokens.weight"]
        else:
            full[key] = 1.0 / 10_000.0 ** (torch.arange(shape[0], dtype=torch.float32) / shape[0])
    return full
