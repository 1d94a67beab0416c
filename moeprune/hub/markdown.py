"""Small pieces of Markdown and YAML, safe for any name a user may give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# CommonMark lets a backslash escape any ASCII punctuation; these are the ones that mean something.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!${}@+=])")
# Front matter of the source that stays true of a pruned copy.
COPIED_KEYS = ("license", "license_name", "license_link", "language", "pipeline_tag")


def escape(text: object) -> str:
    """``text`` on one line, shown literally by a Markdown renderer, in a table cell too."""
    printable = "".join(char if char.isprintable() else " " for char in str(text))
    line = _SPECIAL.sub(r"\\\1", " ".join(printable.split()))
    # At the beginning of a line "1. " and "- " would start a list, "---" a rule.
    return re.sub(r"^(\d*)([.)-])(?=[\s-]|$)", r"\1\\\2", line)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of Markdown cells, all but the first column to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def ranges(ids: Sequence[int]) -> str:
    """Ascending ids with runs shortened: ``0-3, 5, 7-8``."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def size(num_bytes: float) -> str:
    """Bytes for people, in powers of 1000: ``61.1 GB``."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        # 999.95 would round to 1000.0 of the smaller unit.
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def copied_front_matter(readme: str | None) -> list[str]:
    """Lines of a README's YAML front matter that state licence, language and task, verbatim.

    A key whose value uses an anchor or alias is left out: it may refer to what is not copied.
    """
    text = (readme or "").removeprefix("\ufeff").replace("\r\n", "\n")
    match = re.match(r"---[ \t]*\n(.*?\n)---[ \t]*(\n|$)", text, re.DOTALL)
    if match is None:
        return []
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in match[1].splitlines():
        key = re.match(r"([A-Za-z_][\w-]*)[ \t]*:(\s|$)", line)
        if key:
            current = blocks.setdefault(key[1], [])
        if current is not None and line.strip() and not line.startswith("#"):
            current.append(line.rstrip())
    lines: list[str] = []
    for name in COPIED_KEYS:
        block = blocks.get(name, [])
        if block and not any(re.search(r"(:|-)\s+[&*!]", line) for line in block):
            lines += block
    return lines
