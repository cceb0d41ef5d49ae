"""Compares the language model's decoder with transformers' Qwen2 on the same random weights.

Both get the same input vectors, so neither draws ids: a prompt is read in one pass, then one vector per step and
sequence. Times are wall-clock times of the pass alone. transformers is optional; without it only ours is measured.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.networks.dims import LmDims
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM
from tts_worker.features.bench.stats import Figure, rounded_ms

_EMBEDDINGS = 8
"""Rows of the text table: the benchmark feeds vectors, so the 150 000 rows of the model would only take memory."""


def dims(layers: int, width: int) -> LmDims:
    """Return the dimensions of CosyVoice's Qwen2, with ``layers`` layers and ``width`` a multiple of 128."""
    heads = width // 64
    return LmDims(
        hidden_size=width,
        intermediate_size=width * 4_864 // 896,
        layers=layers,
        heads=heads,
        kv_heads=2,
        head_dim=64,
        text_vocab=_EMBEDDINGS,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        speech_tokens=6_561,
        speech_rows=6_564,
        decoder_bias=True,
        separate_special_rows=True,
        sos_row=0,
        task_row=1,
        eos_id=6_561,
        fill_id=6_563,
    )


class LanguageModelBench:
    """The decoders with the same weights.

    Args:
        layers: Layers of the network; CosyVoice's has 24.
        width: Size of its vectors; CosyVoice's have 896.
        prompt: Vectors that are read before the first step.
        steps: Measured steps.
        threads: CPU threads; None for PyTorch's choice.
    """

    def __init__(self, layers: int, width: int, prompt: int, steps: int, *, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._dims = dims(layers, width)
        self._prompt = prompt
        self._steps = steps
        self._lm = SpeechLM(self._dims).eval()
        with torch.no_grad():
            for name, parameter in self._lm.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.02)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        self._other = _transformers_model(self._lm, self._dims)
        self._lm.prepare()

    @torch.inference_mode()
    def measure(self, batch: int) -> dict[str, Figure]:
        """Measure ``batch`` sequences decoded together: times in ms, and the difference between the last logits."""
        inputs = torch.randn(batch, self._prompt + self._steps, self._dims.hidden_size)
        figures: dict[str, Figure] = {}
        ours = self._run("ours", batch, inputs, self._ours(batch), figures)
        if self._other is not None:
            theirs = self._run("transformers", batch, inputs, self._theirs(), figures)
            figures[f"batch_{batch}_difference"] = float(f"{(ours - theirs).abs().max().item():.2g}")
        return figures

    def _run(
        self, name: str, batch: int, inputs: Tensor, forward: Callable[[Tensor], Tensor], figures: dict[str, Figure]
    ) -> Tensor:
        began_s = perf_counter()
        logits = forward(inputs[:, : self._prompt].contiguous())
        figures[f"batch_{batch}_{name}_prompt_ms"] = rounded_ms(perf_counter() - began_s)
        times_s = []
        for step in range(self._prompt, inputs.shape[1]):
            began_s = perf_counter()
            logits = forward(inputs[:, step : step + 1].contiguous())
            times_s.append(perf_counter() - began_s)
        figures[f"batch_{batch}_{name}_step_ms"] = rounded_ms(median(times_s))
        return logits

    def _ours(self, batch: int) -> Callable[[Tensor], Tensor]:
        dims = self._dims
        pool = SlotPool(dims.layers, batch, dims.kv_heads, self._prompt + self._steps + 1, dims.head_dim)
        slots = torch.arange(batch)
        context = 0

        def forward(x: Tensor) -> Tensor:
            nonlocal context
            context += x.shape[1]
            return self._lm.logits(x, torch.full((batch,), x.shape[1]), slots, pool, context)

        return forward

    def _theirs(self) -> Callable[[Tensor], Tensor]:
        cache: Any = None

        def forward(x: Tensor) -> Tensor:
            nonlocal cache
            output = self._other(inputs_embeds=x, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits: Tensor = self._lm.llm_decoder(output.last_hidden_state[:, -1])
            return logits

        return forward


def versions() -> dict[str, Figure]:
    """Return the versions of what is compared; None for what is not installed."""
    installed = importlib.util.find_spec("transformers") is not None
    transformers = importlib.import_module("transformers").__version__ if installed else None
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "transformers": transformers}


def _transformers_model(lm: SpeechLM, dims: LmDims) -> Any:
    """Return transformers' network with the weights of ``lm``; None if it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    transformers = importlib.import_module("transformers")
    config = transformers.Qwen2Config(
        vocab_size=dims.text_vocab,
        hidden_size=dims.hidden_size,
        intermediate_size=dims.intermediate_size,
        num_hidden_layers=dims.layers,
        num_attention_heads=dims.heads,
        num_key_value_heads=dims.kv_heads,
        rms_norm_eps=dims.rms_norm_eps,
        rope_theta=dims.rope_theta,
        attn_implementation="sdpa",
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.Qwen2Model(config).eval()
    missing, unexpected = model.load_state_dict(lm.body.state_dict(), strict=False)
    if missing or unexpected:
        raise RuntimeError(f"the layouts of the weights differ: {missing[:3]} {unexpected[:3]}")
    return model
