"""``tts_worker.TTS`` and ``AsyncTTS``: the embedded voice and a worker over a socket, from any thread."""

from __future__ import annotations

import asyncio
import doctest
import io
import pydoc
import re
import subprocess
import sys
import threading
import wave
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import anyio
import numpy as np
import pytest
import soundfile

import tts_worker
import tts_worker.client.tts
from tests.behavior.transports import Setup, end_speech, faulty_worker, serve_worker
from tests.conftest import Serving
from tests.fakes import programs
from tests.fakes.threaded_worker import ThreadedWorker, worker_in_thread
from tts_worker import TTS, AsyncTTS, Speech, SpeechOptions, errors
from tts_worker.client import Client
from tts_worker.client.batches import BatchText
from tts_worker.client.playback import PlayerFailed
from tts_worker.client.speech import Speech as ClientSpeech
from tts_worker.errors import ConnectionLost, Draining, InvalidRequest, UnknownVoice
from tts_worker.local import LocalConnector
from tts_worker.settings import load_settings
from tts_worker.types import Outcome, Receipt, SessionOptions

TEXT = "Hello there, my friend. How are you?"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tts") / "tone.yaml"
    path.write_text("engines:\n  tone:\n    kind: tone\n")
    return f"local:{path}"


@pytest.fixture(scope="module")
def tts(config: str) -> Iterator[TTS]:
    with TTS(config) as opened:
        yield opened


@pytest.fixture(scope="module")
def two_servers() -> Iterator[ThreadedWorker]:
    with worker_in_thread(load_settings(flags={"engines": {"tone": {"kind": "tone"}}})) as worker:
        yield worker


@pytest.fixture(params=["embedded", "socket"])
async def any_tts(request: pytest.FixtureRequest, config: str, serve_tone: Serving) -> AsyncIterator[AsyncTTS]:
    async with (
        serve_tone() as address,
        AsyncTTS(config if request.param == "embedded" else f"ws://{address}") as opened,
    ):
        yield opened


def words_of(text: str) -> Iterator[str]:
    for word in text.split(" "):
        yield f"{word} "


def test_speech_has_audio_words_and_report(tts: TTS) -> None:
    speech = tts.speak(TEXT)
    assert speech.samples.dtype == np.float32
    assert speech.samples.shape == (len(speech.pcm) // 2,)
    assert 0.1 < np.abs(speech.samples).max() <= 1
    assert [word.text for word in speech.words] == TEXT.split()
    assert all(TEXT[word.start_char : word.end_char] == word.text for word in speech.words)
    assert speech.report is not None
    assert (speech.report.text_spoken, speech.report.text_remaining) == (TEXT, "")
    assert speech.outcome is Outcome.DONE
    assert speech.duration_s == pytest.approx(len(speech.samples) / 24_000)
    assert TEXT.split()[0] not in repr(speech)


def test_parts_join_to_the_whole_speech(tts: TTS) -> None:
    whole = tts.speak(TEXT)
    live = tts.stream(TEXT)
    parts = list(live)
    assert b"".join(part.pcm for part in parts) == whole.pcm
    assert [part.start_sample for part in parts] == list(np.cumsum([0, *(len(part.pcm) // 2 for part in parts[:-1])]))
    assert tuple(word for part in parts for word in part.words) == live.words == whole.words
    assert live.report == whole.report


def test_all_kinds_of_text_give_the_same_speech(tts: TTS) -> None:
    async def deltas() -> AsyncIterator[str]:
        for part in words_of(TEXT):
            yield part

    from_list = tts.speak(list(words_of(TEXT)))
    assert tts.speak(words_of(TEXT)).pcm == from_list.pcm
    assert tts.speak(deltas()).pcm == from_list.pcm
    assert from_list.report is not None
    assert from_list.report.text_spoken.strip() == TEXT


def test_stop_ends_the_parts_and_reports(tts: TTS) -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "and so on. "

    with tts.stream(endless()) as live:
        first = next(live)
        live.stop(played_samples=len(first.pcm) // 4)
        assert list(live) == []
    assert live.outcome is Outcome.STOPPED
    assert live.report is not None
    assert live.report.samples_played == len(first.pcm) // 4


def test_pause_holds_the_parts_until_resume(tts: TTS) -> None:
    live = tts.stream(TEXT, realtime=True)
    parts = [next(live)]
    assert live.pause()
    assert not live.pause()
    reading = threading.Thread(target=lambda: parts.extend(live))
    reading.start()
    assert live.resume()
    reading.join()
    assert b"".join(part.pcm for part in parts) == tts.speak(TEXT).pcm


def test_threads_speak_at_the_same_time(tts: TTS) -> None:
    alone = tts.speak(TEXT).pcm
    heard: list[bytes] = []
    threads = [threading.Thread(target=lambda: heard.append(tts.speak(TEXT).pcm)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [alone] * 8


def test_error_of_the_text_reaches_the_caller(tts: TTS) -> None:
    def failing() -> Iterator[str]:
        yield "Hello. "
        raise LookupError("no more text")

    with pytest.raises(LookupError, match="no more text"):
        tts.speak(failing())
    assert tts.speak("Hello.").outcome is Outcome.DONE


async def test_error_before_the_first_text_reaches_the_caller(any_tts: AsyncTTS) -> None:
    def failing() -> Iterator[str]:
        raise LookupError("no text at all")
        yield ""

    with anyio.fail_after(30), pytest.raises(LookupError, match="no text at all"):
        await any_tts.speak(failing())


async def test_text_without_parts_is_an_empty_text(any_tts: AsyncTTS) -> None:
    with anyio.fail_after(30):
        assert (await any_tts.speak([])).report == (await any_tts.speak("")).report


async def test_stop_before_the_first_text_ends_the_parts(any_tts: AsyncTTS) -> None:
    waiting = asyncio.Event()

    async def silent() -> AsyncIterator[str]:
        waiting.set()
        await asyncio.Event().wait()
        yield ""

    live = any_tts.stream(silent())
    reading = asyncio.create_task(live.rest())
    with anyio.fail_after(30):
        await waiting.wait()
        live.stop(played_samples=0)
        speech = await reading
    assert (speech.pcm, live.outcome) == (b"", Outcome.STOPPED)
    assert live.report == Receipt("stop", 0, 0, 0, "", "")


async def test_stop_while_connecting_ends_the_parts(any_tts: AsyncTTS) -> None:
    live = any_tts.stream(TEXT)
    reading = asyncio.create_task(live.rest())
    await asyncio.sleep(0)  # it connects
    live.stop()
    with anyio.fail_after(30):
        assert (await reading).pcm == b""
    assert live.report == Receipt("stop", 0, 0, None, "", TEXT)


def test_stop_before_the_first_part_is_requested_reports(tts: TTS) -> None:
    live = tts.stream(TEXT, sample_rate=8_000)
    live.stop()
    speech = live.rest()
    assert (speech.duration_s, speech.sample_rate_hz, speech.outcome) == (0, 8_000, Outcome.STOPPED)
    assert speech.report == Receipt("stop", 0, 0, None, "", TEXT)


def test_commands_after_the_end_change_nothing(tts: TTS) -> None:
    live = tts.stream(TEXT)
    list(live)
    report = live.report
    assert (live.pause(), live.resume()) == (False, False)
    live.stop()
    assert (live.report, live.outcome) == (report, Outcome.DONE)


def test_blocked_texts_do_not_delay_others(tts: TTS) -> None:
    released = threading.Event()

    def blocked() -> Iterator[str]:
        yield "Hello. "
        released.wait()

    lives = [tts.stream(blocked()) for _ in range(40)]  # more than the threads of an event loop's own executor
    with ThreadPoolExecutor(1) as thread:
        try:
            assert all(thread.submit(next, live).result(timeout=30).pcm for live in lives)
            assert thread.submit(tts.speak, words_of(TEXT)).result(timeout=30).outcome is Outcome.DONE
        finally:
            released.set()
            for live in lives:
                live.close()


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        (b"bytes", {}, InvalidRequest),
        ([None], {}, InvalidRequest),
        (["Hello. ", 7], {}, InvalidRequest),
        (7, {}, InvalidRequest),
        ("Hello.", {"voice": "absent"}, UnknownVoice),
        ("Hello.", {"sample_rate": 1}, InvalidRequest),
        ("Hello.", {"sample_rate": 11_025}, InvalidRequest),
        ("Hello.", {"speed": "fast"}, InvalidRequest),
        ("Hello.", {"speed": float("nan")}, InvalidRequest),
        ("Hello.", {"seed": 1.5}, InvalidRequest),
        ("Hello.", {"voice": 7}, InvalidRequest),
        ("Hello.", {"lexicon": ["word"]}, InvalidRequest),
        ("Hello.", {"flush_after_ms": "400"}, InvalidRequest),
        ("Hello.", {"realtime": "yes"}, InvalidRequest),
        ("Hello.", {"urls": ["keep"]}, InvalidRequest),
        ("Hello.", {"urls": "all"}, InvalidRequest),
        ("Hello.", {"color": "red"}, TypeError),
    ],
)
def test_bad_input_is_a_typed_error(tts: TTS, text: object, options: dict[str, object], error: type) -> None:
    with pytest.raises(error) as caught:
        tts.speak(text, **options)  # type: ignore[arg-type]
    assert all(name in str(caught.value) for name in options if error is InvalidRequest)


@pytest.mark.parametrize("scheme", ["local", "ws", "grpc"])
async def test_every_connector_checks_options_alike(scheme: str, config: str) -> None:
    url = config if scheme == "local" else f"{scheme}://127.0.0.1:9"  # nothing listens there, and nothing is asked
    async with tts_worker.connect(url) as client:
        for options, name in (
            (SessionOptions(sample_rate=11_025), "sample_rate"),
            (SessionOptions(speed="fast"), "speed"),  # type: ignore[arg-type]
            (SessionOptions(needs="instruct"), "needs"),  # type: ignore[arg-type]
            (SessionOptions(lead_ms=float("inf")), "lead_ms"),
            (SessionOptions(lexicon={"a": object()}), "lexicon"),
        ):
            with pytest.raises(InvalidRequest, match=name):
                await client.open(options)
            with pytest.raises(InvalidRequest, match=name):
                client.convert(b"", options)


def test_batch_of_a_text_is_refused(tts: TTS) -> None:
    for one in ("Hello", b"Hello", BatchText("Hello"), 5):
        with pytest.raises(InvalidRequest, match="list"):
            next(tts.batch(one))  # type: ignore[arg-type]


def test_missing_player_is_told_without_options_of_the_command(
    tts: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlayerFailed, match=r"save\(path\)") as missing:
        tts.play("Hello.")
    player = tmp_path / "play"
    player.write_text("#!/bin/sh\necho no device >&2\nexit 1\n")
    player.chmod(0o755)
    monkeypatch.setattr("tts_worker.client.playback.PLAYERS", {"play": ()})
    with pytest.raises(PlayerFailed, match=r"no device.*save\(path\)") as failed:
        tts.play(TEXT)
    assert "--" not in str(missing.value) + str(failed.value)


def test_options_of_a_call_replace_those_of_the_object(config: str) -> None:
    with TTS(config, speed=2.0, sample_rate=8_000) as tts:
        fast = tts.speak(TEXT)
        slow = tts.speak(TEXT, speed=1.0)
        assert fast.sample_rate_hz == slow.sample_rate_hz == 8_000
        assert slow.duration_s > 1.5 * fast.duration_s


def test_speech_is_saved_in_the_format_of_the_suffix(tts: TTS, tmp_path: Path) -> None:
    speech = tts.speak("Hello.")
    samples, rate_hz = soundfile.read(speech.save(tmp_path / "a.wav"), dtype="float32")
    assert rate_hz == 24_000
    assert np.array_equal(samples, speech.samples)
    assert soundfile.info(speech.save(tmp_path / "a.flac")).frames == len(samples)
    with pytest.raises(InvalidRequest, match=r"\.wav"):
        speech.save(tmp_path / "a.xyz")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "opus", "raw"])
def test_speech_that_is_not_saved_is_a_typed_error(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.symlink_to("/dev/full")
    for samples in (10, 24_000):  # short enough for buffers to take all of it until the end
        with pytest.raises(InvalidRequest, match=rf"cannot write .*a\.{suffix}: No space left on device"):
            Speech(b"\1\2" * samples, 24_000).save(path)


def test_missing_folder_of_a_file_is_not_created(tts: TTS, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot write .*x\.wav: there is no folder .*missing"):
        tts.speak("Hello.").save(tmp_path / "missing" / "x.wav")
    assert not (tmp_path / "missing").exists()


def test_notebook_shows_a_player(tts: TTS) -> None:
    speech = tts.speak("Hello.")
    assert speech._repr_html_().startswith("<audio controls")
    with wave.open(io.BytesIO(speech.wav())) as file:
        assert file.readframes(file.getnframes()) == speech.pcm


def test_play_feeds_the_player(tts: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player = tmp_path / "play"
    player.write_text(f'#!/bin/sh\ncat > {tmp_path}/played\necho "$@" > {tmp_path}/arguments\n')
    player.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("tts_worker.client.playback.PLAYERS", {"play": ("-r", "{rate}")})
    monkeypatch.setattr("tts_worker.client.playback.PlayerSink.elapsed_s", 3_600.0)  # it need not take real time
    report = tts.play(TEXT, sample_rate=16_000)
    speech = tts.speak(TEXT, sample_rate=16_000)
    assert (tmp_path / "played").read_bytes() == speech.pcm
    assert (tmp_path / "arguments").read_text().strip() == "-r 16000"
    assert report == speech.report
    (tmp_path / "played").unlink()
    speech.play()
    assert (tmp_path / "played").read_bytes() == speech.pcm


def test_closed_object_refuses_to_speak(config: str) -> None:
    tts = TTS(config)
    live = tts.stream(TEXT)
    next(live)
    tts.close()
    tts.close()
    live.close()
    with pytest.raises(ConnectionLost):
        tts.speak(TEXT)


@pytest.mark.parametrize("reason", ["drain", "reload"])
@pytest.mark.parametrize("transport", ["embedded", "socket"])
async def test_speech_that_the_worker_ends_is_an_error(transport: str, reason: str) -> None:
    async with faulty_worker(Setup()) as worker, serve_worker(worker) as address:
        client = AsyncTTS(f"ws://{address}") if transport == "socket" else AsyncTTS()
        if transport == "embedded":
            client._client = Client(LocalConnector(lambda: nullcontext(worker)))
        async with client, client.stream(TEXT * 20, realtime=True) as live:
            await anext(live)
            await end_speech(worker, reason)
            with pytest.raises(Draining):
                await live.rest()
            assert live.report is not None
            assert live.report.text_remaining


async def test_async_api_speaks_over_a_socket(config: str, serve_tone: Serving) -> None:
    async with serve_tone() as address, AsyncTTS(f"ws://{address}") as remote, AsyncTTS(config) as local:
        speech = await remote.speak(TEXT)
        assert speech.pcm == (await local.speak(TEXT)).pcm
        assert speech.words
        parts = [part async for part in remote.stream(words_of(TEXT))]
        assert sum(len(part.pcm) for part in parts) > 0
        with pytest.raises(UnknownVoice):
            await remote.speak(TEXT, voice="absent")


async def test_http_url_is_that_of_the_worker(serve_tone: Serving) -> None:
    """``serve`` prints an ``http://`` address."""
    async with serve_tone() as address, AsyncTTS(f"http://{address}") as tts:
        assert (await tts.speak("Hello.")).outcome is Outcome.DONE
        assert await tts.voices()


async def test_http_url_with_a_key_warns_like_ws(caplog: pytest.LogCaptureFixture) -> None:
    AsyncTTS("http://192.0.2.1", api_key="a-secret-key")
    assert "without TLS" in caplog.text
    caplog.clear()
    AsyncTTS("https://192.0.2.1", api_key="a-secret-key")
    assert not caplog.text


async def test_wrong_path_of_a_url_is_named(serve_tone: Serving) -> None:
    async with serve_tone() as address, AsyncTTS(f"ws://{address}/foo") as tts:
        with pytest.raises(InvalidRequest, match=r'"/foo".*leave out the path'):
            await tts.speak("Hello.")


def test_voices_are_listed(tts: TTS) -> None:
    voices = tts.voices()
    assert [voice.id for voice in voices if voice.is_default] == ["tone"]
    assert tts.speak("Hello.", voice=voices[0].id).outcome is Outcome.DONE


def test_examples_of_the_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(tts_worker.client.tts, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 7
    assert not result.failed


def test_program_ends_cleanly_without_close(config: str) -> None:
    program = f"import tts_worker; tts = tts_worker.TTS({config!r}); print(tts.speak('Hello.').outcome.value)"
    result = programs.run("-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


ONCE = """
import asyncio, tts_worker
async def main():
    tts = tts_worker.AsyncTTS(URL)
    print((await tts.speak("Hello.")).outcome.value)
asyncio.run(main())
"""
LEFT_EARLY = """
import asyncio, tts_worker
async def main():
    async for part in tts_worker.AsyncTTS(URL).stream(["Hello there. ", "How are you?"]):
        print("done")
        break
asyncio.run(main())
"""
SESSION = """
import asyncio, tts_worker
async def main():
    session = (await tts_worker.connect(URL).open()).session
    session.speak("Hello there.")
    await session.next()
    print("done")
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [ONCE, LEFT_EARLY, SESSION], ids=["once", "left", "session"])
@pytest.mark.parametrize("scheme", ["ws", "grpc", "local"])
def test_async_program_ends_cleanly_without_close(
    scheme: str, program: str, config: str, two_servers: ThreadedWorker
) -> None:
    urls = {"ws": f"ws://{two_servers.address}", "grpc": f"grpc://{two_servers.grpc_address}", "local": config}
    result = programs.run("-c", program.replace("URL", repr(urls[scheme])))
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_async_program_with_the_cpu_voice_ends_cleanly_without_close() -> None:
    """The network computes ahead of what the program reads."""
    words = [sys.executable, "-c", LEFT_EARLY.replace("URL", "'local:'")]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_program_ends_while_a_text_is_awaited(config: str) -> None:
    program = f"""
import queue, tts_worker
deltas = queue.Queue()  # the rest of the text never comes
deltas.put("Hello there. How are you? ")
live = tts_worker.TTS({config!r}).stream(iter(deltas.get, None))
next(live)
live.stop()
print(live.rest().outcome.value)
"""
    result = programs.run("-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "stopped\n", "")


def test_package_exports_the_api_lazily() -> None:
    assert Speech is ClientSpeech
    with pytest.raises(AttributeError):
        tts_worker.no_such_name  # noqa: B018


def test_package_exports_every_error() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")}
    raised = {name for name in defined if issubclass(getattr(errors, name), errors.TTSWorkerError)}
    assert len(raised) > 20
    assert raised <= set(tts_worker.__all__) == set(dir(tts_worker))
    assert all(getattr(tts_worker, name) is getattr(errors, name) for name in raised)


def test_package_exports_what_it_returns() -> None:
    for name in ("Word", "SpeechOptions", "Receipt", "Outcome", "LiveSpeech", "VoiceInfo", "ClientSettings"):
        assert getattr(tts_worker, name).__name__ == name
    assert {getattr(tts_worker, name).__module__.split(".")[0] for name in ("Word", "SpeechOptions")} == {"tts_worker"}


def test_import_of_the_package_imports_none_of_its_modules() -> None:
    program = "import sys, tts_worker; print(*sorted(m for m in sys.modules if m.startswith('tts_worker')))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["tts_worker", "tts_worker.version"]


@pytest.mark.parametrize(
    "function",
    [TTS, TTS.speak, TTS.stream, TTS.play, AsyncTTS, AsyncTTS.speak, AsyncTTS.stream],
    ids=lambda function: function.__qualname__,
)
def test_help_shows_options_and_errors(function: object) -> None:
    shown = pydoc.render_doc(function, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    for option in SpeechOptions.__annotations__:
        assert re.search(rf"^[ |]+{option}: ", shown, re.MULTILINE), option
    assert "0.5 to 2.0 with most voices" in shown
    assert "InvalidRequest" in shown
    if function in (TTS.speak, TTS.play, AsyncTTS.speak):
        assert "UnknownVoice" in shown
        assert "OverCapacity" in shown
    if function in (TTS.speak, AsyncTTS.speak):
        assert ".speak(" in shown.partition("Example")[2]


def test_program_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    opened = names["tts"]
    assert isinstance(opened, TTS)
    opened.close()
    assert soundfile.info("hello.wav").duration > 0.5
