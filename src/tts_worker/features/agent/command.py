"""``tts-worker agent``: serves a page on which one speaks with an agent, which can be interrupted."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from tts_worker.client import Client, ClientSettings, connect
from tts_worker.commands.common import add_settings_arguments, quiet_logs, run_event_loop, settings_from
from tts_worker.errors import ConfigError, InvalidRequest
from tts_worker.feature import web_folders
from tts_worker.features.agent.chat import ChatEndpoint, ChatModel
from tts_worker.features.agent.recognizer import Recognizer, WhisperRecognizer
from tts_worker.features.agent.routes import PAGE_PATH, add_agent, hub_service, standalone_app
from tts_worker.features.agent.script import ScriptedModel
from tts_worker.features.agent.service import INSTRUCTIONS, AgentService, speech_options
from tts_worker.logs import configure_logs
from tts_worker.protocol.session import Session
from tts_worker.server.application import Application, Extension
from tts_worker.server.limits import ApiLimits
from tts_worker.server.listener import listen
from tts_worker.server.page import WebFiles
from tts_worker.serving import serve
from tts_worker.settings import is_loopback
from tts_worker.types import SessionOptions

log = logging.getLogger(__name__)

CHAT_URL = "TTS_WORKER_CHAT_URL"
CHAT_MODEL = "TTS_WORKER_CHAT_MODEL"
CHAT_KEYS = ("TTS_WORKER_CHAT_KEY", "OPENAI_API_KEY")
"""Environment variables. A key is read from there only: other users of a machine can see the flags of a process."""

DEFAULT_PORT = 8080


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1; others need an API key)")
    parser.add_argument("--port", type=int, help=f"port to listen on (default {DEFAULT_PORT}; 0 picks a free one)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    voice = parser.add_argument_group("voice")
    voice.add_argument(
        "--url", help="speak with a running worker, such as ws://127.0.0.1:8080 (key: TTS_WORKER_API_KEY)"
    )
    voice.add_argument("--voice", help="voice of the agent")
    voice.add_argument("--speed", type=float, default=1.0, help="speaking rate (default 1)")
    chat = parser.add_argument_group("answers (without a model: a script)")
    chat.add_argument(
        "--chat-url",
        default=os.environ.get(CHAT_URL),
        help=f"OpenAI-compatible API, such as http://127.0.0.1:11434/v1 (default {CHAT_URL}; "
        f"its key is {' or '.join(CHAT_KEYS)} in the environment)",
    )
    chat.add_argument("--chat-model", default=os.environ.get(CHAT_MODEL), help=f"model there (default {CHAT_MODEL})")
    chat.add_argument("--instructions", help="what the model is told about its role")
    chat.add_argument("--script", type=Path, metavar="FILE", help="text file: one answer per paragraph")
    speech = parser.add_argument_group("speech recognition (by default the browser's)")
    speech.add_argument(
        "--whisper", metavar="MODEL", help="recognize speech here: a faster-whisper model or its directory"
    )
    speech.add_argument(
        "--whisper-download", action="store_true", help="download the model if it is not on this machine"
    )
    speech.add_argument("--language", help="language of the user, such as en (default: detected)")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not web_folders():
        raise ConfigError("the agent needs the web page, which this installation lacks: install the package again")
    model = _chat_model(args)
    if args.instructions is None:
        args.instructions = "" if args.chat_url is None else INSTRUCTIONS
    recognizer = None
    if args.whisper is not None:
        recognizer = WhisperRecognizer(args.whisper, may_download=args.whisper_download, language=args.language)
    options = speech_options(args.voice, args.speed)
    url = ""

    def on_listening(address: str) -> None:
        nonlocal url
        url = url or f"{address}{PAGE_PATH}"

    def on_ready() -> None:
        # On standard output, so that a parent process can read the address (port 0).
        print(f"talk to the agent at {url}", flush=True)
        if args.open and not webbrowser.open(url):
            log.warning("no browser found: open %s", url)

    try:
        if args.url is not None:
            _check_remote(args)
            quiet_logs()
            client = connect(args.url, ClientSettings(api_key=os.environ.get("TTS_WORKER_API_KEY")))
            service = remote_service(client, options, model, recognizer, args.instructions)
            listener = listen(args.host or "127.0.0.1", DEFAULT_PORT if args.port is None else args.port)
            run_event_loop(serve_alone(client, service, listener, on_listening, on_ready))
            return 0
        server = {"host": args.host, "port": args.port, "web_page": True}
        settings = settings_from(args, server={key: value for key, value in server.items() if value is not None})
        configure_logs(settings.log_level, settings.log_format, settings.secrets)
        extension = agent_extension(options, model, recognizer, args.instructions)
        run_event_loop(serve(settings, on_listening, on_ready, ends_process=True, extension=extension))
        return 0
    finally:
        if recognizer is not None:
            recognizer.close()


def agent_extension(
    options: SessionOptions, model: ChatModel, recognizer: Recognizer | None, instructions: str = ""
) -> Extension:
    """Return what adds the agent to a worker's application."""

    def extend(app: Application) -> None:
        add_agent(app, hub_service(app, options, model, recognizer, instructions))

    return extend


def remote_service(
    client: Client, options: SessionOptions, model: ChatModel, recognizer: Recognizer | None, instructions: str = ""
) -> AgentService:
    """Return the parts of an agent that speaks with a worker elsewhere."""

    async def open_session(options: SessionOptions) -> Session:
        return (await client.open(options)).session

    return AgentService(open_session, model, recognizer, instructions, options)


def _chat_model(args: argparse.Namespace) -> ChatModel:
    """Return what answers. Raises InvalidRequest, MissingExtra."""
    if args.chat_url is None:
        if args.script is None:
            return ScriptedModel()
        try:
            paragraphs = [part for part in args.script.read_text("utf-8").split("\n\n") if part.strip()]
        except (OSError, UnicodeDecodeError):
            raise InvalidRequest(f"--script: {args.script} is not a readable text file") from None
        if not paragraphs:
            raise InvalidRequest(f"--script: {args.script} has no text")
        return ScriptedModel(paragraphs)
    if args.script is not None:
        raise InvalidRequest("--script and --chat-url exclude each other")
    if not args.chat_model:
        raise InvalidRequest("--chat-url needs --chat-model, the name of the model")
    key = next((os.environ[name] for name in CHAT_KEYS if os.environ.get(name)), None)
    return ChatEndpoint(args.chat_url, args.chat_model, key)


def _check_remote(args: argparse.Namespace) -> None:
    """Reject flags that do not apply to ``--url``. Raises InvalidRequest."""
    if args.config is not None or args.engine is not None or args.set:
        raise InvalidRequest("settings (--engine and the like) configure a worker in this process, not one at --url")
    if args.host is not None and not is_loopback(args.host):
        raise InvalidRequest("with --url the page is served on loopback only; run the agent in the worker for others")


async def serve_alone(
    client: Client,
    service: AgentService,
    listener: socket.socket,
    on_listening: Callable[[str], None],
    on_ready: Callable[[], None],
) -> None:
    """Serve the agent for a worker elsewhere until SIGINT or SIGTERM. Raises the error of a worker that refuses."""
    with listener:
        async with client:
            await client.prewarm()
            host, port = listener.getsockname()[:2]
            on_listening(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            on_ready()
            config = uvicorn.Config(
                standalone_app(service, ApiLimits(), WebFiles(web_folders())),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws_per_message_deflate=False,  # PCM hardly compresses
                timeout_graceful_shutdown=2,
            )
            await uvicorn.Server(config).serve(sockets=[listener])
