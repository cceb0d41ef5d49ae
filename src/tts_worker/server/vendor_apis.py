"""The APIs of other vendors on this server: how their clients are known, and answered on other routes than theirs.

That concerns unknown paths, paths that a vendor's API shares with the worker's own, and requests that are rejected
before they reach a route. Without such APIs every client is one of the worker's own API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from tts_worker.errors import ErrorInfo, TTSWorkerError
from tts_worker.server import responses
from tts_worker.server.access import is_among


@dataclass(frozen=True, slots=True)
class VendorApi:
    """The API of a vendor.

    Attributes:
        name: Its name in metrics and logs.
        paths: Its paths; one that ends with a slash stands for all paths below.
        error_response: Builds a response from an error and a status; None uses the status of the error's code.
        status: Returns the status of an error on a path where it differs from that of its code.
        shared: Its answers for paths of the worker's own API, by path. They take the names in the path.
        header: A header that only its clients send.
        sdk: Name that its packages send in ``x-fern-sdk-name``, also without a key.
    """

    name: str
    paths: frozenset[str]
    error_response: Callable[[ErrorInfo, int | None], Response] = responses.error_response
    status: Callable[[str, TTSWorkerError], int | None] = lambda path, error: None
    shared: Mapping[str, Callable[..., Response]] = field(default_factory=dict)
    header: str | None = None
    sdk: str | None = None

    def sends(self, headers: Headers) -> bool:
        """Whether a client of this API has sent these headers."""
        has_header = self.header is not None and self.header in headers
        return has_header or (self.sdk is not None and self.sdk in headers.get("x-fern-sdk-name", ""))

    def has_path(self, path: str) -> bool:
        return is_among(path, self.paths)


class VendorApis:
    """The vendors' APIs of a server."""

    def __init__(self) -> None:
        self._apis: list[VendorApi] = []

    def add(self, api: VendorApi) -> None:
        self._apis.append(api)

    def of_path(self, path: str) -> VendorApi | None:
        """Return the API of a path, None for the worker's own."""
        return next((api for api in self._apis if api.has_path(path)), None)

    def of_client(self, scope: Scope) -> VendorApi | None:
        """Detect the API that a client uses by path, else by a header that only its clients send."""
        headers = Headers(scope=scope)
        return self.of_path(scope["path"]) or next((api for api in self._apis if api.sends(headers)), None)

    def error_response(self, scope: Scope, error: ErrorInfo, status: int | None = None) -> Response:
        """Build an error response for the client of ``scope``; None uses the status of the error's code."""
        api = self.of_client(scope)
        return (responses.error_response if api is None else api.error_response)(error, status)

    def status(self, scope: Scope, error: TTSWorkerError) -> int | None:
        """Return the status that the API of the path gives an error, if that differs from the worker's."""
        api = self.of_path(scope["path"])
        return None if api is None else api.status(scope["path"], error)

    def answer(self, scope: Scope, path: str, **names: str) -> Response | None:
        """Return the answer of the client's API for a shared path; None for a client of the worker's own API."""
        api = self.of_client(scope)
        answer = None if api is None else api.shared.get(path)
        return None if answer is None else answer(**names)
