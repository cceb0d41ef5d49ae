"""How much memory the caches of an engine take: slots of the language model, and pages of the flow."""

from __future__ import annotations

import gc
import math

import torch

from tts_worker.engine.cosyvoice.bundle.config import V1, CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.settings import LM_TOKENS
from tts_worker.engine.cosyvoice.tokens.decoder import EXTRA_SLOTS
from tts_worker.errors import ConfigError

CPU_MEMORY_GB = 4.0
CPU_UTTERANCES = 16
FEWEST_CUDA_UTTERANCES = 16
MOST_CUDA_UTTERANCES = 256  # room for 192 live calls that come and go; each doubling adds a dozen graphs
LM_CACHE_SHARE = 1 / 8  # of the engine's part of a GPU, by default
CUDA_MEMORY_SHARE = 0.85  # of the memory that is free beside the weights and the cache of the language model
CUDA_WORKING_BYTES = 2 * 10**9  # at least what remains for activations, contexts of the flow and captured graphs
MIN_PAGES = 12
MAX_PAGES = 65_536


def return_unused_memory() -> None:
    """Return to the driver what PyTorch keeps of engines that were closed.

    ``page_count`` asks the driver what is free. Weights that are allocated before would split the one block that held
    all pages of an engine, which then cannot be returned at all.
    """
    gc.collect()  # an engine refers to itself
    torch.cuda.empty_cache()


def page_bytes(config: CosyVoiceConfig, dtype: torch.dtype) -> int:
    """Return the size of one page.

    A page holds keys and values of one chunk: of all estimator layers in all guided solver steps, and of the encoder.
    """
    flow = config.chunked_flow
    frames = flow.chunk_tokens * flow.frames_per_token
    values = 0
    if flow.unet is not None:
        values = (flow.unet.mid_blocks + 2) * flow.unet.blocks * flow.unet.heads * flow.unet.head_dim
    elif flow.dit is not None:
        values = flow.dit.depth * flow.dit.heads * flow.dit.head_dim
    values *= (2 * flow.steps - 1) * frames
    if flow.encoder is not None:
        values += flow.encoder.output_size * (flow.encoder.layers * flow.chunk_tokens + flow.encoder.up_layers * frames)
    return 2 * values * dtype.itemsize


def lm_cache_bytes(config: CosyVoiceConfig, slots: int, max_tokens: int, dtype: torch.dtype) -> int:
    """Return the size of the language model's KV cache."""
    lm = config.lm
    return 2 * lm.cache_layers * slots * lm.kv_heads * (max_tokens + 1) * lm.head_dim * dtype.itemsize


def cuda_utterances(config: CosyVoiceConfig, dtype: torch.dtype, memory_bytes: float) -> int:
    """Return how many utterances an engine takes by default.

    Each has a slot in the cache of the language model, which takes an eighth of the memory.

    Args:
        config: The model.
        dtype: Of the cache.
        memory_bytes: Memory of the GPU for the engine, weights included.
    """
    slots = LM_CACHE_SHARE * memory_bytes / lm_cache_bytes(config, 1, LM_TOKENS, dtype)
    return max(FEWEST_CUDA_UTTERANCES, min(int(slots) - EXTRA_SLOTS, MOST_CUDA_UTTERANCES))


def default_utterances(networks: Networks, memory_share: float) -> int:
    """Return how many utterances an engine with these networks, which are loaded, takes by default."""
    if networks.device.type != "cuda":
        return CPU_UTTERANCES
    free_bytes, total_bytes = torch.cuda.mem_get_info(networks.device)
    memory_bytes = min(free_bytes + weight_bytes(networks), memory_share * total_bytes)
    return cuda_utterances(networks.config, networks.lm.llm_decoder.weight.dtype, memory_bytes)


def page_budget(free_bytes: int, total_bytes: int, weight_bytes: int, lm_cache_bytes: int, share: float) -> float:
    """Return the memory for the pages of an engine that may use ``share`` of a device.

    Engines with the same share get the same budget, whichever is loaded first, as long as that much is free.

    Args:
        free_bytes: Free memory after loading the weights.
        total_bytes: Memory of the device.
        weight_bytes: Weights of this engine.
        lm_cache_bytes: KV cache of the language model, which is allocated beside the pages.
        share: Part of the device for this engine, weights included.
    """
    available = min(free_bytes, share * total_bytes - weight_bytes) - lm_cache_bytes
    return max(0.0, min(CUDA_MEMORY_SHARE * available, available - CUDA_WORKING_BYTES))


def weight_bytes(networks: Networks) -> int:
    """Return the memory of the parameters and buffers."""
    modules = (networks.lm, networks.flow, networks.hift)
    tensors = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def page_count(networks: Networks, utterances: int, memory_gb: float | None, memory_share: float = 1.0) -> int:
    """Return how many pages fit into the memory. Raises ConfigError if they are too few for one utterance."""
    if networks.config.family == V1:
        return MIN_PAGES  # its flow has none
    each = page_bytes(networks.config, networks.flow.dtype)
    device = networks.device
    if memory_gb is not None:
        budget = memory_gb * 1e9
    elif device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        lm_dtype = networks.lm.llm_decoder.weight.dtype
        lm_bytes = lm_cache_bytes(networks.config, utterances + EXTRA_SLOTS, LM_TOKENS, lm_dtype)
        budget = page_budget(free_bytes, total_bytes, weight_bytes(networks), lm_bytes, memory_share)
    else:
        budget = CPU_MEMORY_GB * 1e9
    if not math.isfinite(budget):
        raise ConfigError(f"memory_gb: must be a finite number, not {memory_gb}")
    pages = min(int(budget / each), MAX_PAGES)
    if pages < MIN_PAGES:
        raise ConfigError(
            f"memory_gb: {budget / 1e9:.1f} GB hold {pages} s of audio; this model needs at least "
            f"{MIN_PAGES * each / 1e9:.1f} GB"
        )
    return pages
