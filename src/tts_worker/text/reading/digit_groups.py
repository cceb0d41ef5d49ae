"""Long numbers in groups that are easy to remember."""

from __future__ import annotations

import re

_SIZES = {8: 4, 10: 5, 12: 4}


def groups_of(digits: str) -> list[str]:
    """Return a code in groups: 6 digits as 3 and 3, 7 as 3 and 4, 8 as 4 and 4; up to 5 as one."""
    size = _SIZES.get(len(digits), len(digits) if len(digits) < 6 else 3)
    return re.findall(f".{{{size}}}(?:.$)?|.+", digits)
