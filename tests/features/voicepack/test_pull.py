"""Pulling over a real HTTP server that breaks off, lies, refuses and never ends."""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import pytest

from tts_worker.errors import BundleError, ConfigError, UnknownModel
from tts_worker.features.voicepack import pull as pull_module
from tts_worker.features.voicepack.manifest import PUBLISHED, ModelFile, Need, PublishedModel, Verdict, published
from tts_worker.features.voicepack.pull import SOURCES, Progress, pull

BODIES = {
    "model.yaml": b"rate: 24000\n",
    "text/vocab.json": b'{"a": 0}',
    "flow.pt": bytes(range(256)) * 1000,
    "llm.rl.pt": b"tuned" * 100,
}


def model(**changed: Any) -> PublishedModel:
    """A small model directory; ``changed`` replaces what the manifest says of a file (dots in names as __)."""
    files = []
    for path, body in BODIES.items():
        need = Need.ON_REQUEST if path == "llm.rl.pt" else Need.ALWAYS
        known: dict[str, Any] = {"size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), "need": need}
        known |= changed.get(path.replace(".", "__").replace("/", "___"), {})
        files.append(ModelFile(path, **known))
    return PublishedModel("small", "Small", {"huggingface": "http://localhost:1/{path}"}, tuple(files))


@dataclass
class Server:
    """Serves ``bodies``; ``behave`` may answer a request its own way and return True."""

    url: str
    bodies: dict[str, bytes]
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    behave: Callable[[BaseHTTPRequestHandler, str, int], bool] = lambda handler, path, start: False

    def asked(self, path: str) -> list[str | None]:
        """The ranges that were asked for of ``path``."""
        return [wanted for asked, wanted in self.requests if asked == path]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state: Server

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            wanted = self.headers.get("Range")
            state.requests.append((path, wanted))
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            if not state.behave(self, path, start):
                answer(self, state.bodies.get(path), start)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client closes the connection after a malformed response; that is not printed."""

    with Listener(("127.0.0.1", 0), Handler) as httpd:
        state = Server(f"http://127.0.0.1:{httpd.server_port}", dict(BODIES))
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield state
        httpd.shutdown()
        thread.join()


def answer(handler: BaseHTTPRequestHandler, body: bytes | None, start: int, sent: int | None = None) -> None:
    """200, 206, 404 or 416 as a good server would; only the first ``sent`` bytes if given."""
    if body is None or start >= len(body) > 0:
        handler.send_response(404 if body is None else 416)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Length", str(len(body) - start))
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    handler.end_headers()
    handler.wfile.write(body[start:][:sent])
    if sent is not None:
        handler.close_connection = True


def test_complete_directory_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    seen: list[Progress] = []

    report = pull(model(), tmp_path / "x", base_url=server.url + "/", progress=seen.append)

    assert report.ok
    assert report.problems == ()
    got = {str(file.relative_to(tmp_path / "x")): file.read_bytes() for file in (tmp_path / "x").rglob("*.*")}
    assert got == {path: body for path, body in BODIES.items() if path != "llm.rl.pt"}
    assert [p for p in seen if p.file == "flow.pt"][-1] == Progress("flow.pt", 256_000, 256_000)
    before = len(server.requests)
    pull(model(), tmp_path / "x", base_url=server.url)
    assert len(server.requests) == before


def test_rl_model_is_downloaded_on_request(server: Server, tmp_path: Path) -> None:
    pull(model(), tmp_path, base_url=server.url, rl=True)

    assert (tmp_path / "llm.rl.pt").read_bytes() == BODIES["llm.rl.pt"]


def test_lost_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    def breaks(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        if path != "flow.pt" or start >= 200_000:
            return False
        answer(handler, BODIES[path], start, sent=90_000)
        return True

    server.behave = breaks

    report = pull(model(), tmp_path, base_url=server.url)

    assert report.ok
    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]
    assert server.asked("flow.pt") == [None, "bytes=90000-", "bytes=180000-"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["flow.pt", "model.yaml", "text"]


def test_second_call_resumes_the_first(server: Server, tmp_path: Path) -> None:
    def dies(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        if path != "flow.pt":
            return False
        answer(handler, BODIES[path], start, sent=0 if start else 100_000)
        return True

    server.behave = dies
    with pytest.raises(BundleError, match="pull again to resume"):
        pull(model(), tmp_path, base_url=server.url)
    assert not (tmp_path / "flow.pt").exists()
    assert (tmp_path / "flow.pt.part").read_bytes() == BODIES["flow.pt"][:100_000]
    assert len(server.asked("flow.pt")) == 1 + pull_module.MAX_FAILED_ATTEMPTS

    server.behave = lambda handler, path, start: False
    server.requests.clear()
    pull(model(), tmp_path, base_url=server.url)

    assert server.asked("flow.pt") == ["bytes=100000-"]
    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]


def test_server_without_ranges_restarts_the_file(server: Server, tmp_path: Path) -> None:
    def ignores_ranges(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        answer(handler, BODIES[path], 0)
        return True

    server.behave = ignores_ranges
    (tmp_path / "flow.pt.part").write_bytes(b"what came yesterday")

    pull(model(), tmp_path, base_url=server.url)

    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]


@pytest.mark.parametrize("left_over", [b"not the beginning of it", b"x" * 300_000, b"y" * 256_000])
def test_wrong_partial_file_is_downloaded_again(server: Server, tmp_path: Path, left_over: bytes) -> None:
    (tmp_path / "flow.pt.part").write_bytes(left_over)

    pull(model(), tmp_path, base_url=server.url)

    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]


def test_damaged_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "flow.pt").write_bytes(BODIES["flow.pt"][:-1] + b"?")
    (tmp_path / "model.yaml").write_bytes(b"cut")

    pull(model(), tmp_path, base_url=server.url)

    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]
    assert (tmp_path / "model.yaml").read_bytes() == BODIES["model.yaml"]


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("flow.pt", b"!" * 256_000, "flow.pt: the SHA-256 of the file from 127.0.0.1:.* differs"),
        ("flow.pt", BODIES["flow.pt"] + b"more", "flow.pt: the size of the file from 127.0.0.1:.* differs"),
        ("flow.pt", BODIES["flow.pt"][:5000], "flow.pt: ends after 5000 bytes; 256000 were published"),
        ("flow.pt", b"", "flow.pt: the connection ended early"),
        ("model.yaml", b"rate: 24000 # longer\n", "model.yaml: the size of the file from 127.0.0.1:.* differs"),
    ],
)
def test_unpublished_content_is_refused(server: Server, tmp_path: Path, path: str, body: bytes, complaint: str) -> None:
    server.bodies[path] = body

    with pytest.raises(BundleError, match=complaint):
        pull(model(), tmp_path, base_url=server.url)

    assert not (tmp_path / path).exists()


def test_other_revision_and_unrecorded_hash_are_noted(server: Server, tmp_path: Path) -> None:
    server.bodies["model.yaml"] = b"rate: 48000\n"
    unknown = model(flow__pt={"sha256": None})

    for _ in range(2):  # also when they lie there already
        report = pull(unknown, tmp_path, base_url=server.url)
        noted = [problem.file for problem in report.problems]
        assert noted == ["model.yaml", "flow.pt"]
        assert report.ok
    assert (tmp_path / "model.yaml").read_bytes() == b"rate: 48000\n"


def test_size_of_the_server_counts_without_a_recorded_one(server: Server, tmp_path: Path) -> None:
    unknown = model(flow__pt={"size_bytes": None, "sha256": None})
    seen: list[Progress] = []

    def breaks(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        if path != "flow.pt" or start or len(server.asked(path)) < 2:  # the first one asks for the size
            return False
        answer(handler, BODIES[path], start, sent=90_000)
        return True

    server.behave = breaks
    report = pull(unknown, tmp_path, base_url=server.url, progress=seen.append)

    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]
    assert [problem.file for problem in report.problems] == ["flow.pt"]
    assert [p for p in seen if p.file == "flow.pt"][-1] == Progress("flow.pt", 256_000, 256_000)
    before = len(server.requests)
    pull(unknown, tmp_path, base_url=server.url)
    assert len(server.requests) == before


def refusing(status: int) -> Callable[[BaseHTTPRequestHandler, str, int], bool]:
    """A server that answers every request with this status."""

    def refuse(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    return refuse


@pytest.mark.parametrize(("status", "complaint", "tries"), [(404, "answers 404", 1), (503, "answers 503", 3)])
def test_size_that_cannot_be_asked_for_is_reported(
    server: Server, tmp_path: Path, status: int, complaint: str, tries: int
) -> None:
    server.behave = refusing(status)
    with pytest.raises(BundleError, match=complaint):
        pull(model(model__yaml={"size_bytes": None}), tmp_path, base_url=server.url)
    assert len(server.requests) == tries
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_published_elsewhere_has_its_own_address(server: Server, tmp_path: Path) -> None:
    server.bodies["elsewhere"] = server.bodies.pop("flow.pt")
    changed = model(flow__pt={"url": f"{server.url}/elsewhere"})
    changed = replace(changed, urls={"huggingface": f"{server.url}/{{path}}"})

    assert pull(changed, tmp_path).ok
    assert (tmp_path / "flow.pt").read_bytes() == BODIES["flow.pt"]
    with pytest.raises(BundleError, match="answers 404"):  # a mirror has all files under its own address
        pull(changed, tmp_path / "other", base_url=server.url)


@pytest.mark.parametrize(
    ("status", "complaint", "tries"), [(404, "answers 404", 1), (403, "answers 403", 1), (503, "answers 503", 3)]
)
def test_only_transient_http_errors_are_retried(
    server: Server, tmp_path: Path, status: int, complaint: str, tries: int
) -> None:
    server.behave = refusing(status)

    with pytest.raises(BundleError, match=complaint):
        pull(model(), tmp_path, base_url=server.url)

    assert len(server.requests) == tries


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x"])
def test_redirect_cannot_read_a_local_file(server: Server, tmp_path: Path, target: str) -> None:
    def redirects(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    server.behave = redirects

    with pytest.raises(BundleError, match=r"302|unknown url type"):
        pull(model(), tmp_path, base_url=server.url)

    assert list(tmp_path.iterdir()) == []


def test_redirect_to_another_address_is_followed(server: Server, tmp_path: Path) -> None:
    def redirects(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        if path.startswith("cdn/"):
            answer(handler, BODIES[path.removeprefix("cdn/")], start)
        else:
            handler.send_response(302)
            handler.send_header("Location", f"{server.url}/cdn/{path}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        return True

    server.behave = redirects
    (tmp_path / "flow.pt.part").write_bytes(BODIES["flow.pt"][:1000])

    assert pull(model(), tmp_path, base_url=server.url).ok
    assert server.asked("cdn/flow.pt") == ["bytes=1000-"]


def test_endless_response_does_not_fill_the_disk(server: Server, tmp_path: Path) -> None:
    def endless(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        if path != "model.yaml":
            return False
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(b"x" * 4096)
        except OSError:
            return True

    server.behave = endless

    with pytest.raises(BundleError, match="the size of the file"):
        pull(model(), tmp_path, base_url=server.url)

    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) == 0


def test_unreachable_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"refused|pull again"):
        pull(model(), tmp_path, base_url="http://127.0.0.1:1")


class FullDisk:
    """A file that takes 50 000 bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.room = 50_000

    def write(self, block: bytes) -> None:
        self.room -= len(block)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.file.write(block)


def test_full_disk_is_reported(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.open

    @contextmanager
    def opened(path: Path, mode: str = "r") -> Iterator[Any]:
        with original(path, mode) as file:
            yield FullDisk(file) if path.suffix == ".part" and "b" in mode and mode != "rb" else file

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(BundleError, match=r"No space left on device.*free disk space and pull again"):
        pull(model(), tmp_path, base_url=server.url)
    monkeypatch.undo()

    assert not (tmp_path / "flow.pt").exists()
    assert server.asked("flow.pt") == [None]


def test_too_little_disk_space_is_reported_before_download(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"needs 1000000.0 GB more"):
        pull(model(flow__pt={"size_bytes": 10**15}), tmp_path, base_url=server.url)

    assert server.requests == []


def test_file_in_place_of_the_directory_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")

    with pytest.raises(BundleError, match="cannot be written"):
        pull(model(), tmp_path / "x", base_url=server.url)


def test_wrong_pull_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"there are: cosyvoice2-0\.5b, .*, cosyvoice-300m-instruct"):
        published("cosyvoice9")
    with pytest.raises(ConfigError, match="source"):
        pull(published("cosyvoice2-0.5b"), tmp_path, "elsewhere")
    with pytest.raises(ConfigError, match="base_url"):
        pull(published("cosyvoice2-0.5b"), tmp_path, base_url="file:///etc")


@pytest.mark.parametrize("published_model", PUBLISHED, ids=lambda m: m.name)
def test_manifest_is_consistent(published_model: PublishedModel) -> None:
    assert published(published_model.name) is published_model
    assert tuple(published_model.urls) == SOURCES
    assert all(url.startswith("https://") and url.endswith("/{path}") for url in published_model.urls.values())
    paths = [file.path for file in published_model.files]
    assert len(set(paths)) == len(paths)
    for file in published_model.files:
        assert not Path(file.path).is_absolute()
        assert ".." not in Path(file.path).parts
        assert file.sha256 is None or (len(file.sha256) == 64 and int(file.sha256, 16) >= 0)
        assert file.url is None or (file.url.startswith("https://") and file.sha256)
    unrecorded = {file.path for file in published_model.weights if not file.sha256}
    networks = {"spk2info.pt", "hift.pt", "flow.pt", "llm.pt"}
    assert unrecorded == {
        "cosyvoice-300m": networks,
        "cosyvoice-300m-sft": {"spk2info.pt"},
        "cosyvoice-300m-instruct": {*networks, "speech_tokenizer_v1.onnx"},
    }.get(published_model.name, set())
    is_v1 = published_model.name.startswith("cosyvoice-300m")
    assert is_v1 == ("multilingual.tiktoken" in paths)
    assert {"llm.pt", "flow.pt", "hift.pt", "campplus.onnx"} <= set(paths)


def test_verdict_depends_on_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()

    assert ModelFile("x", 3, right).judge(tmp_path / "x") is Verdict.VERIFIED
    assert ModelFile("x", 3, "0" * 64).judge(tmp_path / "x") is Verdict.UNKNOWN
    assert ModelFile("x", 3).judge(tmp_path / "x") is Verdict.UNKNOWN
    assert ModelFile("x", 4, right).judge(tmp_path / "x") is Verdict.WRONG_SIZE


# -- servers that cannot be trusted -----------------------------------------------------------------------------------


def with_password(server: Server) -> str:
    return server.url.replace("http://", "http://me:a-secret%40word@") + "/"


@pytest.mark.parametrize("status", [404, 503])
def test_server_text_is_sanitized(server: Server, tmp_path: Path, status: int) -> None:
    def escapes(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.send_response(status, "\x1b[2J\x1b]0;owned\x07")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    server.behave = escapes
    with pytest.raises(BundleError, match=str(status)) as refused:
        pull(model(), tmp_path, base_url=server.url)
    assert refused.value.message.isprintable()


def test_garbled_status_line_is_sanitized(server: Server, tmp_path: Path) -> None:
    def garbles(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.wfile.write(b"\x1b[2J owned\r\n\r\n")
        handler.close_connection = True
        return True

    server.behave = garbles
    with pytest.raises(BundleError) as refused:
        pull(model(), tmp_path, base_url=server.url)
    assert refused.value.message.isprintable()


def test_url_password_is_sent_and_not_printed(server: Server, tmp_path: Path) -> None:
    sent: list[str | None] = []

    def refuses(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        sent.append(handler.headers.get("Authorization"))
        handler.send_response(403)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    server.behave = refuses
    with pytest.raises(BundleError, match="answers 403") as refused:
        pull(model(), tmp_path, base_url=with_password(server) + "?token=hidden")
    assert sent == [f"Basic {base64.b64encode(b'me:a-secret@word').decode()}"]
    for secret in ("secret", "me:", "hidden"):
        assert secret not in refused.value.message


def test_redirect_does_not_forward_the_password(server: Server, tmp_path: Path) -> None:
    sent: list[str | None] = []

    def redirects(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        if path.startswith("away/"):
            sent.append(handler.headers.get("Authorization"))
            answer(handler, server.bodies.get(path.removeprefix("away/")), start)
        else:
            handler.send_response(302)
            handler.send_header("Location", f"{server.url}/away/{path}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        return True

    server.behave = redirects
    pull(model(), tmp_path, base_url=with_password(server).rstrip("/"))
    assert set(sent) == {None}


@pytest.fixture
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds a second more."""
    seconds = itertools.count()
    monkeypatch.setattr(pull_module, "clock", lambda: float(next(seconds)))


@pytest.mark.usefixtures("quick_clock")
def test_slow_server_is_given_up(server: Server, tmp_path: Path) -> None:
    hung_up = threading.Event()

    def drips(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(10**9))
        handler.send_header("Content-Range", f"bytes {start}-")
        handler.end_headers()
        try:
            while not hung_up.wait(0.001):
                handler.wfile.write(b"x")
        except OSError:
            pass
        handler.close_connection = True
        return True

    server.behave = drips
    with pytest.raises(BundleError, match="less than 4096 bytes per second"):
        pull(model(flow__pt={"size_bytes": 10**6}, model__yaml={"size_bytes": 10**6}), tmp_path, base_url=server.url)
    hung_up.set()
    assert len(server.requests) == 3


@pytest.mark.usefixtures("quick_clock")
def test_one_byte_per_connection_is_given_up(server: Server, tmp_path: Path) -> None:
    def one_byte(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        answer(handler, server.bodies[path], start, sent=1)
        handler.close_connection = True
        return True

    server.behave = one_byte
    with pytest.raises(BundleError, match="pull again"):
        pull(model(), tmp_path, base_url=server.url)
    assert len(server.requests) == 3


def test_slow_response_header_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "OPEN_TIMEOUT_S", 0.2)
    done = threading.Event()

    def drips(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        try:
            while not done.wait(0.01):
                handler.wfile.write(b"x")
                handler.wfile.flush()
        except OSError:
            pass
        handler.close_connection = True
        return True

    server.behave = drips
    try:
        with pytest.raises(BundleError, match="no complete response header"):
            pull(model(), tmp_path, base_url=server.url)
    finally:
        done.set()


def test_file_in_chunks_is_refused(server: Server, tmp_path: Path) -> None:
    def chunked(handler: BaseHTTPRequestHandler, path: str, start: int) -> bool:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"1")  # the line of the first chunk never ends
        handler.close_connection = True
        return True

    server.behave = chunked
    with pytest.raises(BundleError, match="does not tell its size"):
        pull(model(), tmp_path, base_url=server.url)
