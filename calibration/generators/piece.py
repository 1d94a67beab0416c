"""An exercise, the two kinds of function that make and arrange it, and the shared wording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Piece:
    """One exercise: a short title, what is asked, and the answer."""

    title: str
    ask: str
    answer: str

    @classmethod
    def from_lines(cls, title: str, ask: str, lines: Iterable[str]) -> Piece:
        """Make a piece whose answer has one line after the other."""
        return cls(title, ask, "\n".join(lines))


Kind = Callable[[Random, int], Piece]
Layout = Callable[[int, Sequence[Piece]], str]


def pick(options: Sequence[str], turn: int) -> str:
    """Return the option whose turn it is."""
    return options[turn % len(options)]


def join_and(items: Iterable[object]) -> str:
    """Join words or numbers as English does: "a", "a and b", "a, b and c"."""
    words = [str(item) for item in items]
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def plural(n: int, word: str, many: str | None = None) -> str:
    """Return "1 time" or "3 times"; ``many`` is an irregular plural."""
    return f"{n} {word if n == 1 else many or word + 's'}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Make a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)
