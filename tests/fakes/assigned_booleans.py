"""Records the attributes of engines that are assigned a boolean while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import FrameType
from typing import Any

_PACKAGES = ("tts_worker.engine", "tools.engine_simulator")
_CONSTRUCTORS = ("__init__", "__post_init__")


def _engine_classes() -> list[type]:
    """Return the loaded classes of the package, bases before the classes that inherit from them."""
    found: dict[type, None] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(_PACKAGES):
            continue
        for each in vars(module).values():
            if isinstance(each, type) and each.__module__.startswith(_PACKAGES):
                found[each] = None
    return sorted(found, key=lambda each: len(each.__mro__))


def _is_constructed(frame: FrameType | None, subject: object) -> bool:
    """Whether ``frame`` belongs to the constructor of ``subject``, or was called from it."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in _CONSTRUCTORS and any(frame.f_locals.get(name) is subject for name in code.co_varnames[:1]):
            return True
        frame = frame.f_back
    return False


def _recorder(assign: Callable[[object, str, Any], None], found: list[str]) -> Callable[[object, str, Any], None]:
    def record(self: object, name: str, value: Any) -> None:
        assign(self, name, value)
        if isinstance(value, bool) and not _is_constructed(sys._getframe(1), self):
            found.append(f"{type(self).__name__}.{name}")

    return record


@contextmanager
def assigned_booleans() -> Iterator[list[str]]:
    """Yield a list to which ``Class.attribute`` is added when an instance is assigned True or False.

    Constructors, and what they call, assign settings, which do not count. Concerns the classes of ``tts_worker.engine``
    and ``tools.engine_simulator`` that are loaded now and those that inherit from them, on all threads of this process.
    """
    found: list[str] = []
    recorders: set[Callable[[object, str, Any], None]] = set()
    patched: list[tuple[type, Any]] = []
    for each in _engine_classes():
        assign = each.__setattr__
        if assign in recorders or issubclass(each, tuple | Enum):
            continue
        record = _recorder(assign, found)
        recorders.add(record)
        patched.append((each, vars(each).get("__setattr__")))
        each.__setattr__ = record  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        for each, own in patched:
            if own is None:
                del each.__setattr__
            else:
                each.__setattr__ = own  # type: ignore[method-assign]
