"""Print the table of docs/text.md that shows how each class of written English is spoken, from the cases of the tests.

python -m tools.reading_table
"""

from __future__ import annotations

from pathlib import Path

CASES = Path(__file__).parents[1] / "tests" / "data" / "reading" / "english_classes.tsv"


def class_cases() -> list[tuple[str, str, str]]:
    """Return class, written text and spoken words of every case, in order."""
    rows = [line.split("\t") for line in CASES.read_text("utf-8").splitlines() if line and line[0] != "#"]
    return [(name, written, spoken) for name, written, spoken in rows]


def table() -> str:
    """Return the Markdown table."""
    lines = ["| class | written | spoken |", "|---|---|---|"]
    last = ""
    for name, written, spoken in class_cases():
        escaped = written.replace("|", r"\|")
        lines.append(f"| {name if name != last else ''} | `{escaped}` | {spoken} |")
        last = name
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
