"""The watermark in what a worker sends: through pauses, in files, and by a marker of the user's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import tone_settings
from tests.features.marking.conftest import DEPLOYMENT_ID
from tests.integration.grpc_worker import dial, running_grpc_worker, say
from tests.quality.sentences import SENTENCES
from tts_worker import cli
from tts_worker.errors import ConfigError
from tts_worker.features.compat import cosyvoice_pb2, cosyvoice_pb2_grpc
from tts_worker.features.marking import markers
from tts_worker.features.marking.detector import detect
from tts_worker.features.marking.markers import make_marker
from tts_worker.features.marking.settings import MarkingSettings
from tts_worker.features.marking.watermark import Watermark, watermark_gains
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.settings import load_settings
from tts_worker.types import SAMPLE_RATE_HZ, Ended, PcmFrame, SessionOptions
from tts_worker.worker import running_worker

MARKING = {"marker": "watermark", "deployment_id": f"0x{DEPLOYMENT_ID:x}"}
VOICE = {"engines": {"hibari": {"kind": "hibari"}}, "models": {}}
TEXT = " ".join(SENTENCES[-5:])


async def test_grpc_is_marked() -> None:
    grpc_section = {"cosyvoice_port": 0}
    async with running_grpc_worker(marking=MARKING, grpc=grpc_section, **VOICE) as server:
        started = await server.start(realtime="false")
        spoken = await say(server, TEXT)
        cosyvoice = server.member.other_addresses["cosyvoice-grpc"]
        others = await asyncio.gather(converse(server.channel), inference(cosyvoice))
    assert detect(np.frombuffer(spoken.pcm, "<i2"), started.sample_rate).deployment_id == DEPLOYMENT_ID
    assert [detect(np.frombuffer(pcm, "<i2"), SAMPLE_RATE_HZ).marked for pcm in others] == [True, True]


async def converse(channel: grpc.aio.Channel) -> bytes:
    """Return what the service ``Conversation`` says."""
    call = tts_worker_pb2_grpc.ConversationStub(channel).Converse()
    await call.write(pb.ConverseRequest(start=pb.ConverseRequest.Start(protocol_version=1)))
    await call.write(pb.ConverseRequest(say=pb.ConverseRequest.Say(context="a", text=SENTENCES[-7])))
    await call.write(pb.ConverseRequest(end=pb.ConverseRequest.EndText(context="a")))
    pcm = b""
    async for response in call:
        pcm += response.pcm
        if response.HasField("ended"):
            break
    call.cancel()
    return pcm


async def inference(address: str) -> bytes:
    """Return what CosyVoice's own service says."""
    request = cosyvoice_pb2.Request(sft_request=cosyvoice_pb2.sftRequest(spk_id="heart", tts_text=SENTENCES[-7]))
    async with dial(address) as channel:
        responses = cosyvoice_pb2_grpc.CosyVoiceStub(channel).Inference(request)
        return b"".join([response.tts_audio async for response in responses])


async def utterance(options: SessionOptions, *, pause_after: int | None = None, **sections: Any) -> bytes:
    """Return what a session sends, with a pause after some frames."""
    async with running_worker(tone_settings(**sections)) as worker:
        session = await worker.hub.admit(options)
        session.speak("One sentence, and another one.")
        session.end_text()
        frames: list[bytes] = []
        async for item in session:
            if isinstance(item, PcmFrame):
                frames.append(item.pcm)
                if len(frames) == pause_after:
                    session.pause()
                    await asyncio.sleep(0)
                    session.resume()
            elif isinstance(item, Ended):
                break
        session.close()
    return b"".join(frames)


async def test_pause_loses_and_changes_no_sample() -> None:
    options = SessionOptions(realtime=False)
    marked = await utterance(options, marking=MARKING)
    plain = await utterance(options)
    assert len(marked) == len(plain)
    assert marked != plain
    assert await utterance(options, pause_after=7, marking=MARKING) == marked


async def test_nothing_is_changed_by_default() -> None:
    options = SessionOptions(realtime=False)
    assert await utterance(options, marking={"marker": "off"}) == await utterance(options)


def test_say_marks_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speech.mp3"
    settings = [f"--set=marking.{key}={value}" for key, value in MARKING.items()]
    assert cli.main(["say", "--quiet", "--engine", "cpu", "--out", str(file), *settings, TEXT]) == 0
    assert cli.main(["detect", str(file)]) == 0
    assert f"deployment 0x{DEPLOYMENT_ID:x}" in capsys.readouterr().out


def test_say_marks_the_speech_of_a_model_directory(tmp_path: Path) -> None:
    from tests.unit.cosyvoice.speaking import bundle_with_voices  # imports PyTorch

    bundle = bundle_with_voices("cosyvoice2", tmp_path)
    plain, marked = tmp_path / "plain.pcm", tmp_path / "marked.pcm"
    for file, settings in ((plain, ()), (marked, [f"--set=marking.{key}={value}" for key, value in MARKING.items()])):
        command = ["say", "--quiet", "--bundle", str(bundle), "--voice", "anna", *settings]
        assert cli.main([*command, "--out", str(file), "Hello."]) == 0
    marker = Watermark(watermark_gains(DEPLOYMENT_ID))
    assert marked.read_bytes() == marker.process(plain.read_bytes()) + marker.flush()


# -- markers of the user's own ----------------------------------------------------------------------------------------


class Halving:
    def process(self, pcm: bytes) -> bytes:
        return (np.frombuffer(pcm, "<i2") // 2).astype("<i2").tobytes()

    def flush(self) -> bytes:
        return b""


class Doubling(Halving):
    def process(self, pcm: bytes) -> bytes:
        return pcm + pcm


class Hoarding(Halving):
    def __init__(self) -> None:
        self.held = b""

    def process(self, pcm: bytes) -> bytes:
        self.held += pcm
        return b""

    def flush(self) -> bytes:
        return self.held


class Dividing(Halving):
    def process(self, pcm: bytes) -> bytes:
        return bytes(2) + pcm[2:] if pcm else b""


class Failing(Halving):
    """Works in the trial, which needs two, and fails after 30 calls."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.calls_left = 30 if self.made > 2 else 1_000

    def process(self, pcm: bytes) -> bytes:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise RuntimeError("disk full")
        return super().process(pcm)


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    def announce_(marker: type) -> None:
        monkeypatch.setattr(markers, "entry_points", lambda group: [EntryPoint("own", f"{__name__}:factory", group)])
        monkeypatch.setattr(sys.modules[__name__], "factory", lambda deployment_id: marker, raising=False)

    return announce_


async def test_own_marker_marks(announce: Callable[[type], None]) -> None:
    announce(Halving)
    options = SessionOptions(realtime=False)
    plain = np.frombuffer(await utterance(options, session={"loudness": "off"}), "<i2")
    halved = await utterance(options, marking={"marker": "own"}, session={"loudness": "off"})
    assert np.array_equal(np.frombuffer(halved, "<i2"), plain // 2)


@pytest.mark.parametrize(
    ("marker", "message"), [(Doubling, "bytes"), (Hoarding, "20 ms"), (Dividing, "divided"), (dict, "AttributeError")]
)
def test_unusable_marker_is_refused(marker: type, message: str, announce: Callable[[type], None]) -> None:
    announce(marker)
    with pytest.raises(ConfigError, match=message):
        make_marker(MarkingSettings(marker="own"))


def test_unknown_marker_is_refused() -> None:
    with pytest.raises(ConfigError, match="off, watermark"):
        make_marker(MarkingSettings(marker="other"))


def test_marker_that_fails_later_does_not_end_the_call(
    announce: Callable[[type], None], caplog: pytest.LogCaptureFixture
) -> None:
    announce(Failing)
    make = make_marker(MarkingSettings(marker="own"))
    assert make is not None
    marker = make()
    out = b"".join(marker.process(b"\x10\0" * 5) for _ in range(40)) + marker.flush()
    assert out == b"\x08\0" * 150 + b"\x10\0" * 50
    assert "unmarked" in caplog.text


@pytest.mark.parametrize("value", ["-1", "0x1ffffffff", "0xzz", "4294967296", "abc"])
def test_bad_deployment_id_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="deployment_id"):
        load_settings(flags={"marking": {"deployment_id": value}})


def test_key_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="key requires certificate"):
        load_settings(flags={"marking": {"key": "key.pem"}})
