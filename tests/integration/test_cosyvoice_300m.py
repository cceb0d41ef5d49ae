"""A worker with CosyVoice-300M on random weights: every mode over HTTP, WebSocket and CosyVoice's own gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.fakes.recordings import SAID, speech, wav
from tests.fakes.threaded_worker import ThreadedWorker, worker_in_thread
from tts_worker import TTS
from tts_worker.features.compat import cosyvoice_pb2 as pb
from tts_worker.features.compat import cosyvoice_pb2_grpc
from tts_worker.settings import load_settings

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnx", reason="random prompt models need the extra 'export'")
pytestmark = pytest.mark.timeout(300)

TEXT = "Hi."
PROMPT = wav(speech(4, 16_000))
PROMPT_PCM = PROMPT[44:]
MIN_AUDIO_BYTES = 2 * 24_000 * 2 * len(TEXT) // 50  # two tokens of 20 ms for each token of text


END_LOGIT = 9.0
"""Added to the logit of the end of speech, which random weights hardly ever draw: truncated speech is an error."""


@pytest.fixture(scope="module", autouse=True)
def few_layers() -> Iterator[None]:
    import torch

    from tests.unit.cosyvoice.networks import little_work
    from tts_worker.engine.cosyvoice.bundle.networks import Networks

    with little_work(), pytest.MonkeyPatch.context() as patch:
        load = Networks.load

        def load_with_ends(*args: Any, **options: Any) -> Networks:
            networks = load(*args, **options)
            with torch.no_grad():
                networks.lm.llm_decoder.bias[networks.config.lm.eos_id] += END_LOGIT
            return networks

        patch.setattr(Networks, "load", load_with_ends)
        yield


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedWorker]:
    from tools.random_bundle.writer import write_random_bundle

    bundle: Path = tmp_path_factory.mktemp("served") / "tiny"
    write_random_bundle(bundle, "cosyvoice1", prompt_models=True)
    engine = {"kind": "cosyvoice", "bundle": str(bundle), "device": "cpu", "threads": 1, "max_utterances": 4}
    sections = {"engines": {"cosy": engine}, "session": {"loudness": None}}
    with worker_in_thread(load_settings(flags=sections)) as served:
        yield served


@pytest.fixture(scope="module")
def http(worker: ThreadedWorker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{worker.address}", timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    ("route", "fields", "files"),
    [
        ("sft", {"tts_text": TEXT, "spk_id": "random"}, ()),
        ("zero_shot", {"tts_text": TEXT, "prompt_text": SAID}, ("prompt_wav",)),
        ("cross_lingual", {"tts_text": TEXT}, ("prompt_wav",)),
        ("instruct", {"tts_text": TEXT, "spk_id": "random", "instruct_text": "A calm man."}, ()),
        ("vc", {}, ("source_wav", "prompt_wav")),
    ],
)
def test_every_mode_over_cosyvoice_http(
    http: httpx.Client, route: str, fields: dict[str, str], files: tuple[str, ...]
) -> None:
    answer = http.post(f"/inference_{route}", data=fields, files={name: (name, PROMPT) for name in files} or None)

    assert answer.status_code == 200, answer.text
    assert len(answer.content) >= MIN_AUDIO_BYTES


def test_websocket_and_openai_route_give_the_same_audio(worker: ThreadedWorker, http: httpx.Client) -> None:
    with TTS(f"ws://{worker.address}", voice="random") as tts:
        speech = tts.speak(TEXT, seed=3)
    asked = {"input": TEXT, "voice": "random", "response_format": "pcm", "seed": 3}
    answer = http.post("/v1/audio/speech", json=asked)

    assert answer.status_code == 200
    assert speech.pcm == answer.content
    assert speech.report.text_spoken == TEXT


@pytest.mark.parametrize(
    "request_",
    [
        pb.Request(sft_request=pb.sftRequest(spk_id="random", tts_text=TEXT)),
        pb.Request(zero_shot_request=pb.zeroshotRequest(tts_text=TEXT, prompt_text=SAID, prompt_audio=PROMPT_PCM)),
        pb.Request(cross_lingual_request=pb.crosslingualRequest(tts_text=TEXT, prompt_audio=PROMPT_PCM)),
        pb.Request(instruct_request=pb.instructRequest(tts_text=TEXT, spk_id="random", instruct_text="A calm man.")),
    ],
    ids=["sft", "zero_shot", "cross_lingual", "instruct"],
)
def test_every_mode_over_cosyvoice_grpc(worker: ThreadedWorker, request_: pb.Request) -> None:
    with grpc.insecure_channel(worker.cosyvoice_address) as channel:
        answers = cosyvoice_pb2_grpc.CosyVoiceStub(channel).Inference(request_)
        audio = b"".join(answer.tts_audio for answer in answers)

    assert len(audio) >= MIN_AUDIO_BYTES
