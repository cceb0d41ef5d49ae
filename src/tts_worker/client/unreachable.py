"""The error of a worker that cannot be reached: what a refused certificate or a wrong scheme has to do with it."""

from __future__ import annotations

import re
import ssl
from urllib.error import URLError

from tts_worker.errors import ConnectionLost

_UNKNOWN_AUTHORITY = ("self-signed", "self signed", "unable to get")
_REFUSED_BY_GRPC = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([\w \-]+)|(Hostname Verification) Check failed")
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


def unreachable(error: BaseException) -> ConnectionLost:
    """Return the typed error of a connection that failed with ``error``."""
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused_certificate(error.verify_message, "SSL_CERT_FILE")
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return ConnectionLost("the server there does not use TLS: use ws://, http:// or grpc:// if that is intended")
    if isinstance(error, ssl.SSLError) and error.reason:
        return _unreachable(f"{type(error).__name__}: {error.reason}")
    return _unreachable(type(error).__name__)


def unreachable_over_grpc(status: str, details: str) -> ConnectionLost:
    """Return the typed error of a gRPC call that failed with this status."""
    if (refused := _REFUSED_BY_GRPC.search(details)) is not None:
        reason = "it is for another host name" if refused[2] else refused[1]
        return _refused_certificate(reason, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    return _unreachable(status)


def _unreachable(reason: str) -> ConnectionLost:
    return ConnectionLost(f"the worker cannot be reached ({reason}): is it running?")


def _refused_certificate(reason: str, variable: str) -> ConnectionLost:
    hint = f"; {variable} names the certificate of a private CA" if reason.startswith(_UNKNOWN_AUTHORITY) else ""
    return ConnectionLost(f"the worker's TLS certificate is refused: {reason.rstrip('. ')}{hint}")
