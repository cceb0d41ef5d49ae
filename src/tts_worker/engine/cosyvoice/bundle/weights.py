"""Creates the networks, and normalizes and checks the weights of a bundle: key names, completeness, shapes and values.

The expected tensors come from the networks themselves, created on the meta device from the configuration. Files are
read in tensor_files.py and directory.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.tensor_files import finite_range
from tts_worker.engine.cosyvoice.networks.dims import HiftDims, TransformerLmDims, V1FlowDims
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.hift import Hift
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM
from tts_worker.engine.cosyvoice.networks.source_filter import SourceFilter
from tts_worker.engine.cosyvoice.v1.flow import V1Flow
from tts_worker.engine.cosyvoice.v1.transformer_lm import TransformerLm
from tts_worker.errors import BundleError
from tts_worker.models.bundles.report import Problem, listed

Shape = tuple[int, ...]
PARTS = ("llm", "flow", "hift")
OPTIONAL_KEYS = frozenset({"llm.model.lm_head.weight", "decoder.estimator.rotary_embed.inv_freq"})
"""Not learned (tied to the text embedding, and a constant): a file may lack them."""
MAX_ABS = 1e5  # trained weights, including the largest norms and biases of Qwen2, are far below

# Keys that identify the kind of a file, to name a file that was swapped.
_IDENTIFYING_KEYS = {
    "llm_embedding.weight": "CosyVoice2's language model (llm.pt)",
    "llm_decoder.weight": "a language model (llm.pt)",
    "text_encoder.after_norm.weight": "CosyVoice-300M's language model (llm.pt)",
    "length_regulator.model.0.weight": "CosyVoice-300M's flow (flow.pt)",
    "encoder.encoders.0.norm_mha.weight": "CosyVoice2's flow (flow.pt)",
    "decoder.estimator.transformer_blocks.0.attn.to_q.weight": "CosyVoice3's flow (flow.pt)",
    "conv_post.bias": "a vocoder (hift.pt)",
}


def new_lm(config: CosyVoiceConfig) -> SpeechLM | TransformerLm:
    """Return the language model without weights."""
    return TransformerLm(config.lm) if isinstance(config.lm, TransformerLmDims) else SpeechLM(config.lm)


def new_flow(config: CosyVoiceConfig) -> Flow | V1Flow:
    """Return the flow without weights."""
    return V1Flow(config.flow) if isinstance(config.flow, V1FlowDims) else Flow(config.flow)


def new_hift(dims: HiftDims, exact_phase: bool = True) -> Hift:
    """Return the vocoder without weights."""
    return (SourceFilter if dims.source_filter else Hift)(dims, exact_phase)


@lru_cache(maxsize=32)
def expected_shapes(config: CosyVoiceConfig, part: str) -> Mapping[str, Shape]:
    """Current key names and shapes of ``part`` (``llm``, ``flow`` or ``hift``).

    Cached: building the networks takes as long as reading a small model.
    """
    if part == "hift":
        # Its weight norm is computed; on "meta", by Python with the compiler.
        state = new_hift(config.hift).state_dict()
    else:
        with torch.device("meta"):
            state = (new_lm(config) if part == "llm" else new_flow(config)).state_dict()
    return MappingProxyType({key: tuple(tensor.shape) for key, tensor in state.items()})


def normalize_keys(part: str, tensors: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """Rename keys to the current names: strips ``generator.`` from the vocoder, weight norm as ``parametrizations``.

    Raises:
        BundleError: Two keys map to the same name.
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
            raise BundleError(f"{file}: contains {new[:120]!r} under two names")
        renamed[new] = tensor
    return renamed


def check_tensors(expected: Mapping[str, Shape], tensors: Mapping[str, Tensor], file: str) -> list[Problem]:
    """Report tensors that are missing, unknown, of the wrong shape or not floating point."""
    missing = [key for key in expected if key not in tensors and key not in OPTIONAL_KEYS]
    unknown = [key for key in tensors if key not in expected]
    common = [key for key in expected if key in tensors]
    if missing and unknown and len(missing) * 2 > len(expected):
        kind = next(
            (kind for key, kind in _IDENTIFYING_KEYS.items() if key in tensors and key not in expected),
            "something else",
        )
        return [Problem(file, f"this is {kind}, not the expected file; was it swapped or is it from another family?")]
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
    """Report NaN, infinities, implausibly large values and matrices that are all zero."""
    not_finite = []
    too_large = []
    all_zero = []
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        low, high = finite_range(tensor)
        if not abs(low) + abs(high) < float("inf"):
            not_finite.append(key)
        elif max(-low, high) > MAX_ABS:
            too_large.append(f"{key} reaches {max(-low, high):.3g}")
        elif low == high == 0 and tensor.dim() > 1:
            all_zero.append(key)
    found = (
        (not_finite, "NaN or infinite values in", True),
        (too_large, "implausibly large values:", True),
        (all_zero, "all zero:", False),
    )
    return [Problem(file, listed(what, items), fatal) for items, what, fatal in found if items]


def complete(expected: Mapping[str, Shape], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return exactly the expected keys in ``dtype``.

    Tensors that are not learned are computed instead of read: the text head is tied to the embedding (and unused), the
    rotary frequencies follow a formula.
    """
    full: dict[str, Tensor] = {}
    for key, shape in expected.items():
        if key not in OPTIONAL_KEYS:
            full[key] = tensors[key].to(dtype)
        elif key.startswith("llm."):
            full[key] = full["llm.model.model.embed_tokens.weight"]
        else:
            full[key] = 1.0 / 10_000.0 ** (torch.arange(shape[0], dtype=torch.float32) / shape[0])
    return full
