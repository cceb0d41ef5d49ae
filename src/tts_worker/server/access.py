"""What ``security.AuthMiddleware`` knows of the paths of a server. Each part of the server adds its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

OWN_TRANSPORT = "http"


def is_among(path: str, known: Collection[str]) -> bool:
    """Whether ``path`` is one of the known paths; one that ends with a slash stands for all below."""
    return path in known or any(path.startswith(folder) for folder in known if folder.endswith("/"))


@dataclass(slots=True)
class PathRules:
    """Rules for paths.

    Attributes:
        transports: Beginning of a path -> its name in metrics and logs, one of a small fixed set.
        public: Paths that are served without a key; they hold no user data.
        uploads: Paths whose requests may contain a recording; one that ends with a slash stands for all below.
        own_auth: Paths whose endpoint authenticates the caller. True if it does so before it accepts the connection,
            which then needs no loopback name either.
        key_schemes: Schemes, in lower case, of a key in ``Authorization``.
        key_headers: Headers of a key besides ``Authorization``.
        key_parameters: Beginnings of paths that accept a key in the URL, as browser clients of some vendors send it.
            All other paths ignore it: URLs end up in the logs of proxies.
    """

    transports: dict[str, str] = field(default_factory=lambda: {"/v1/stream": "websocket"})
    public: set[str] = field(default_factory=lambda: {"/health", "/health/live", "/health/ready"})
    uploads: set[str] = field(default_factory=set)
    own_auth: dict[str, bool] = field(default_factory=dict)
    key_schemes: list[str] = field(default_factory=lambda: ["bearer"])
    key_headers: list[str] = field(default_factory=lambda: ["x-api-key"])
    key_parameters: set[str] = field(default_factory=set)

    def transport_of(self, path: str) -> str:
        """Return the name of a path in metrics and logs."""
        return next((name for prefix, name in self.transports.items() if path.startswith(prefix)), OWN_TRANSPORT)

    def is_upload(self, path: str) -> bool:
        """Whether a request for ``path`` may contain a recording."""
        return is_among(path, self.uploads)

    def has_key_in_url(self, path: str) -> bool:
        """Whether ``path`` accepts a key in the URL."""
        return path.startswith(tuple(self.key_parameters))
