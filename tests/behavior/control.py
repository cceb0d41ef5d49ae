"""Behaviors of PAUSE, RESUME and STOP."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median
from subprocess import PIPE, Popen
from typing import TypeVar

import anyio

from tests.behavior.table import LONG, TEXT, BehaviorContext, behavior
from tools.bench import stall_monitor
from tools.bench.stall_monitor import Stall
from tts_worker.types import ControlName, Outcome, State, UtteranceKey

Turn = TypeVar("Turn")

STOP_WITHIN_S = 0.05
"""What docs/promises.md promises."""

# -- pause and resume -------------------------------------------------------------------------------------------------


@behavior()
async def pause_and_resume_lose_no_sample(context: BehaviorContext) -> None:
    recorder = await context.open()
    whole = await recorder.synthesize(TEXT)
    for samples in (1, 17_001) if context.is_slow else (1, 5_000, 17_001):
        key = recorder.session.speak(TEXT)
        recorder.session.end_text()
        await recorder.receive_samples(samples, key)
        recorder.session.pause()
        assert recorder.session.state is State.PAUSED
        received = len(recorder.pcm[key])
        acknowledged = await recorder.wait_acknowledged(ControlName.PAUSE)
        assert acknowledged.applied
        assert acknowledged.position_samples * 2 == received
        assert recorder.session.poll() is None
        recorder.session.resume()
        assert (await recorder.wait_acknowledged(ControlName.RESUME)).applied
        await recorder.wait_ended(key)
        context.assert_same_audio(recorder.pcm[key], recorder.pcm[whole.key])


@behavior()
async def paused_session_sends_no_audio(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(1, key)
    recorder.session.pause()
    await recorder.wait_acknowledged(ControlName.PAUSE)
    with anyio.move_on_after(0.2) as scope:
        await recorder.session.next()
    assert scope.cancelled_caught
    recorder.session.resume()
    await recorder.receive_samples(48_000, key)
    recorder.session.close()


@behavior()
async def pause_before_first_audio_holds_it(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(TEXT)
    recorder.session.end_text()
    recorder.session.pause()
    await recorder.wait_acknowledged(ControlName.PAUSE)
    assert not recorder.pcm[key]
    recorder.session.resume()
    ended = await recorder.wait_ended(key)
    assert (ended.outcome, ended.error) == (Outcome.DONE, None)


@behavior()
async def commands_without_effect_are_not_applied(context: BehaviorContext) -> None:
    recorder = await context.open()
    for command, send in (
        (ControlName.PAUSE, recorder.session.pause),
        (ControlName.RESUME, recorder.session.resume),
        (ControlName.STOP, recorder.session.stop),
    ):
        result = send()
        answer = await recorder.wait_acknowledged(command)
        assert (answer.applied, answer.key) == (result.applied, result.key) == (False, None)
    key = recorder.session.speak(TEXT)
    await recorder.receive_samples(1, key)
    recorder.session.resume()
    assert not (await recorder.wait_acknowledged(ControlName.RESUME)).applied
    recorder.session.pause()
    assert (await recorder.wait_acknowledged(ControlName.PAUSE)).applied
    recorder.session.pause()
    assert not (await recorder.wait_acknowledged(ControlName.PAUSE)).applied
    recorder.session.stop()
    await recorder.wait_ended(key)


@behavior(session={"pause_timeout_s": 0.2})
async def pause_timeout_stops_the_utterance(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(1, key)
    recorder.session.pause()
    ended = await recorder.wait_ended(key)
    assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "pause_timeout")
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
    assert recorder.session.state is State.IDLE
    assert (await recorder.synthesize("After that.")).outcome is Outcome.DONE


@behavior(session={"text_idle_timeout_s": 0.2})
async def idle_text_ends_the_utterance(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak("Only this and then")
    assert (await recorder.wait_ended(key)).receipt.text_spoken == "Only this and then"
    # This text is not ended either: on a busy machine the next message may come after the idle timeout.
    assert (await recorder.wait_ended(recorder.session.speak("Next."))).receipt.text_spoken == "Next."


# -- stop -------------------------------------------------------------------------------------------------------------


@behavior("alone")
async def stop_ends_speech_within_50_ms(context: BehaviorContext) -> None:
    recorder = await context.open()

    async def begin() -> UtteranceKey:
        key = recorder.session.speak(LONG)
        await recorder.receive_samples(1, key)
        return key

    async def stop(key: UtteranceKey) -> None:
        recorder.session.stop()
        assert (await recorder.wait_ended(key)).outcome is Outcome.STOPPED

    await check_stops(begin, stop)


async def check_stops(begin: Callable[[], Awaitable[Turn]], stop: Callable[[Turn], Awaitable[None]]) -> None:
    """Check that STOP takes at most 50 ms: from the command to the terminal event at the client, less the stalls.

    Args:
        begin: Begins a long utterance, waits for its audio, and returns what ``stop`` needs.
        stop: Stops it and waits for its terminal event.
    """
    stops: list[tuple[float, float]] = []
    with machine_stalls() as stalls:
        for _ in range(9):
            turn = await begin()
            began_s = time.monotonic()
            await stop(turn)
            stops.append((began_s, time.monotonic()))
    assert median(end_s - begin_s - overlap_s(stalls, begin_s, end_s) for begin_s, end_s in stops) <= STOP_WITHIN_S


@contextmanager
def machine_stalls() -> Iterator[list[Stall]]:
    """Watch the processors from another process, so that work of this one is no stall; the list is filled on exit."""
    command = (sys.executable, "-m", stall_monitor.__name__, str(stall_monitor.MIN_STALL_S))
    stalls: list[Stall] = []
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as monitor:
        assert monitor.stdin is not None
        assert monitor.stdout is not None
        monitor.stdout.readline()  # it runs
        try:
            yield stalls
        finally:
            monitor.stdin.close()
            stalls += (Stall(*map(float, line.split())) for line in monitor.stdout)


def overlap_s(stalls: list[Stall], begin_s: float, end_s: float) -> float:
    """Return the seconds between two times in which a processor stalled."""
    covered_s, at_s = 0.0, begin_s
    for stall in sorted(stalls):
        until_s = min(stall.end_s, end_s)
        covered_s += max(0.0, until_s - max(stall.begin_s, at_s))
        at_s = max(at_s, until_s)
    return covered_s


@behavior()
async def stop_before_first_audio(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(TEXT)
    recorder.session.stop("changed_my_mind")
    ended = await recorder.wait_ended(key)
    assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "changed_my_mind")
    assert (ended.receipt.samples_sent, ended.receipt.text_spoken, ended.receipt.text_remaining) == (0, "", TEXT)


@behavior()
async def stop_inside_a_word_splits_the_text(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    recorder.session.end_text()
    await recorder.receive_samples(40_000, key)
    recorder.session.stop("barge_in")
    ended = await recorder.wait_ended(key)
    receipt = ended.receipt
    assert (ended.outcome, receipt.reason) == (Outcome.STOPPED, "barge_in")
    assert receipt.text_spoken + receipt.text_remaining == LONG
    spoken = [word for word in recorder.words[key] if word.start_sample + word.end_sample <= 2 * receipt.samples_sent]
    assert len(spoken) > 3
    reported = receipt.text_spoken.split()
    assert reported == LONG.split()[: len(reported)]
    assert len(reported) == len(spoken) if context.is_lossless else len(reported) >= len(spoken) - 1


@behavior("played")
async def stop_reports_played_samples(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(40_000, key)
    recorder.session.stop("barge_in", 10_000)
    receipt = (await recorder.wait_ended(key)).receipt
    assert receipt.samples_played == 10_000
    assert len(receipt.text_spoken.split()) == sum(w.start_sample + w.end_sample <= 20_000 for w in recorder.words[key])
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(20_000, key)
    recorder.session.played(5_000)
    recorder.session.played(4_000)
    recorder.session.stop()
    assert (await recorder.wait_ended(key)).receipt.samples_played == 5_000


@behavior("played")
async def late_position_does_not_count_for_the_next_utterance(context: BehaviorContext) -> None:
    recorder = await context.open()
    first = (await recorder.synthesize(TEXT)).key
    for stops in (False, True):
        key = recorder.session.speak(LONG)
        await recorder.receive_samples(20_000, key)
        if stops:
            recorder.session.stop("barge_in", 10_000, first)
        else:
            recorder.session.played(10_000, first)
            recorder.session.stop("barge_in")
        receipt = (await recorder.wait_ended(key)).receipt
        assert receipt.samples_played is None
        spoken = [w.text for w in recorder.words[key] if w.start_sample + w.end_sample <= 2 * receipt.samples_sent]
        assert not context.is_lossless or receipt.text_spoken.split() == spoken
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(20_000, key)
    recorder.session.played(10_000, key)
    recorder.session.stop("barge_in", 11_000, key)
    assert (await recorder.wait_ended(key)).receipt.samples_played == 11_000


@behavior()
async def second_stop_has_no_effect(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(1, key)
    recorder.session.stop("first")
    recorder.session.stop("second")
    assert (await recorder.wait_acknowledged(ControlName.STOP)).applied
    assert recorder.ends[key].receipt.reason == "first", "the report comes before the acknowledgement"
    assert not (await recorder.wait_acknowledged(ControlName.STOP)).applied
    await recorder.synthesize("Next.")


@behavior()
async def utterance_after_stop_has_no_old_audio(context: BehaviorContext) -> None:
    recorder = await context.open()
    reference = await recorder.synthesize("New turn.")
    old = recorder.session.speak(LONG)
    await recorder.receive_samples(1, old)
    recorder.session.stop()
    received = len(recorder.pcm[old])
    new = await recorder.synthesize("New turn.")
    assert len(recorder.pcm[old]) == received, "audio of the old utterance after STOP"
    assert recorder.ends[old].outcome is Outcome.STOPPED
    context.assert_same_audio(recorder.pcm[new.key], recorder.pcm[reference.key])


@behavior()
async def stop_while_paused(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(1, key)
    recorder.session.pause()
    recorder.session.stop()
    assert (await recorder.wait_ended(key)).outcome is Outcome.STOPPED
    assert recorder.session.state is State.IDLE
    assert (await recorder.synthesize("Not paused any more.")).outcome is Outcome.DONE


@behavior()
async def stop_ends_queued_utterances(context: BehaviorContext) -> None:
    recorder = await context.open()
    keys = []
    for _ in range(4):
        keys.append(recorder.session.speak(LONG))
        recorder.session.end_text()
    await recorder.receive_samples(1, keys[0])
    recorder.session.stop()
    for key in keys:
        receipt = (await recorder.wait_ended(key)).receipt
        assert receipt.text_spoken + receipt.text_remaining == LONG
    assert [recorder.ends[key].outcome for key in keys] == [Outcome.STOPPED] * 4
    assert (await recorder.wait_acknowledged(ControlName.STOP)).key == keys[0]


@behavior()
async def stop_after_last_audio_reports_the_text(context: BehaviorContext) -> None:
    """The worker has finished the utterance before STOP arrives; playback has not."""
    recorder = await context.open()
    key = recorder.session.speak("Short.")
    recorder.session.end_text()
    await recorder.receive_samples(960, key)
    for _ in range(50):
        await asyncio.sleep(0.001)  # messages in flight arrive
    recorder.session.stop()
    receipt = (await recorder.wait_ended(key)).receipt
    assert receipt.text_spoken + receipt.text_remaining == "Short."
    assert not context.is_lossless or receipt.samples_sent * 2 == len(recorder.pcm[key])
