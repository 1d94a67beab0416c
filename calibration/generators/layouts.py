"""How the exercises of a document are laid out."""

from __future__ import annotations

from collections.abc import Sequence

from generators.numbers import roman
from generators.piece import Layout, Piece, join_and


def repeated(template: str, between: str = "\n\n") -> Layout:
    """Return the layout that writes every exercise into one template.

    The template may name ``{number}`` (of the document, from 1), ``{i}`` (of the exercise in it,
    from 1), ``{title}``, ``{ask}`` and ``{answer}``.
    """

    def layout(number: int, pieces: Sequence[Piece]) -> str:
        return between.join(
            template.format(number=number + 1, i=i, title=p.title, ask=p.ask, answer=p.answer)
            for i, p in enumerate(pieces, 1)
        )

    return layout


def math_worksheet(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out numbered exercises, each followed by its solution."""
    head = f"Worksheet {number + 1}: {join_and(p.title.lower() for p in pieces)}\n\n"
    return head + repeated("{i}. {ask}\n\nSolution. {answer}")(number, pieces)


def math_solutions_last(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out all problems first and all solutions afterwards."""
    lettered = list(zip("ABCDEFGH", pieces, strict=False))
    ask = "\n\n".join(f"Problem {c}. {p.ask}" for c, p in lettered)
    out = "\n\n".join(f"Solution to {c}\n{p.answer}" for c, p in lettered)
    return f"Problem set no. {number + 1}\n\n{ask}\n\nSOLUTIONS\n\n{out}"


def math_dialogue(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out a talk between a pupil and a tutor."""
    openings = ["Here is the next one.", "I am stuck on this.", "Could you check this with me?"]
    replies = ["Let us go step by step.", "Gladly.", "Start from what is given."]
    return "\n\n".join(
        f"Pupil: {openings[(number + i) % 3]} {p.ask}\n\nTutor: {replies[(number + i) % 3]}\n"
        f"{p.answer}"
        for i, p in enumerate(pieces)
    )


def math_exam(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out an examination paper with indented model answers."""
    out = [f"EXAMINATION PAPER {roman(number + 1)} WITH MODEL ANSWERS"]
    for i, p in enumerate(pieces, 1):
        marks = p.answer.count("\n") + 1
        steps = "\n".join(f"  | {line}" for line in p.answer.split("\n"))
        out.append(f"Question {i} ({p.title}, {marks} marks)\n{p.ask}\nModel answer:\n{steps}")
    return "\n\n".join(out)


def task_sheet(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out a task sheet: all tasks, then all results."""
    asks = repeated("TASK {number}.{i} ({title})\n{ask}")(number, pieces)
    results = repeated("RESULT {number}.{i}\n{answer}")(number, pieces)
    return f"{asks}\n\n{'-' * 24}\n\n{results}"


MATH_LAYOUTS: tuple[Layout, ...] = (
    math_worksheet,
    math_solutions_last,
    math_dialogue,
    repeated("## {number}.{i} {title}\n\n**Example.** {ask}\n\n{answer}"),
    math_exam,
    repeated("Q: {ask}\n\nA: {answer}"),
)
INSTRUCTION_LAYOUTS: tuple[Layout, ...] = (
    repeated("### Instruction:\n{ask}\n\n### Response:\n{answer}"),
    repeated("User: {ask}\n\nAssistant: {answer}"),
    repeated("Q{i}. {ask}\nA{i}. {answer}"),
    task_sheet,
    repeated(
        '<request id="{number}-{i}">\n{ask}\n</request>\n<reply>\n{answer}\n</reply>', between="\n"
    ),
    repeated("## {title}\n\n**Request.** {ask}\n\n**Output**\n\n{answer}"),
    repeated("instruction: {ask}\noutput:\n{answer}", between="\n---\n"),
)
