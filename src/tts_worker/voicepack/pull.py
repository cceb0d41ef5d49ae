"""Downloads of published model directories: resumed where they stopped, checked before they count.

Owns one file's way from a URL into its place: a ``.part`` beside it, HTTP ranges, size and SHA-256, then the name. A
file under its own name is whole; whoever reads a half-pulled directory sees missing files, never broken ones.
It must not know what a model is; the manifest says which files there are.
"""

from __future__ import annotations

import base64
import http.client
import queue
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tts_worker.errors import BundleError, ConfigError
from tts_worker.voicepack.manifest import ModelFile, Need, PublishedModel, Verdict, published
from tts_worker.voicepack.report import Problem, Report

SOURCES = ("huggingface", "modelscope")
BLOCK_BYTES = 1 << 20
TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 60.0
MIN_BYTES_PER_S = 4_096
"""A server that sends less over ``TIMEOUT_S``, or in a connection, might never end."""
FRUITLESS_TRIES = 3
"""So many connections in a row may end without enough bytes before a file is given up."""

_clock = time.monotonic


@dataclass(frozen=True)
class Progress:
    """``file`` of the model, bytes that lie on the disk of it, and its size."""

    file: str
    done_bytes: int
    size_bytes: int


Listener = Callable[[Progress], None]


def pull(
    name: str,
    dest: Path,
    source: str = "huggingface",
    *,
    rl: bool = False,
    base_url: str | None = None,
    progress: Listener | None = None,
) -> Report:
    """Bring the published model ``name`` into the directory ``dest``. What is there and verified is not fetched again.

    ``rl``: also the reinforcement-tuned language model. ``base_url``: a mirror with the same paths, in place of
    ``source``. The report notes files whose hash is not recorded. Raises UnknownModel, ConfigError (source, URL),
    BundleError for what cannot be fetched or is not what was published; calling again goes on where it stopped.
    """
    return pull_model(published(name), dest, source, rl=rl, base_url=base_url, progress=progress)


def pull_model(
    model: PublishedModel,
    dest: Path,
    source: str = "huggingface",
    *,
    rl: bool = False,
    base_url: str | None = None,
    progress: Listener | None = None,
) -> Report:
    """``pull`` for a manifest entry."""
    if base_url is None and source not in model.urls:
        raise ConfigError(f"source: there is no {source[:64]!r}; choose one of: {', '.join(model.urls)}")
    template = model.urls[source] if base_url is None else f"{base_url.rstrip('/')}/{{path}}"
    if urllib.parse.urlsplit(template).scheme not in ("http", "https"):
        raise ConfigError("base_url: must begin with https:// or http://")
    wanted = [file for file in model.files if rl or file.need is Need.ALWAYS]
    problems = []
    try:
        dest.mkdir(parents=True, exist_ok=True)
        _must_have_room(dest, wanted)
        for file in wanted:
            url = template.format(path=urllib.parse.quote(file.path))
            verdict = _fetch(file, dest / file.path, url, file in model.weights, progress or (lambda _: None))
            if verdict is Verdict.UNKNOWN:
                problems.append(Problem(file.path, "its hash is not the recorded one: another revision", fatal=False))
    except OSError as error:
        raise BundleError(
            f"{dest}: cannot be written ({error.strerror or error}); free some room and pull again"
        ) from None
    return Report(dest, tuple(problems))


def _must_have_room(dest: Path, wanted: list[ModelFile]) -> None:
    missing = 0
    for file in wanted:
        for there in (dest / file.path, _part(dest / file.path)):
            if there.is_file():
                missing -= min(there.stat().st_size, file.size_bytes)
                break
        missing += file.size_bytes
    free = shutil.disk_usage(dest).free
    if missing > free:
        raise BundleError(f"{dest}: needs {missing / 1e9:.1f} GB more, but the disk has {free / 1e9:.1f} GB left")


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _fetch(file: ModelFile, target: Path, url: str, strict: bool, progress: Listener) -> Verdict:
    """Make ``target`` the published file. ``strict``: only the recorded hash will do."""

    def tell(done_bytes: int) -> None:
        progress(Progress(file.path, done_bytes, file.size_bytes))

    if target.is_file():
        verdict = file.judge(target, tell)
        if verdict is Verdict.VERIFIED or (verdict is Verdict.UNKNOWN and not strict):
            tell(file.size_bytes)
            return verdict
    part = _part(target)
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in ("resumed", "fresh"):
        if attempt == "fresh":
            part.unlink(missing_ok=True)
        _download(url, part, file.size_bytes, tell)
        verdict = file.judge(part)
        if verdict is Verdict.VERIFIED or (verdict is Verdict.UNKNOWN and (not strict or file.sha256 is None)):
            part.replace(target)
            return verdict
    part.unlink(missing_ok=True)
    found = "another size" if verdict is Verdict.WRONG_SIZE else "another SHA-256"
    raise BundleError(
        f"{file.path}: what {urllib.parse.urlsplit(_shown(url)).netloc} sends has {found} than what was published"
    )


class _Broken(Exception):
    """The connection could not be made or did not last. Not the disk's fault."""


def _download(url: str, part: Path, size_bytes: int, tell: Callable[[int], None]) -> None:
    """Fill ``part`` up to ``size_bytes``, going on where it ends as long as every few connections bring enough."""
    if part.is_file() and part.stat().st_size > size_bytes:
        part.unlink()
    fruitless = 0
    while (have := part.stat().st_size if part.is_file() else 0) < size_bytes:
        problem = "the connection ended early"
        began_s = _clock()
        try:
            _transfer(url, part, have, size_bytes, tell)
        except _Broken as error:
            problem = str(error)
        now = part.stat().st_size if part.is_file() else 0
        enough = now > have and now - have >= MIN_BYTES_PER_S * (_clock() - began_s)
        fruitless = 0 if enough else fruitless + 1
        if fruitless >= FRUITLESS_TRIES:
            raise BundleError(f"{_shown(url)}: {problem}; pull again to go on where this stopped")


def _transfer(url: str, part: Path, have: int, size_bytes: int, tell: Callable[[int], None]) -> None:
    request = _request(url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = _open(request)
    except urllib.error.HTTPError as error:
        error.close()
        answered = f"the server answers {error.code} {_plain(error.reason)}"
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _Broken(answered) from None
        if error.code == 416:  # the file on the server ends where ours does, too early
            raise BundleError(f"{_shown(url)}: ends after {have} bytes; {size_bytes} were published") from None
        raise BundleError(f"{_shown(url)}: {answered}") from None
    except urllib.error.URLError as error:
        raise _Broken(_plain(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_plain(error) or type(error).__name__) from None
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if resumed else 0
        with part.open("ab" if resumed else "wb") as out:
            window_s = _clock()
            window_bytes = done
            # One byte beyond the size is enough to see that it is wrong: a server without end fills no disk.
            while block := _read(response, min(BLOCK_BYTES, size_bytes + 1 - done)):
                out.write(block)
                done += len(block)
                tell(min(done, size_bytes))
                spent_s = _clock() - window_s
                if spent_s >= TIMEOUT_S:
                    if done - window_bytes < MIN_BYTES_PER_S * spent_s:
                        raise _Broken(f"the server sends less than {MIN_BYTES_PER_S} bytes a second")
                    window_s = _clock()
                    window_bytes = done


def _request(url: str) -> urllib.request.Request:
    """A request in which a user and a password of the URL are a header, that a redirect does not take along."""
    parts = urllib.parse.urlsplit(url)
    at = parts.netloc.rpartition("@")
    request = urllib.request.Request(
        parts._replace(netloc=at[2]).geturl(), headers={"User-Agent": "tts-worker", "Accept-Encoding": "identity"}
    )
    if at[1]:
        credentials = urllib.parse.unquote(at[0]).encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(credentials).decode()}")
    return request


def _open(request: urllib.request.Request) -> Any:
    """The response, once its header is there. A socket's timeout starts anew with every byte, so a server that drips
    its header is given up here; the thread that waits for it ends with the process.

    Raises what urllib raises, and TimeoutError.
    """
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def wait() -> None:
        try:
            answer.put(_opener().open(request, timeout=TIMEOUT_S))
        except Exception as error:
            answer.put(error)

    threading.Thread(target=wait, name="pull", daemon=True).start()
    try:
        response = answer.get(timeout=OPEN_TIMEOUT_S)
    except queue.Empty:
        raise TimeoutError(f"no complete answer within {OPEN_TIMEOUT_S:g} s") from None
    if isinstance(response, Exception):
        raise response
    return response


def _read(response: Any, size_bytes: int) -> bytes:
    """What has arrived, at most ``size_bytes``: waiting for all of them would hide how slowly they come."""
    try:
        return bytes(response.read1(size_bytes))
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_plain(error) or type(error).__name__) from None


def _shown(url: str) -> str:
    """A URL for messages: without user, password, query and fragment, which may hold secrets."""
    parts = urllib.parse.urlsplit(url)
    return _plain(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl())


def _plain(text: object) -> str:
    """Text of a server for a terminal: one line without control characters."""
    return "".join(character if character.isprintable() else "?" for character in str(text)[:200])


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS with redirects and proxies, and no other scheme: a redirect cannot lead to a local file."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener
