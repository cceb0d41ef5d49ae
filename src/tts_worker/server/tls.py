"""TLS of the HTTP server: certificates that can be renewed without a restart, and certificates of clients."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

from tts_worker.errors import ConfigError
from tts_worker.server.file_watch import FileWatch

log = logging.getLogger(__name__)


class TlsContext(FileWatch):
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
        super().__init__(certificate, key, client_ca)
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self.context = self._load()

    def read_again(self) -> None:
        try:
            self.context = self._load()
            log.info("the TLS certificate was read again")
        except ConfigError as error:
            log.error("the TLS certificate is unchanged: %s", error.message)

    def _load(self) -> ssl.SSLContext:
        context = load_context("server", self._certificate, self._key, self._client_ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # Tickets follow the handshake. Clients that read and write on two threads (websockets.sync and the SDKs on it)
        # may read one while they send the request, which OpenSSL then never sends (CPython issue 143756). They also
        # delay that request by 40 ms; connections are too long for a resumed handshake to pay.
        context.num_tickets = 0
        return context


def load_context(section: str, certificate: Path, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    """Return a server's TLS context with these files, which are settings of ``section``.

    Raises:
        ConfigError: A file cannot be used; names the setting.
    """
    for name, file in (("tls_certificate", certificate), ("tls_key", key), ("tls_client_ca", client_ca)):
        if file is not None:
            _check_readable(f"{section}.{name}", file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    settings = f"{section}.tls_certificate, {section}.tls_key"
    try:
        # Without a password callback OpenSSL would ask on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
        if client_ca is not None:
            settings = f"{section}.tls_client_ca"
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        reason = error.reason or "not a PEM file, or protected by a password"
        raise ConfigError(f"{settings}: cannot be used ({reason})") from None
    return context


def _check_readable(setting: str, file: Path) -> None:
    """Raise ConfigError for a file that cannot be read: the errors of OpenSSL do not name it."""
    try:
        file.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{setting}: {file} cannot be read: {error.strerror}") from None


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """Return the common name of a certificate that was verified, as ``ssl`` describes it."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((value for part in subject for name, value in part if name == "commonName"), None)
