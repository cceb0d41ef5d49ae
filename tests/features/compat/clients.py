"""The clients that the tests run: the table "Works with" of ``docs/compatibility.md``.

``python -m tests.features.compat.clients`` writes it into the page. ``test_clients.py`` compares the two, and looks for
what a row names in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.unit.test_pins import pins

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "compatibility.md"
BEGIN = "<!-- works with: written by tests/features/compat/clients.py -->\n"
END = "<!-- end -->\n"
NO_TIMES = "word timestamps"
"""In the last column: these clients read none."""
UNPERFORMED = "emotion, unless the voice [performs it](text.md#expression)"


@dataclass(frozen=True)
class Client:
    """A client, or a set of classes of one package.

    Attributes:
        package: Its package on PyPI; the name of the program, if it has none that the tests install.
        parts: What the tests call by these names: classes, routes.
        how: What to set.
        lacks: What it can ask for and does not get.
        module: How tests import it; empty if they send its requests and messages themselves.
        version: Version whose messages they send; empty for the pinned version of the package.
    """

    package: str
    parts: tuple[str, ...]
    how: str
    lacks: str
    module: str = ""
    version: str = ""


CLIENTS = (
    Client("openai", ("AsyncOpenAI",), '`base_url="http://HOST:8080/v1"`', "transcription, chat, files", "openai"),
    Client("livekit-plugins-openai", ("TTS",), "`client=` an `AsyncOpenAI`", NO_TIMES, "livekit.plugins.openai"),
    Client(
        "pipecat-ai",
        ("OpenAITTSService",),
        '`base_url="http://HOST:8080/v1"`; the voice is one of [OpenAI\'s names](#voice-names)',
        NO_TIMES,
        "pipecat.services.openai",
    ),
    Client(
        "cartesia",
        ("AsyncCartesia",),
        '`base_url="http://HOST:8080"`, `websocket_base_url="ws://HOST:8080"`',
        "times of phonemes, infill, transcription",
        "cartesia",
    ),
    Client(
        "livekit-plugins-cartesia",
        ("TTS",),
        '`base_url="http://HOST:8080"`',
        UNPERFORMED,
        "livekit.plugins.cartesia",
    ),
    Client(
        "pipecat-ai",
        ("CartesiaTTSService",),
        '`url="ws://HOST:8080/tts/websocket"`',
        UNPERFORMED,
        "pipecat.services.cartesia",
    ),
    Client(
        "pipecat-ai",
        ("CartesiaHttpTTSService",),
        '`base_url="http://HOST:8080"`',
        NO_TIMES,
        "pipecat.services.cartesia",
    ),
    Client(
        "elevenlabs",
        ("AsyncElevenLabs",),
        '`base_url="http://HOST:8080"`',
        "stability and style, dubbing, accounts; `convert_realtime` needs [TLS](deployment.md#https)",
        "elevenlabs",
    ),
    Client(
        "livekit-plugins-elevenlabs",
        ("TTS",),
        '`base_url="http://HOST:8080/v1"`',
        "stability and style",
        "livekit.plugins.elevenlabs",
    ),
    Client(
        "pipecat-ai",
        ("ElevenLabsTTSService",),
        '`url="ws://HOST:8080"`',
        "stability and style",
        "pipecat.services.elevenlabs",
    ),
    Client(
        "pipecat-ai",
        ("ElevenLabsHttpTTSService",),
        '`base_url="http://HOST:8080"`',
        "stability and style",
        "pipecat.services.elevenlabs",
    ),
    Client(
        "deepgram-sdk",
        ("AsyncDeepgramClient",),
        "`environment=`, [see below](#deepgram)",
        "`callback`, controls within the text, listening, agents",
        "deepgram",
    ),
    Client(
        "livekit-plugins-deepgram",
        ("TTS",),
        '`base_url="http://HOST:8080/v1/speak"`',
        NO_TIMES,
        "livekit.plugins.deepgram",
    ),
    Client(
        "livekit-plugins-deepgram",
        ("TTSv2",),
        '`base_url="http://HOST:8080/v2/speak"`',
        NO_TIMES,
        "livekit.plugins.deepgram",
    ),
    Client(
        "pipecat-ai",
        ("DeepgramTTSService",),
        '`base_url="ws://HOST:8080"`',
        NO_TIMES,
        "pipecat.services.deepgram",
    ),
    Client(
        "pipecat-ai",
        ("DeepgramHttpTTSService",),
        '`base_url="http://HOST:8080"`',
        NO_TIMES,
        "pipecat.services.deepgram",
    ),
    Client(
        "pipecat-ai",
        ("DeepgramFluxTTSService",),
        '`url="ws://HOST:8080/v2/speak"`',
        NO_TIMES,
        "pipecat.services.deepgram",
    ),
    Client(
        "jambonz",
        ("/jambonz",),
        "custom speech, [see below](#jambonz)",
        NO_TIMES,
        version="speech-utils 0.2.27",
    ),
    Client(
        "vLLM-Omni",
        ("/v1/audio/speech/stream",),
        "the address",
        "settings of its models, embeddings, chat",
        version="0.30",
    ),
    Client(
        "CosyVoice",
        ("/inference_sft", "/inference_zero_shot", "CosyVoiceStub"),
        "the address, [see below](#cosyvoices-servers)",
        "recordings without an engine that enrolls voices",
        version="its published clients",
    ),
    Client(
        "cosyvoice-ray-serve-api",
        ("/v1/model/cosyvoice", "/zero_shot_tts"),
        "the address, [see below](#cosyvoices-servers)",
        "paths as recordings",
        version="its published clients",
    ),
)


def table() -> str:
    """Return the table in Markdown."""
    versions = pins("3.12")
    rows = ["| client | tried | set | not supported |", "|---|---|---|---|"]
    for client in CLIENTS:
        name = f"`{client.package}`" if client.module else client.package
        if client.module.partition(".")[0] in ("livekit", "pipecat"):
            name += " " + ", ".join(f"`{part}`" for part in client.parts)
        version = client.version or str(versions[client.package].specifier).removeprefix("==")
        rows.append(f"| {name} | {version} | {client.how} | {client.lacks} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
