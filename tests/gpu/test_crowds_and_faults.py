"""Many utterances, cancels and faults on a device. tests/unit/streaming/test_device.py simulates it on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.contract.engine_contract import PLENTY_SAMPLES
from tests.gpu.engines import TEXT, device_engine, relative_difference, seeded, speak_crowd
from tests.unit.streaming.engines import PROMPTED, run_until_idle, synthesize
from tts_worker.engine.cosyvoice.execution.streams import CudaStream
from tts_worker.types import Cancel, Done, Open, Text, UtteranceKey

pytestmark = pytest.mark.gpu


def test_batch_of_64_matches_single_runs(device: torch.device) -> None:
    crowd = 64 if device.type == "cuda" else 4
    subject = device_engine("cosyvoice3", device, crowd=crowd)
    together = speak_crowd(subject, [seeded(n) for n in range(crowd)])
    for n in range(0, crowd, 9):
        alone = synthesize(subject, TEXT, seeded(n), UtteranceKey("alone", n))
        assert relative_difference(together[n].pcm, alone.pcm) < 0.005


def test_cancel_in_flight_leaks_no_memory(cuda: torch.device) -> None:
    subject = device_engine("cosyvoice3", cuda, half=True)
    assert isinstance(subject.components.streams.tokens, CudaStream)
    synthesize(subject, TEXT)
    pool = subject.components.pool
    decoder = subject.components.decoder
    free = (pool.free_pages, pool.free_slots, decoder.free_slots)
    before = torch.cuda.memory_allocated()
    for turn in range(200):
        key = UtteranceKey("s", turn)
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, TEXT[0]))
        for _ in range(turn % 17):
            subject.step(0.0)
        subject.handle(Cancel(key))
    run_until_idle(subject, {})
    torch.cuda.synchronize()
    assert (pool.free_pages, pool.free_slots, decoder.free_slots) == free
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_streams_in_use_are_not_given_out_again(cuda: torch.device) -> None:
    """PyTorch gives out its 32 streams of a priority in turn."""
    first = CudaStream(cuda)
    for _ in range(70):
        other = CudaStream(cuda)
        assert other.cuda_stream != first.cuda_stream
        other.close()


def test_nan_in_a_slot_does_not_reach_the_next_utterance(device: torch.device) -> None:
    """The memory of a broken run is used again by a shorter one."""
    subject = device_engine("cosyvoice3", device, crowd=2)
    expected = synthesize(subject, TEXT)
    decoder = subject.components.decoder
    free = set(decoder._free)
    key = UtteranceKey("broken", 1)
    subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
    subject.handle(Text(key, TEXT[0]))
    for _ in range(6):
        subject.step(0.0)
    (slot,) = free - set(decoder._free)
    # All that the run may have written. What no run has written stays zero.
    decoder.pool.data[:, :, slot, :, : decoder.length(slot)] = float("nan")
    if device.type == "cuda":  # written on another stream than what follows
        torch.cuda.synchronize()
    subject.handle(Cancel(key))
    run_until_idle(subject, {})
    output = synthesize(subject, TEXT)
    assert output.words == expected.words
    assert relative_difference(expected.pcm, output.pcm) < 0.005


def test_out_of_memory_in_a_pass_is_retried(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is really asked for more memory than it has, in the middle of a batch."""
    subject = device_engine("cosyvoice3", cuda, crowd=4)
    expected = speak_crowd(subject, [seeded(n) for n in range(4)])
    advance = subject.components.pool.advance
    calls = 0

    def fail_once(*args: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            torch.empty(1 << 44, dtype=torch.uint8, device=cuda)
        return advance(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(subject.components.pool, "advance", fail_once)
    outputs = speak_crowd(subject, [seeded(n) for n in range(4)])
    assert calls > 3
    for output, same in zip(outputs, expected, strict=True):
        assert [type(end) for end in output.ends] == [Done]
        assert relative_difference(same.pcm, output.pcm) < 0.005


DEVICE_ASSERT = """
import torch
from tests.gpu.engines import TEXT, device_engine
from tests.unit.streaming.engines import synthesize
from tts_worker.errors import DeviceLost

subject = device_engine("cosyvoice3", torch.device("cuda"), crowd=2)
advance = subject.components.pool.advance

def broken(*args):
    torch.zeros(4, device="cuda")[torch.full([1], 9, device="cuda")]  # an assertion of the kernel: the context is lost
    return advance(*args)

subject.components.pool.advance = broken
try:
    synthesize(subject, TEXT)
except DeviceLost:
    print("lost", flush=True)  # the process may be aborted when it frees what was on the device
"""


def test_broken_context_is_reported_as_a_lost_device(cuda: torch.device) -> None:
    """In a process of its own, because a CUDA context stays broken."""
    command = [sys.executable, "-c", DEVICE_ASSERT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # a clone that is not installed
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.stdout.strip() == "lost", done.stderr[-2000:]
