"""The audit log (logger ``tts_worker.audit``): one line per change of the worker, with the name of the API key."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tts_worker.callers import ApiScope, current_caller
from tts_worker.errors import error_info

audit_log = logging.getLogger("tts_worker.audit")


@dataclass(slots=True)
class AuditedAction:
    """A change of the worker; ``outcome`` is what the log says of it unless it raises."""

    outcome: str = "done"


@contextmanager
def audited(action: str, subject: str, scope: ApiScope) -> Iterator[AuditedAction]:
    """Require a scope for the block and log its outcome.

    Raises:
        Forbidden: The caller's key lacks the scope.
    """
    caller = current_caller()
    audited_action = AuditedAction()
    try:
        caller.require(scope)
        yield audited_action
    except BaseException as error:
        audited_action.outcome = error_info(error).code.value
        raise
    finally:
        key, outcome = caller.key or "-", audited_action.outcome
        audit_log.info("%s %r over %s by key %s: %s", action, subject[:64], caller.transport, key, outcome)
