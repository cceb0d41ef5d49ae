"""Engines on the device under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput, segments
from tests.fakes.graph_runner import FakeGraphRunner
from tests.unit.streaming.engines import PROMPTED, bundle, engine, run_until_idle, settings, voice
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner, GraphRunner
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStream, streams_for
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.token_generator import Script
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, DecodeRow
from tts_worker.types import Boundary, EndText, Open, Segment, SynthesisParams, Text, UtteranceKey

TEXT = segments(("Hello, ", Boundary.CLAUSE), ("world and you.", Boundary.SENTENCE), (" it is.", Boundary.END))


def forced(family: str, tokens: int) -> Script:
    """Return a script of ``tokens`` ids in every run, different for each run and utterance."""
    eos = bundle(family).config.lm.eos_id

    def script(key: UtteranceKey, run: int) -> Sequence[int]:
        first = 100 + run + 7 * key.generation
        return [*range(first, first + tokens), eos]

    return script


def device_engine(
    family: str,
    device: torch.device,
    *,
    half: bool = False,
    graphs: bool = True,
    crowd: int = 2,
    script: Script | None = None,
    **changes: Any,
) -> CosyVoiceEngine:
    """Build and warm up an engine of the tiny size. Graphs are faked where there is no device."""
    graph_runners: tuple[GraphRunner, GraphRunner] | None = None
    if graphs and device.type == "cpu":
        graph_runners = FakeGraphRunner(), FakeGraphRunner()
    config = settings(
        **{
            "max_utterances": crowd,
            "pages": 12 * crowd + 40,
            "graphs": graphs,
            "checked": False,
            "decode_batch": crowd,
            "render_batch": min(crowd, 8),
            "lm_tokens": 512,
            "max_segment_s": 6,
            **changes,
        }
    )
    subject = engine(
        family,
        config,
        loaded=load_networks(bundle(family), device, half=half),
        script=script or forced(family, 60),
        graph_runners=graph_runners,
        voices={"prompted": voice(family), "plain": voice(family, 0)},
    )
    subject.warm_up()
    return subject


def seeded(n: int) -> SynthesisParams:
    return replace(PROMPTED, seed=n)


def speak_crowd(
    subject: CosyVoiceEngine, params: Sequence[SynthesisParams], text: Sequence[Segment] = TEXT
) -> list[EngineOutput]:
    """Speak ``text`` once for each element of ``params``, at the same time."""
    keys = [UtteranceKey("s", n) for n in range(len(params))]
    outputs: dict[UtteranceKey, EngineOutput] = {}
    for key, each in zip(keys, params, strict=True):
        subject.handle(Open(key, each, PLENTY_SAMPLES))
        for segment in text:
            subject.handle(Text(key, segment))
        subject.handle(EndText(key))
    run_until_idle(subject, outputs)
    return [outputs[key] for key in keys]


def draw_ids(
    networks: Networks,
    device: torch.device,
    lengths: Sequence[int],
    *,
    steps: int = 96,
    stream: ExecutionStream | None = None,
    runner: GraphRunner | None = None,
) -> list[list[int]]:
    """Draw an id and ``steps`` more in one batch for inputs of the given lengths and different seeds.

    A runner that captures graphs replays them.
    """
    decoder = Decoder(
        networks,
        slots=len(lengths),
        max_tokens=max(256, max(lengths) + 2 * steps),
        stream=stream or streams_for(device).tokens,
        runner=runner or EagerRunner(),
    )
    if device.type == "cuda":  # weights and cleared memory must be in place before another stream uses them
        torch.cuda.synchronize(device)
    if runner is not None:
        decoder.capture(len(lengths))
    rows = []
    drawn = []
    for seed, length in enumerate(lengths):
        slot = decoder.acquire()
        items: list[Item] = [(Kind.SOS, 0), *((Kind.TEXT, 3 + i % 50) for i in range(length - 2)), (Kind.TASK, 0)]
        fed = decoder.start(slot, seed, items)
        rows.append(DecodeRow(slot, networks.config.lm.eos_id, 10**6, steps + 1))
        drawn.append(decoder.prefill(rows[-1:], [fed]).wait()[0].tolist())
    for _ in range(steps // 8):
        columns = decoder.burst(rows, 8).wait().T.tolist()
        for row, ids, column in zip(rows, drawn, columns, strict=True):
            ids += decoder.record_burst(row.slot, column, ids[-1])
    return drawn


def relative_difference(a: bytes, b: bytes) -> float:
    """Return the RMS of the difference relative to the RMS of the first signal."""
    one, other = (np.frombuffer(pcm, "<i2").astype(float) for pcm in (a, b))
    assert len(one) == len(other)
    return float(np.sqrt(np.square(one - other).mean() / np.square(one).mean()))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the RMS of the error relative to the standard deviation of ``expected``."""
    expected = expected.float().cpu()
    return float((got.float().cpu() - expected).square().mean().sqrt() / expected.std())
