"""Sessions over CosyVoice in interleaved mode, on a real engine thread.

Clause mode runs the whole table of tests/behavior.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from tests.conftest import until
from tests.unit.cosyvoice.bundles import tiny
from tests.unit.cosyvoice.networks import shallow
from tests.unit.streaming.engines import voice
from tools.bench.__main__ import main
from tts_worker.engine.cosyvoice import loader
from tts_worker.engine.cosyvoice.bundle import config
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.factory import EngineFactory, enroller_of
from tts_worker.engine.loop import EngineLoop
from tts_worker.errors import ConfigError
from tts_worker.session.session import LocalSession
from tts_worker.settings import CosyVoiceEngineSettings, load_settings
from tts_worker.types import (
    Audio,
    Done,
    Ended,
    EndText,
    Event,
    Open,
    Outcome,
    PcmFrame,
    Segment,
    SessionOptions,
    SynthesisParams,
    Text,
    UtteranceKey,
    Words,
)
from tts_worker.worker import Worker, running_worker

ENGINE = {"kind": "cosyvoice", "bundle": str(tiny("cosyvoice3")), "memory_gb": 0.1, "threads": 1, "max_segment_s": 8}
TEXT = "Yes. It is."
QUICK = SessionOptions(realtime=False)
OFFICIAL_STEPS = config.EULER_STEPS


@lru_cache
def load_once(path: Path) -> Networks:
    """The engine changes no weights."""
    return Networks.load(shallow(Bundle.open(path)))


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(loader, "Networks", SimpleNamespace(load=lambda bundle, **_: load_once(bundle.path)))
    settings = load_settings(flags={"engines": {"cosy": {**ENGINE, "text_mode": "interleaved"}}})
    async with running_worker(settings) as running:
        yield running


async def collect_output(session: LocalSession, *, pause_every: int = 0) -> tuple[bytes, list[Words], Ended]:
    """Return the audio, the words and the end of one utterance; pauses after every ``pause_every`` frames."""
    pcm = bytearray()
    words = []
    frames = 0
    async for output in session:
        if isinstance(output, PcmFrame):
            pcm += output.pcm
            frames += 1
            if pause_every and frames % pause_every == 0:
                session.pause()
                session.resume()
        elif isinstance(output, Words):
            words.append(output)
        elif isinstance(output, Ended):
            return bytes(pcm), words, output
    raise AssertionError("the session ended without an end event")


async def test_session_reports_words_and_all_text(worker: Worker) -> None:
    session = worker.hub.open(QUICK)
    session.speak(TEXT)
    session.end_text()
    _, words, ended = await collect_output(session)
    assert ended.outcome in (Outcome.DONE, Outcome.TRUNCATED)
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == TEXT
    assert [word.text for words in words for word in words.words] == TEXT.split()
    session.close()
    await until(lambda: worker.engines["cosy"].live_utterances == 0)


async def test_pauses_and_single_letters_do_not_change_audio(worker: Worker) -> None:
    whole = worker.hub.open(QUICK)
    whole.speak(TEXT)
    whole.end_text()
    expected, _, _ = await collect_output(whole)

    paused = worker.hub.open(QUICK)
    for letter in TEXT:
        paused.speak(letter)
    paused.end_text()
    pcm, _, _ = await collect_output(paused, pause_every=7)
    assert pcm == expected
    for session in (whole, paused):
        session.close()
    await until(lambda: worker.engines["cosy"].live_utterances == 0)


async def test_stop_reports_spoken_and_remaining_text(worker: Worker) -> None:
    session = worker.hub.open(SessionOptions())
    session.speak(TEXT)
    session.end_text()
    ended = None
    async for output in session:
        if isinstance(output, PcmFrame) and output.start_sample >= 4_800:
            session.stop(played_samples=4_800)
        if isinstance(output, Ended):
            ended = output
            break
    assert ended is not None
    assert ended.outcome is Outcome.STOPPED
    assert ended.receipt.samples_played == 4_800
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == TEXT
    session.close()
    await until(lambda: worker.engines["cosy"].live_utterances == 0)


async def test_randomly_closed_sessions_leak_nothing(worker: Worker) -> None:
    engine = worker.engines["cosy"]
    rng = random.Random(3)

    async def visit() -> None:
        session = worker.hub.open(QUICK)
        session.speak(TEXT)
        session.end_text()
        for _ in range(rng.randrange(12)):
            await session.next()
        session.stop() if rng.random() < 0.5 else session.close()
        session.close()

    async with anyio.create_task_group() as visitors:
        for _ in range(12):
            visitors.start_soon(visit)
    await until(lambda: engine.live_utterances == 0)
    last = worker.hub.open(QUICK)
    last.speak(TEXT)
    last.end_text()
    assert (await collect_output(last))[0]
    last.close()
    assert engine.stats.faults == 0


def test_config_errors_name_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bundle"):
        load_settings(flags={"engines": {"c": {"kind": "cosyvoice"}}})
    with pytest.raises(ConfigError, match="text_mode"):
        load_settings(flags={"engines": {"c": {**ENGINE, "text_mode": "word"}}})


@pytest.mark.parametrize("family", ["cosyvoice2", "cosyvoice3"])
def test_shipped_configs_load(family: str) -> None:
    (engine,) = load_settings(Path(__file__).parents[3] / "configs" / f"{family}.yaml").engines.values()
    assert isinstance(engine, CosyVoiceEngineSettings)
    assert engine.bundle.is_absolute()


BARE = """
import sys
from tools.bench.__main__ import main
from tts_worker.engine.cosyvoice.bundle import config
from tts_worker.engine.cosyvoice import loader
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tools.bench import engine
from tests.unit.cosyvoice.networks import load_shallow
Networks.load = load_shallow  # nothing that is asserted here depends on the depth, or on the solver steps
config.EULER_STEPS = 1
engine.SENTENCE_S = 3
code = main(["engine", "--bundle", sys.argv[1], "--seconds", "1", "--growth-seconds", "6", "--repeats", "1",
             "--threads", "1", "--memory-gb", "0.1", "--sessions", "2", "--session-seconds", "1", "--json"])
print(code, *(name for name in sys.argv[2:] if name in sys.modules))
"""
NOT_THERE = "pydantic onnx onnxruntime soundfile soxr wetext fastapi transformers rich prometheus_client"


@pytest.mark.timeout(600)  # 20 s of work, many times that on a loaded machine
def test_engine_benchmark_needs_minimal_packages() -> None:
    command = [sys.executable, "-W", "error", "-c", BARE, str(tiny("cosyvoice3")), *NOT_THERE.split()]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    figures, code = done.stdout.splitlines()
    assert code == "0"
    for name in ("first_audio_p50_ms", "rtf_p50", "flow_ms_per_s", "late_over_early", "sessions_with_underruns"):
        assert f'"{name}"' in figures


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--growth-seconds", "4"), ("--seconds", "0"), ("--session-seconds", "1000"), ("--repeats", "0")],
)
def test_engine_benchmark_refuses_invalid_flags(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["engine", "--bundle", str(tiny("cosyvoice2")), flag, value])
    assert code != 0
    assert flag in capsys.readouterr().err


async def test_voice_stored_at_run_time_reaches_an_engine_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server process enrolls voices; the same text has the same audio as with the engine on a thread."""
    monkeypatch.setattr(config, "EULER_STEPS", OFFICIAL_STEPS)  # as in the process
    settings = CosyVoiceEngineSettings.model_validate(ENGINE)
    audio = []
    for in_process in (False, True):
        enrolled = enroller_of(settings)
        assert enrolled is not None
        engine = EngineLoop(EngineFactory(settings, enrolled), in_process=in_process, shared=enrolled)
        await engine.start()
        try:
            received: asyncio.Queue[Event] = asyncio.Queue()
            engine.subscribe("a", received.put_nowait)
            enrolled.store("late", voice("cosyvoice3"))
            key = UtteranceKey("a", 1)
            for command in (
                Open(key, SynthesisParams("late"), 10**9),
                Text(key, Segment.whole(TEXT)),
                EndText(key),
            ):
                engine.post(command)
            pcm = b""
            while isinstance(event := await received.get(), Audio):
                pcm += event.pcm
            assert isinstance(event, Done), event
        finally:
            await engine.stop()
        audio.append(pcm)
    assert audio[0]
    assert audio[0] == audio[1]
