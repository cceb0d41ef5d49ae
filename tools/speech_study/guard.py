"""The output guard on a model that loses itself: what it does, and the same speech without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.tensor_files import write_safetensors
from tts_worker.engine.cosyvoice.token_generator import TokenGenerator
from tts_worker.engine.cosyvoice.tokens.guard import TokenGuard


def lost_bundle(bundle: Bundle, folder: Path, noise: float, seed: int = 1) -> Path:
    """Create a bundle in ``folder`` whose language model loses itself.

    Args:
        bundle: Where everything else comes from.
        folder: Empty.
        noise: Deviation of the noise that is added to each matrix of the language model, relative to the matrix.
        seed: Of the noise.
    """
    for source in bundle.path.iterdir():
        if not source.name.startswith("llm."):
            (folder / source.name).symlink_to(source.resolve())
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1
        else tensor
        for name, tensor in bundle.load_weights("llm").items()
    }
    write_safetensors(folder / "llm.safetensors", weights, {"format": "pt"})
    return folder


@contextmanager
def watched_guard(*, enabled: bool) -> Iterator[Counter[str]]:
    """Count what the guard does in engines of this process: ``redraw`` and ``cut``, the latter also with its reason.

    Without it a run ends at its limit of tokens only, which counts as ``cut`` as well.
    """
    counts: Counter[str] = Counter()
    retry, truncate, check = TokenGenerator._retry_run, TokenGenerator._truncate, TokenGuard.check

    def count_retry(generator: TokenGenerator, *args: Any) -> None:
        counts["redraw"] += 1
        retry(generator, *args)

    def count_cut(generator: TokenGenerator, reason: str, *args: Any) -> None:
        counts["cut"] += 1
        counts[f"cut_{reason}"] += 1
        truncate(generator, reason, *args)

    with (
        patch.object(TokenGenerator, "_retry_run", count_retry),
        patch.object(TokenGenerator, "_truncate", count_cut),
        patch.object(TokenGuard, "check", check if enabled else lambda guard, token: None),
    ):
        yield counts
