"""Behaviors of a failing worker, and random command sequences."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from tests.behavior.recording_client import RecordingClient
from tests.behavior.table import LONG, BehaviorContext, behavior, has_audio
from tests.behavior.transports import LONG_TIMEOUTS
from tests.fakes.tone_factory import FaultAt
from tts_worker.engine.tone import Fault, ToneSettings
from tts_worker.errors import (
    ErrorCode,
    IllegalCommand,
)
from tts_worker.types import Ended, Outcome, UtteranceKey


def fault_at(fault: Fault, chunk: int, generation: int = 2) -> ToneSettings:
    """Inject a fault into one utterance of every session.

    Args:
        fault: The kind of fault.
        chunk: First chunk that fails; 20 chunks are more than the worker generates ahead.
        generation: Number of the failing utterance within its session.
    """
    return ToneSettings(fault=FaultAt(fault, chunk, generation=generation))


async def _second_turn(context: BehaviorContext) -> tuple[RecordingClient, Ended]:
    recorder = await context.open()
    await recorder.synthesize("The first is fine.")
    return recorder, await recorder.synthesize(LONG)


@behavior("retryable", engine=fault_at(Fault.FAIL, chunk=20))
async def failure_is_reported_after_the_audio(context: BehaviorContext) -> None:
    recorder, ended = await _second_turn(context)
    assert ended.outcome is Outcome.ERROR
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.SYNTHESIS_FAILED, True)
    assert ended.receipt.samples_sent > 0
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
    assert (await recorder.synthesize("The third is fine.")).outcome is Outcome.DONE


@behavior(engine=fault_at(Fault.OUT_OF_MEMORY, chunk=0))
async def failure_before_first_audio_is_reported(context: BehaviorContext) -> None:
    recorder, ended = await _second_turn(context)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.OUT_OF_MEMORY, True)
    assert ended.receipt.samples_sent == 0
    assert (await recorder.synthesize("The third is fine.")).outcome is Outcome.DONE


@behavior("retryable", engine=fault_at(Fault.RAISE, chunk=2))
async def engine_fault_is_a_retryable_error(context: BehaviorContext) -> None:
    _, ended = await _second_turn(context)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.ENGINE_FAULT, True)


SHORT_AUDIO_TIMEOUT = replace(LONG_TIMEOUTS, audio_timeout_s=0.3)
"""A busy machine may exceed this deadline, so behaviors that use it require no audio within it."""


@behavior("hang", engine=fault_at(Fault.HANG, chunk=0, generation=1), client=SHORT_AUDIO_TIMEOUT)
async def missing_audio_exceeds_the_deadline(context: BehaviorContext) -> None:
    ended = await (await context.open()).synthesize(LONG)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.DEADLINE_EXCEEDED, True)
    assert ended.receipt.samples_sent == 0
    assert ended.receipt.text_remaining == LONG


@behavior("hang", engine=fault_at(Fault.HANG, chunk=20, generation=1), client=SHORT_AUDIO_TIMEOUT)
async def stalled_audio_exceeds_the_deadline(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(1, key)  # before the deadline applies
    recorder.session.end_text()
    ended = await recorder.wait_ended(key)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert ended.receipt.samples_sent > 0
    assert has_audio(recorder.pcm[ended.key])
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG


# -- random command sequences -----------------------------------------------------------------------------------------


@behavior("flush")
async def random_commands_keep_the_invariants(context: BehaviorContext) -> None:
    """``RecordingClient`` checks contiguous samples, no old audio and one terminal event per utterance."""
    rng = random.Random(20_260)
    recorder = await context.open()
    texts: dict[UtteranceKey, str] = {}
    session = recorder.session
    commands = {"pause": session.pause, "resume": session.resume, "stop": session.stop, "flush": session.flush}
    for _ in range(150):
        act = rng.choice(
            ["speak", "speak", "receive", "receive", "receive", "pause", "resume", "end", "stop", "flush", "yield"]
        )
        if act == "speak":
            delta = rng.choice(["Hello, ", "a rather longer piece of text. ", "x", "", "你好。"])
            key = recorder.session.speak(delta)
            texts[key] = texts.get(key, "") + delta
        elif act == "end":
            try:
                recorder.session.end_text()
            except IllegalCommand:
                pass
        elif act == "receive":
            for _ in range(rng.randint(1, 40)):
                item = recorder.session.poll()
                if item is not None:
                    recorder.record(item)
        elif act == "yield":
            await asyncio.sleep(0)
        else:
            commands[act]()
    recorder.session.stop("over")
    recorder.session.close()
    await recorder.drain()
    assert set(recorder.ends) == set(texts)
    for key, ended in recorder.ends.items():
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == texts[key]
