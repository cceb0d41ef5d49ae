"""The audit log (logger ``tts_worker.audit``): one line per change of the worker, with the name of the API key."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tts_worker.callers import ApiScope, current_caller
from tts_worker.errors import error_info

audit_log = logging.getLogger("tts_worker.audit")


def admin_action(action: str, subject: str) -> AbstractContextManager[None]:
    """Require the scope "admin" for the block and log its outcome; raises as ``audited`` does."""
    return audited(action, subject, ApiScope.ADMIN)


@contextmanager
def audited(action: str, subject: str, scope: ApiScope) -> Iterator[None]:
    """Require a scope for the block and log its outcome.

    Raises:
        Forbidden: The caller's key lacks the scope.
    """
    caller = current_caller()
    outcome = "done"
    try:
        caller.require(scope)
        yield
    except BaseException as error:
        outcome = error_info(error).code.value
        raise
    finally:
        audit_log.info(
            "%s %r over %s by key %s: %s", action, subject[:64], caller.transport, caller.key or "-", outcome
        )
