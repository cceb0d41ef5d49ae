"""What a reader of a stream raises when the text that decides has not arrived."""

from __future__ import annotations

import re

Patience = tuple[int, re.Pattern[str]]
"""How many more characters decide nothing if the pattern is not found in them."""

NO_PATIENCE: Patience = 0, re.compile(".", re.DOTALL)


class UndecidedError(Exception):
    """The text that decides must arrive first.

    Attributes:
        patience: Which text decides nothing; None if no segment ends before what is undecided, so that it can wait for
            the text that ends one.
    """

    def __init__(self, patience: Patience | None = NO_PATIENCE) -> None:
        super().__init__()
        self.patience = patience
