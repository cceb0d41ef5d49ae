"""Print the table of docs/text.md that shows how each class of written English is spoken: the first cases of the tests.

python -m tools.reading_table
"""

from __future__ import annotations

from pathlib import Path

CASES = Path(__file__).parents[1] / "tests" / "data" / "reading" / "english_classes.tsv"
EXAMPLES = 2
"""The largest number of cases of a class in the table."""


def class_cases() -> list[tuple[str, str, str]]:
    """Return class, written text and spoken words of every case, in order."""
    rows = [line.split("\t") for line in CASES.read_text("utf-8").splitlines() if line and line[0] != "#"]
    return [(name, written, spoken) for name, written, spoken in rows]


def table() -> str:
    """Return the Markdown table, a row for each class."""
    examples: dict[str, list[str]] = {}
    for name, written, spoken in class_cases():
        escaped = written.replace("|", r"\|")
        examples.setdefault(name, []).append(f"`{escaped}` {spoken}")
    rows = [f"| {name} | {'; '.join(cases[:EXAMPLES])} |" for name, cases in examples.items()]
    return "\n".join(["| class | written and spoken |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table())
