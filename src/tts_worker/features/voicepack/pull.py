"""Resumable, verified downloads of published model directories.

A file is downloaded to ``NAME.part`` with HTTP ranges, its size and SHA-256 are checked, and it is renamed. An
interrupted download leaves missing files, never incomplete ones.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tts_worker.errors import BundleError, ConfigError
from tts_worker.features.voicepack.manifest import ModelFile, Need, PublishedModel, Verdict
from tts_worker.models.bundles.report import Problem, Report

SOURCES = ("huggingface", "modelscope")
BLOCK_BYTES = 1 << 20
TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 60.0
MIN_BYTES_PER_S = 4_096
"""Minimum average rate over ``TIMEOUT_S`` or a connection; a slower server is given up."""
MAX_FAILED_ATTEMPTS = 3
"""Consecutive connections below the minimum rate after which the download of a file fails."""

clock = time.monotonic


@dataclass(frozen=True)
class Progress:
    """Progress of one file: name, bytes on disk, and total size."""

    file: str
    done_bytes: int
    size_bytes: int


Listener = Callable[[Progress], None]


def pull(
    model: PublishedModel,
    dest: Path,
    source: str = "huggingface",
    *,
    rl: bool = False,
    base_url: str | None = None,
    progress: Listener | None = None,
) -> Report:
    """Download a published model to ``dest``. Verified files are kept; a repeated call resumes.

    Args:
        model: The published model.
        dest: Target directory.
        source: Key of the model's URLs.
        rl: Also download the reinforcement-tuned language model.
        base_url: Mirror with the same paths, instead of ``source``.
        progress: Progress callback.

    Returns:
        A report that notes files without a matching recorded hash.

    Raises:
        ConfigError: The source or URL is invalid.
        BundleError: A file cannot be downloaded or written, or differs from the published one.
    """
    if base_url is None and source not in model.urls:
        raise ConfigError(f"source: there is no {source[:64]!r}; choose one of: {', '.join(model.urls)}")
    template = model.urls[source] if base_url is None else f"{base_url.rstrip('/')}/{{path}}"
    if urllib.parse.urlsplit(template).scheme not in ("http", "https"):
        raise ConfigError("base_url: must begin with https:// or http://")
    files = [file for file in model.files if rl or file.need is Need.ALWAYS]
    problems = []
    try:
        dest.mkdir(parents=True, exist_ok=True)
        urls = {file.path: template.format(path=urllib.parse.quote(file.path)) for file in files}
        if base_url is None:
            urls |= {file.path: file.url for file in files if file.url is not None}
        weights = {file.path for file in model.weights}
        files = [_sized(file, dest / file.path, urls[file.path]) for file in files]
        _check_disk_space(dest, files)
        for file in files:
            is_weight = file.path in weights
            verdict = _fetch(file, dest / file.path, urls[file.path], is_weight, progress or (lambda _: None))
            if verdict is Verdict.UNKNOWN:
                note = "no hash is recorded" if file.sha256 is None else "its hash is not the recorded one"
                problems.append(Problem(file.path, f"{note}: it may be another revision", fatal=False))
    except OSError as error:
        raise BundleError(
            f"{dest}: cannot be written ({error.strerror or error}); free disk space and pull again"
        ) from None
    return Report(dest, tuple(problems))


def _sized(file: ModelFile, target: Path, url: str) -> ModelFile:
    """Return ``file`` with a size: the recorded one, that of the complete file on disk, or that of the server."""
    if file.size_bytes is not None:
        return file
    size_bytes = target.stat().st_size if target.is_file() else _published_bytes(url)
    return replace(file, size_bytes=size_bytes)


def _published_bytes(url: str) -> int:
    """Ask the server for the size of a file."""
    for attempt in range(MAX_FAILED_ATTEMPTS):
        try:
            with _opened(_request(url), url) as response:
                size = response.headers.get("Content-Length", "")
        except _ConnectionFailed as error:
            if attempt == MAX_FAILED_ATTEMPTS - 1:
                raise BundleError(f"{_redacted(url)}: {error}; pull again to resume") from None
            continue
        if not size.isdecimal() or not int(size):
            raise BundleError(f"{_redacted(url)}: the server does not tell the size of the file")
        return int(size)
    raise AssertionError("the loop returns or raises")


def _check_disk_space(dest: Path, files: list[ModelFile]) -> None:
    missing_bytes = 0
    for file in files:
        assert file.size_bytes is not None
        for existing in (dest / file.path, _part(dest / file.path)):
            if existing.is_file():
                missing_bytes -= min(existing.stat().st_size, file.size_bytes)
                break
        missing_bytes += file.size_bytes
    free_bytes = shutil.disk_usage(dest).free
    if missing_bytes > free_bytes:
        needed_gb = missing_bytes / 1e9
        raise BundleError(f"{dest}: needs {needed_gb:.1f} GB more, but the disk has {free_bytes / 1e9:.1f} GB left")


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _fetch(file: ModelFile, target: Path, url: str, strict: bool, progress: Listener) -> Verdict:
    """Download ``target`` unless it is complete. ``strict``: a recorded hash must match."""
    size_bytes = file.size_bytes
    assert size_bytes is not None
    strict = strict and file.sha256 is not None

    def report(done_bytes: int) -> None:
        progress(Progress(file.path, done_bytes, size_bytes))

    if target.is_file():
        verdict = file.judge(target, report)
        if verdict is Verdict.VERIFIED or (verdict is Verdict.UNKNOWN and not strict):
            report(size_bytes)
            return verdict
    part = _part(target)
    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in ("resumed", "fresh"):
        if attempt == "fresh":
            part.unlink(missing_ok=True)
        _download(url, part, size_bytes, report)
        verdict = file.judge(part)
        if verdict is Verdict.VERIFIED or (verdict is Verdict.UNKNOWN and not strict):
            part.replace(target)
            return verdict
    part.unlink(missing_ok=True)
    difference = "size" if verdict is Verdict.WRONG_SIZE else "SHA-256"
    host = urllib.parse.urlsplit(_redacted(url)).netloc
    raise BundleError(f"{file.path}: the {difference} of the file from {host} differs from the published one")


class _ConnectionFailed(Exception):
    """The connection could not be made or was lost; not an error of the disk."""


def _download(url: str, part: Path, size_bytes: int, report: Callable[[int], None]) -> None:
    """Fill ``part`` up to ``size_bytes``, resuming after lost connections."""
    if part.is_file() and part.stat().st_size > size_bytes:
        part.unlink()
    failed_attempts = 0
    while (start_bytes := part.stat().st_size if part.is_file() else 0) < size_bytes:
        problem = "the connection ended early"
        began_s = clock()
        try:
            _transfer(url, part, start_bytes, size_bytes, report)
        except _ConnectionFailed as error:
            problem = str(error)
        received_bytes = (part.stat().st_size if part.is_file() else 0) - start_bytes
        is_sufficient = received_bytes > 0 and received_bytes >= MIN_BYTES_PER_S * (clock() - began_s)
        failed_attempts = 0 if is_sufficient else failed_attempts + 1
        if failed_attempts >= MAX_FAILED_ATTEMPTS:
            raise BundleError(f"{_redacted(url)}: {problem}; pull again to resume")


def _transfer(url: str, part: Path, start_bytes: int, size_bytes: int, report: Callable[[int], None]) -> None:
    request = _request(url)
    if start_bytes:
        request.add_header("Range", f"bytes={start_bytes}-")
    beyond_end = f"ends after {start_bytes} bytes; {size_bytes} were published"
    with _opened(request, url, beyond_end) as response:
        if response.headers.get("Transfer-Encoding"):  # the line before a chunk could take for ever
            raise BundleError(f"{_redacted(url)}: the server sends the file in chunks and does not tell its size")
        content_range = response.headers.get("Content-Range", "")
        is_resumed = response.status == 206 and content_range.startswith(f"bytes {start_bytes}-")
        done_bytes = start_bytes if is_resumed else 0
        with part.open("ab" if is_resumed else "wb") as out:
            window_began_s = clock()
            window_start_bytes = done_bytes
            # One byte beyond the size shows that it is wrong, so an endless response cannot fill the disk.
            while block := _read(response, min(BLOCK_BYTES, size_bytes + 1 - done_bytes)):
                out.write(block)
                done_bytes += len(block)
                report(min(done_bytes, size_bytes))
                window_s = clock() - window_began_s
                if window_s >= TIMEOUT_S:
                    if done_bytes - window_start_bytes < MIN_BYTES_PER_S * window_s:
                        raise _ConnectionFailed(f"the server sends less than {MIN_BYTES_PER_S} bytes per second")
                    window_began_s = clock()
                    window_start_bytes = done_bytes


def _request(url: str) -> urllib.request.Request:
    """Build a request that sends credentials of the URL as a header, which redirects do not forward."""
    parts = urllib.parse.urlsplit(url)
    userinfo, at_sign, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(
        parts._replace(netloc=host).geturl(), headers={"User-Agent": "tts-worker", "Accept-Encoding": "identity"}
    )
    if at_sign:
        credentials = urllib.parse.unquote(userinfo).encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(credentials).decode()}")
    return request


def _opened(request: urllib.request.Request, url: str, beyond_end: str = "") -> Any:
    """Open the response.

    Args:
        request: The request.
        url: Its URL, for messages.
        beyond_end: What is wrong if the requested range is beyond the end of the server's file.

    Raises:
        _ConnectionFailed: The server cannot be reached, or may answer later.
        BundleError: The server refuses the request.
    """
    try:
        return _open(request)
    except urllib.error.HTTPError as error:
        error.close()
        status = f"the server answers {error.code} {_printable(error.reason)}"
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _ConnectionFailed(status) from None
        problem = beyond_end if error.code == 416 and beyond_end else status
        raise BundleError(f"{_redacted(url)}: {problem}") from None
    except urllib.error.URLError as error:
        raise _ConnectionFailed(_printable(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionFailed(_printable(error) or type(error).__name__) from None


def _open(request: urllib.request.Request) -> Any:
    """Open the response and wait for its header.

    A socket timeout restarts with every byte, so a server that sends its header slowly needs a separate deadline; the
    waiting daemon thread ends with the process. Raises urllib's errors and TimeoutError.
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
        raise TimeoutError(f"no complete response header within {OPEN_TIMEOUT_S:g} s") from None
    if isinstance(response, Exception):
        raise response
    return response


def _read(response: Any, size_bytes: int) -> bytes:
    """Read the available bytes, at most ``size_bytes``; waiting for more would hide a slow server."""
    try:
        return bytes(response.read1(size_bytes))
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionFailed(_printable(error) or type(error).__name__) from None


def _redacted(url: str) -> str:
    """A URL for messages, without user, password, query and fragment, which may hold secrets."""
    parts = urllib.parse.urlsplit(url)
    return _printable(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl())


def _printable(text: object) -> str:
    """Text of a server as one line without control characters."""
    return "".join(character if character.isprintable() else "?" for character in str(text)[:200])


def _opener() -> urllib.request.OpenerDirector:
    """An opener for HTTP and HTTPS only, with redirects and proxies, so that a redirect cannot read a local file."""
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
