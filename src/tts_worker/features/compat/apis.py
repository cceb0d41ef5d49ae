"""The compatibility APIs as plug-ins of the server, and the answers to errors outside of their own routes.

Such errors concern unknown paths, paths that two APIs share, and requests that are rejected before they reach a route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from tts_worker.errors import ErrorInfo
from tts_worker.features.compat import cartesia, cartesia_wire, cosyvoice, elevenlabs, elevenlabs_wire, openai
from tts_worker.server import responses
from tts_worker.server.limits import ApiLimits
from tts_worker.server.routing import Routes
from tts_worker.session.hub import SessionHub


@dataclass(frozen=True, slots=True)
class CompatApi:
    """The API of a vendor.

    Attributes:
        name: Its name in metrics and logs.
        paths: Its paths; one that ends with a slash stands for all paths below.
        router: Builds its routes.
        error_response: Builds a response from an error and a status; None uses the status of the error's code.
        header: A header that only its clients send.
        sdk: Name that its packages send in ``x-fern-sdk-name``, also without a key.
    """

    name: str
    paths: frozenset[str]
    router: Callable[[SessionHub, ApiLimits], Routes]
    error_response: Callable[[ErrorInfo, int | None], Response] = responses.error_response
    header: str | None = None
    sdk: str | None = None

    def sends(self, headers: Headers) -> bool:
        """Whether a client of this API has sent these headers."""
        has_header = self.header is not None and self.header in headers
        return has_header or (self.sdk is not None and self.sdk in headers.get("x-fern-sdk-name", ""))

    def has_path(self, path: str) -> bool:
        return path in self.paths or any(path.startswith(known) for known in self.paths if known.endswith("/"))


ELEVENLABS = CompatApi(
    "elevenlabs",
    frozenset(
        {
            f"{elevenlabs.PREFIX}/",
            "/v1/text-to-speech/",
            *elevenlabs.CONVERSION_PATHS,
            "/v2/voices",
            "/v2/voices/",
            "/v1/voices/add",
        }
    ),
    elevenlabs.router,
    elevenlabs_wire.error_response,
    "xi-api-key",
    "elevenlabs",
)
CARTESIA = CompatApi(
    "cartesia",
    frozenset({"/tts/", "/voices", "/voices/"}),
    cartesia.router,
    cartesia_wire.error_response,
    "cartesia-version",
)
COSYVOICE = CompatApi("cosyvoice", cosyvoice.PATHS, cosyvoice.router)
OPENAI = CompatApi("openai", frozenset({"/v1/audio/"}), openai.router)

APIS = (ELEVENLABS, CARTESIA, COSYVOICE, OPENAI)


def api_of_path(path: str) -> CompatApi | None:
    """Return the API of a path, None for the worker's own."""
    return next((api for api in APIS if api.has_path(path)), None)


def api_of_client(scope: Scope) -> CompatApi:
    """Detect the API that a client uses by path, else by a header that only its clients send, else OpenAI's."""
    headers = Headers(scope=scope)
    by_header = (api for api in APIS if api.sends(headers))
    return api_of_path(scope["path"]) or next(by_header, OPENAI)


def error_response(scope: Scope, error: ErrorInfo, status: int | None = None) -> Response:
    """Build an error response for the client of ``scope``. ``status``: None uses the status of the error's code."""
    return api_of_client(scope).error_response(error, status)
