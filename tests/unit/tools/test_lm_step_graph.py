"""The graph of a step of the language model, on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.features.acceleration.graph_files import networks
from tests.unit.cosyvoice.bundles import FAMILIES, tiny
from tests.unit.cosyvoice.networks import apart, load_thin
from tools.lm_step_graph import FILE, lm_step_spec, main
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.features.acceleration.onnx_networks import BoundGraph
from tts_worker.features.acceleration.onnx_runtime import SessionOptions, open_graph

TOLERANCE = 5e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_lm_step_scores_like_the_language_model(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, then single steps: the graph with the past in plain tensors, the network with its KV cache."""
    monkeypatch.setattr(Networks, "load", load_thin)
    main([str(tiny(family)), "--out", str(tmp_path)])
    assert float(capsys.readouterr().out.rpartition(" ")[2]) < TOLERANCE
    of = networks(family)
    lm = of.qwen
    dims = lm.dims
    spec = lm_step_spec(of)
    opened = open_graph(spec, tmp_path / FILE, of.fingerprints[spec.part], SessionOptions(torch.device("cpu")))
    graph = BoundGraph(spec, opened)
    pool = SlotPool(dims.layers, 2, dims.kv_heads, 32, dims.head_dim)
    slots = torch.arange(2)
    keys = values = torch.zeros(dims.layers, 2, dims.kv_heads, 1, dims.head_dim)  # one key that no input sees
    done = 0
    for steps in (7, 1, 1):
        ids = torch.randint(0, dims.speech_tokens, (2, steps), generator=torch.Generator().manual_seed(steps))
        x = lm.embed_speech(ids)
        with torch.inference_mode():
            expected = lm(x, torch.full([2], steps), slots, pool, done + steps)
        mask = torch.ones(2, 1, steps, keys.shape[3] + steps, dtype=torch.bool).tril(keys.shape[3])
        mask[..., 0] = False
        out = graph(x, torch.full([2], done), torch.full([2], steps - 1), mask, keys, values)
        assert out is not None
        keys, values = torch.cat([keys, out[1]], dim=3), torch.cat([values, out[2]], dim=3)
        done += steps
        assert apart(expected, out[0]) < TOLERANCE
