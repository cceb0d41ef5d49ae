"""TLS of the HTTP server: certificates that can be renewed without a restart, and certificates of clients."""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from tts_worker.errors import ConfigError
from tts_worker.server.file_watch import FileWatch

log = logging.getLogger(__name__)

_PEM_BLOCK = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
_EXPLICIT_VERSION = 0xA0
_UTC_TIME = 0x17


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


def expiry_s(certificate: Path) -> float:
    """Return when the first certificate of a PEM file expires, as a Unix time; NaN if it cannot be read."""
    try:
        block = _PEM_BLOCK.search(certificate.read_text("ascii", "replace"))
        der = ssl.PEM_cert_to_DER_cert(block[0]) if block is not None else b""
        # RFC 5280: Certificate { tbsCertificate { [0] version, serial, algorithm, issuer, validity { from, to } } }
        _, start, _ = _der_element(der, _der_element(der, 0)[1])
        tag, _, end = _der_element(der, start)
        fields_before = 3 if tag == _EXPLICIT_VERSION else 2
        for _ in range(fields_before):
            _, _, end = _der_element(der, end)
        _, _, end_of_begin = _der_element(der, _der_element(der, end)[1])
        tag, start, end = _der_element(der, end_of_begin)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(der[start:end].decode("ascii"), form).replace(tzinfo=timezone.utc).timestamp()
    except (OSError, ValueError, IndexError):
        return math.nan


def _der_element(der: bytes, position: int) -> tuple[int, int, int]:
    """Return tag, begin and end of the content of the element at ``position`` (X.690). Raises IndexError."""
    length = der[position + 1]
    start = position + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[position + 2 : start], "big")
    return der[position], start, start + length


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """Return the common name of a certificate that was verified, as ``ssl`` describes it."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((value for part in subject for name, value in part if name == "commonName"), None)
