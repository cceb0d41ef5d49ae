"""TLS of the HTTP server: certificates that can be renewed without a restart, and certificates of clients."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import anyio

from tts_worker.errors import ConfigError

log = logging.getLogger(__name__)

_RELOAD_INTERVAL_S = 1.0


class TlsContext:
    """The TLS context of new connections; open ones keep theirs.

    Attributes:
        context: The current context.

    Args:
        certificate: PEM file with the certificate and its chain.
        key: PEM file with the private key; None if it is in ``certificate``.
        client_ca: PEM file of the authorities that certificates of clients must be from; None asks for none.

    Raises:
        ConfigError: A file cannot be used; names the setting.
    """

    def __init__(self, certificate: Path, key: Path | None = None, client_ca: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._loaded_stat = self._stat()
        self._reload_requested = asyncio.Event()
        self.context = self._load()

    def reload(self) -> None:
        """Read the files now."""
        self._reload_requested.set()

    async def run(self) -> None:
        """Read the files again when they change, until cancelled. Unusable ones are logged and change nothing."""
        while True:
            with anyio.move_on_after(_RELOAD_INTERVAL_S):
                await self._reload_requested.wait()
            stat = await asyncio.to_thread(self._stat)
            if stat == self._loaded_stat and not self._reload_requested.is_set():
                continue
            self._reload_requested.clear()
            self._loaded_stat = stat
            try:
                self.context = await asyncio.to_thread(self._load)
                log.info("the TLS certificate was read again")
            except ConfigError as error:
                log.error("the TLS certificate is unchanged: %s", error.message)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        setting = "server.tls_certificate, server.tls_key"
        try:
            # Without a password callback OpenSSL would ask on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
            if self._client_ca is not None:
                setting = "server.tls_client_ca"
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            reason = error.reason or "not a PEM file, or protected by a password"
            raise ConfigError(f"{setting}: cannot be used ({reason})") from None
        except OSError as error:
            raise ConfigError(f"{setting}: cannot be read: {error.strerror}") from None
        return context

    def _stat(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(file_stat(file) for file in (self._certificate, self._key, self._client_ca) if file is not None)


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """Return the common name of a certificate that was verified, as ``ssl`` describes it."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((value for part in subject for name, value in part if name == "commonName"), None)


def file_stat(file: Path) -> tuple[int, int, int] | None:
    """Return what changes with the content of a file; None if there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
