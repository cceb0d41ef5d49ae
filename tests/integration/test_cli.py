"""The command line as users and scripts use it: in this process where that is equivalent, else as a real program."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pty
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
import soundfile

from tests.fakes.programs import Program
from tts_worker.cli import all_commands, main
from tts_worker.commands import doctor
from tts_worker.finding import Finding, Status

COMMAND = "-m", "tts_worker"
PROGRAM = [sys.executable, *COMMAND]
"""With a start of its own, for what depends on it: a terminal, and standard streams that are closed."""
TONE = ["--engine", "tone"]


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


# -- say --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".mp3", ".opus"])
def test_say_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    file = tmp_path / f"speech{suffix}"
    assert main(["say", "Hello there, my friend.", "--out", str(file), *TONE]) == 0
    samples, rate_hz = soundfile.read(file)
    assert len(samples) / rate_hz == pytest.approx(23 * 0.06, abs=0.3)
    assert re.search(r"engine started in \d+\.\d s, first audio after \d+ ms", capsys.readouterr().err)


def test_say_json_has_words_and_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("Hello there, my friend.\n", "utf-8")
    args = [
        "say",
        "--file",
        str(tmp_path / "text.txt"),
        "--out",
        str(tmp_path / "a.wav"),
        "--json",
        "--voice",
        "tone-low",
    ]
    assert main([*args, *TONE]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["voice"] == "tone-low"
    assert summary["outcome"] == "done"
    assert [word["text"] for word in summary["words"]] == ["Hello", "there,", "my", "friend."]
    assert summary["chunks"][-1]["end_sample"] / 24_000 == pytest.approx(summary["audio_s"], abs=1e-3)
    assert soundfile.info(tmp_path / "a.wav").frames == summary["chunks"][-1]["end_sample"]


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name in "ab":
        assert main(["say", "Hello there.", "--seed", "7", "--out", str(tmp_path / f"{name}.wav")]) == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["hi", "--voice", "missing"], 2, 'unknown voice "missing"'),
        (["hi", "--speed", "9"], 2, "speed must be"),
        (["hi", "--seed", "-1"], 2, "seed must be 0"),
        (["hi", "--file", "x"], 2, "not both"),
        (["--file", "no/such/file"], 2, "cannot read no/such/file"),
        (["hi", "--out", "speech.doc"], 2, "must end in"),
        (["hi", "--json", "--out", "-"], 2, "standard output"),
        (["hi", "--lexicon", "no.yaml"], 2, "no.yaml cannot be read"),
        (["hi", "--set", "session.leadms=3"], 2, "session.leadms: unknown setting"),
        (["hi", "--set", "nonsense"], 2, "KEY=VALUE"),
        (["hi", "--config", "no.yaml"], 2, "no.yaml cannot be read"),
        (["hi", "--url", "ws://127.0.0.1:9"], 2, "whose settings"),
        (["🎉"], 1, "nothing in this text that can be spoken"),
    ],
)
def test_say_rejects_invalid_arguments(
    args: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in args else ["--out", str(tmp_path / "a.wav")]
    assert main(["say", *args, *out, *TONE]) == code
    assert message in error_of(capsys)


def test_say_speaks_a_pipe_while_text_arrives() -> None:
    """Sentences at once, and words without punctuation when the writer pauses."""
    words = [*COMMAND, "say", "--flush-after-ms", "20", "--out", "-", "--quiet", *TONE]
    with Program(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as say:
        assert say.stdin is not None
        assert say.stdout is not None
        sentence = "The first one is äußerst long."
        say.stdin.write(f"{sentence} And".encode())
        say.stdin.flush()
        assert len(say.stdout.read(48_000)) == 48_000  # one second of audio, before the rest of the text is written
        say.stdin.write(b" I would like to book a table for two ")
        say.stdin.flush()
        more = (len(sentence) + len("And I would")) * 60 * 48 - 48_000
        assert len(say.stdout.read(more)) == more
        rest, _ = say.communicate(b"this is the rest.", timeout=60)
    assert say.returncode == 0
    assert len(rest) > 24_000


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only player on PATH: a script called aplay."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "aplay"


def install(player: Path, body: str) -> None:
    player.write_text(f"#!/bin/sh\n{body}\n")
    player.chmod(player.stat().st_mode | stat.S_IXUSR)


def test_say_plays(player: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(player, f"/bin/cat > {tmp_path / 'played'}; exec /bin/sleep 1")  # as long as the speech
    assert main(["say", "Hello there.", *TONE]) == 0
    assert "-> aplay" in capsys.readouterr().err
    assert (tmp_path / "played").stat().st_size > 20_000


def test_player_failure_is_reported(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(player, "echo 'no sound card' >&2; exit 1")
    assert main(["say", "Hello there, " * 2_000, *TONE]) == 1
    assert "aplay cannot play: no sound card. Give --out" in error_of(capsys)


def test_player_that_ends_early_is_an_error(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ffplay without an audio device reads everything at once and exits with code 0."""
    install(player, "exec /bin/cat > /dev/null")
    assert main(["say", "Hello there, my friend.", *TONE]) == 1
    assert "aplay cannot play: it ended after" in error_of(capsys)


def test_player_that_reads_nothing_is_an_error(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(player, "exit 0")
    assert main(["say", "Hello there, my friend.", *TONE]) == 1
    assert "aplay cannot play: it ended" in error_of(capsys)


def test_player_without_a_device_is_an_error(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ffplay exits with code 0, and on a busy machine starts so late that a short speech might have been played."""
    told = "No more combinations to try, audio open failed"
    install(player, f"/bin/cat > /dev/null; echo '{told}' >&2; exec /bin/sleep 1.5")
    assert main(["say", "Hi.", *TONE]) == 1
    assert f"aplay cannot play: {told}. Give --out" in error_of(capsys)


def test_player_that_cannot_start_is_an_error(player: Path, capsys: pytest.CaptureFixture[str]) -> None:
    player.write_text("#!/no/such/interpreter\n")
    player.chmod(player.stat().st_mode | stat.S_IXUSR)
    assert main(["say", "Hello there.", *TONE]) == 1
    assert "aplay cannot be started" in error_of(capsys)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pty")
def test_control_c_on_a_terminal_stops(player: Path, tmp_path: Path) -> None:
    """A terminal signals the whole foreground process group; the player must not be in it."""
    os.mkfifo(tmp_path / "speaker")
    # Plays the first 0.2 s and then blocks, so that Ctrl-C arrives during speech.
    install(player, f"/usr/bin/head -c 9600 > {tmp_path / 'speaker'}; exec /usr/bin/tail -f /dev/null")
    child, terminal = pty.fork()
    if child == 0:
        out = os.open(tmp_path / "summary", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.execv(sys.executable, [*PROGRAM, "say", "--json", "Hello there, my friend. " * 200, *TONE])
    with open(tmp_path / "speaker", "rb") as speaker:
        assert len(speaker.read(9_600)) == 9_600
    os.write(terminal, b"\x03")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    summary = json.loads((tmp_path / "summary").read_text())
    assert summary["outcome"] == "stopped"
    assert summary["chars_spoken"] + summary["chars_remaining"] == len("Hello there, my friend. " * 200)
    assert summary["chars_spoken"] < 200, "the pipe held seconds of speech that were never played"


def test_control_c_stops_and_reports_unspoken_text(player: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "speaker")
    install(player, f"exec /bin/cat > {tmp_path / 'speaker'}")
    words = [*COMMAND, "say", "Hello there, my friend. " * 200, *TONE]
    with Program(*words, stderr=subprocess.PIPE) as say, open(tmp_path / "speaker", "rb") as speaker:
        assert len(speaker.read(9_600)) == 9_600
        say.send_signal(signal.SIGINT)
        _, messages = say.communicate(timeout=60)
    assert say.returncode == 130
    assert b"characters were not spoken" in messages


# -- serve ------------------------------------------------------------------------------------------------------------


@contextmanager
def served(*args: str, environment: dict[str, str] | None = None) -> Iterator[tuple[Program, str]]:
    words = [*COMMAND, "serve", "--port", "0", *TONE, *args]
    with Program(*words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().removeprefix("listening on ").strip()
            if url.startswith("{"):
                url = json.loads(url)["url"]
                assert json.loads(process.stdout.readline())["message"] == "ready"
            else:
                others = list(iter(process.stdout.readline, "ready\n"))
                assert all(line.startswith("listening on grpc://") for line in others)
            yield process, url
        finally:
            process.kill()


def test_serve_speaks_lists_voices_and_drains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served("--set", "log_format=json") as (process, url):
        assert httpx.get(f"{url}/health/ready", timeout=60).status_code == 200
        assert main(["voices", "--url", url, "--json"]) == 0
        assert {voice["id"] for voice in json.loads(capsys.readouterr().out)["voices"]} == {
            "tone",
            "tone-low",
            "tone-high",
        }
        for target in (url, url.replace("http", "ws")):
            file = tmp_path / "speech.wav"
            assert main(["say", "--url", target, "Hello there.", "--voice", "tone-low", "--out", str(file)]) == 0
            assert "first audio after" in error_of(capsys)
            assert soundfile.info(file).duration == pytest.approx(12 * 0.06, abs=0.3)
        assert main(["say", "--url", url, "Hello there.", "--voice", "absent", "--out", str(file)]) == 2
        assert 'unknown voice "absent"' in error_of(capsys)
        process.terminate()
        assert process.wait(timeout=60) == 0


BREAKS_WHILE_DRAINING = """
import sys, time
from tts_worker import serving
from tts_worker.cli import main
from tts_worker.session.hub import SessionHub
serving._SHUTDOWN_S = float(sys.argv[1])

async def drain(self, timeout_s):
    {action}

SessionHub.drain = drain
sys.exit(main(["serve", "--port", "0", "--engine", "tone", "--set", "server.drain_s=0.1"]))
"""


@pytest.mark.parametrize(
    ("action", "limit_s", "code"),
    [
        ("raise MemoryError", 60.0, 1),
        ("time.sleep(3600)", 0.5, -signal.SIGALRM),
    ],
    ids=["no_memory", "hang"],
)
def test_broken_drain_still_ends_the_process(action: str, limit_s: float, code: int) -> None:
    script = BREAKS_WHILE_DRAINING.format(action=action)
    with Program("-c", script, str(limit_s), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("listening on")
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.wait(timeout=50) == code
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors as a shell does")
def test_serve_and_commands_run_without_standard_streams(tmp_path: Path) -> None:
    """As a daemon may be started: otherwise sockets take the numbers, and libuv aborts when it closes them."""
    program = shlex.join([*PROGRAM, "say", "Hello.", "--out", str(tmp_path / "a.wav"), *TONE])
    assert subprocess.run(["bash", "-c", f"{program} <&- >&- 2>&-"]).returncode == 0
    for closed in ("<&-", ">&-", "<&- >&-"):
        serve = shlex.join([*PROGRAM, "serve", "--port", "0", *TONE])
        with subprocess.Popen(["bash", "-c", f"exec {serve} {closed}"], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert " ready " in process.stderr.readline()
            process.terminate()
            assert process.wait(timeout=50) == 0, process.stderr.read()


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors as a shell does")
@pytest.mark.parametrize("output", ["pipe", "/dev/full"])
def test_serve_goes_on_without_a_reader_of_its_output(output: str) -> None:
    """As ``serve | head -1`` or a full disk leaves it."""
    if output == "pipe":
        read_end, descriptor = os.pipe()
        os.close(read_end)
    else:
        descriptor = os.open(output, os.O_WRONLY)
    words = [*COMMAND, "serve", "--port", "0", *TONE]
    with Program(*words, stdout=descriptor, stderr=subprocess.PIPE, text=True) as process:
        os.close(descriptor)
        assert process.stderr is not None
        assert "standard output" in process.stderr.readline()
        assert " ready " in process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=50) == 0, process.stderr.read()


def test_set_value_with_trailing_colon_is_a_string(capsys: pytest.CaptureFixture[str]) -> None:
    """YAML would parse a mapping; mappings need braces here."""
    assert main(["serve", *TONE, "--set", "registry.prefix=tts:worker:", "--set", "registry.url=redis://x/0"]) == 2
    assert "registry.url: clients reach a registered worker over gRPC" in error_of(capsys), "the prefix was fine"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--host", "0.0.0.0"], "set api_keys"),
        (["--port", "70000"], "server.port"),
        (["--set", "server.host=2024-13-45"], "the value is not valid YAML"),
        (["--host", "192.0.2.1", "--set", "server.allow_unauthenticated=true"], "cannot listen on 192.0.2.1"),
    ],
)
def test_serve_rejects_invalid_settings(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *args, *TONE]) == 2
    assert message in error_of(capsys)


@pytest.mark.parametrize("grpc", [False, True], ids=["server", "grpc"])
def test_a_port_in_use_may_become_free(grpc: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A supervisor starts the worker again, which it does not after status 2."""
    if grpc:
        pytest.importorskip("grpc")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = ["--port", "0", "--set", "grpc.enabled=true", "--set", f"grpc.port={port}"] if grpc else []
        assert main(["serve", *TONE, *(ports or ["--port", str(port)])]) == 1
    key = "grpc" if grpc else "server.port"
    assert capsys.readouterr().err == f"error: {key}: cannot listen on 127.0.0.1:{port}: the port is in use\n"


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_voices_lists_the_voices_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    config = Path(__file__).parents[2] / "configs" / "worker.yaml"
    assert main(["voices", "--config", str(config)]) == 0
    assert "heart, af_heart (default)" in capsys.readouterr().out
    assert main(["voices", "--url", "http://127.0.0.1:9"]) == 1
    assert "the worker cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_listening_plays_every_voice(
    player: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, remote: bool
) -> None:
    install(player, f"/bin/cat > {tmp_path}/played-$$; exec /bin/sleep 1.2")  # as long as a voice speaks
    if remote:
        with served() as (_, url):
            assert main(["voices", "listen", "--url", url]) == 0
    else:
        assert main(["voices", "listen", *TONE]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["tone", "tone-low", "tone-high"]
    played = [file.read_bytes() for file in tmp_path.glob("played-*")]
    assert len(set(played)) == 3
    assert all(len(pcm) > 24_000 for pcm in played)


def test_listening_needs_a_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["voices", "listen", *TONE]) == 2
    assert "no audio player found (pw-cat, paplay, aplay, ffplay, play)" in error_of(capsys)


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", *TONE]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["speech"]["status"] == "ok"
    assert findings["[cosyvoice]"]["status"] == ("ok" if find_spec("torch") else "optional")
    assert {"[gpu]", "[livekit]", "[grpc]"} <= set(findings)
    doctor.print_findings([Finding("[ray]", Status.OPTIONAL, "several machines", "pip install ray")])
    assert "  optional [ray]               several machines  -> pip install ray\n" in capsys.readouterr().out
    assert main(["doctor", *TONE]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 11, "it fits on one screen"
    assert main(["doctor", "--set", "server.prt=1"]) == 1
    assert "server.prt: unknown setting" in capsys.readouterr().out


def test_summary_of_doctor_keeps_every_problem() -> None:
    broken = [Finding(name, Status.FAULT, "not installed", "pip install") for name in ("numpy", "soxr")]
    busy = Finding("port", Status.WARNING, "is taken", "free it")
    extras = [Finding(f"[{name}]", Status.OK, "purpose") for name in ("grpc", "ray")]
    shown = doctor.summary(
        [*broken, Finding("fastapi", Status.OK, "1"), *extras, busy, Finding("uvicorn", Status.OK, "2")]
    )
    assert shown == [
        *broken,
        Finding("packages", Status.OK, "fastapi, uvicorn"),
        Finding("extras", Status.OK, "grpc, ray"),
        busy,
    ]


@pytest.mark.parametrize(("no_color", "code"), [("", "\033[1;31m"), ("1", "")])
def test_doctor_is_colored_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: str, code: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    doctor.print_findings([Finding("numpy", Status.FAULT, "not installed")])
    assert f"  {code}FAULT   " in capsys.readouterr().out


def test_bench_latency(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--engine", "cpu", "--turns", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["first_chunk_ms"] < figures["first_audio_p99_ms"]
    assert 0 < figures["rtf"] < 1


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["bench"], ["bench", "--help"]):
        assert main(words) == 0
        assert "bench latency" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tts-worker ")
    assert main(["frobnicate"]) == 2
    assert 'no command "frobnicate"' in error_of(capsys)
    for words in (["servee"], ["bench", "latnecy"]):
        assert main(words) == 2
        assert "did you mean " in error_of(capsys)
    with pytest.raises(SystemExit):
        main(["say", "--voce", "heart"])
    assert "did you mean --voice?" in error_of(capsys)


def test_drain_ends_with_a_line_that_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with served() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert re.search(r"INFO tts_worker.serving: drained seconds=[\d.]+ cut_off=0\n$", capfd.readouterr().err)


def test_examples_of_the_help_are_valid() -> None:
    for name, command in all_commands().items():
        for example in command.examples:
            parser = argparse.ArgumentParser()
            importlib.import_module(command.module).add_arguments(parser)
            assert example.startswith(name)
            parser.parse_args(shlex.split(example.removeprefix(name)))


def test_serve_open_opens_the_page(tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(opened)
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    with served("--open", "--set", "grpc={enabled: true, port: 0}", environment=environment) as (_, url):
        assert opened.read_text().strip() == url  # waits for the browser


@pytest.mark.parametrize("command", all_commands())
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert f"tts-worker {command}" in capsys.readouterr().out
