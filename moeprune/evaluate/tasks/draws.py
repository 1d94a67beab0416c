"""Which questions are asked, and which solved ones stand before each: the same for every model.

A draw sorts by a hash of the seed and the question, so it depends neither on the order of the file
nor on what else is in it: what is drawn at a limit of 100 is among what is drawn at 200.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.artefact import canonical_json, sha256_bytes
from moeprune.core.tasks import Question, Task
from moeprune.errors import UsageError


def sample(questions: Sequence[Question], *, limit: int | None, seed: int) -> tuple[Question, ...]:
    """At most ``limit`` questions, drawn by ``seed``, in their original order."""
    if limit is None or limit >= len(questions):
        return tuple(questions)
    ranked = sorted(range(len(questions)), key=lambda row: _rank(questions[row], seed))
    return tuple(questions[row] for row in sorted(ranked[:limit]))


def shots_of(task: Task, question: Question) -> tuple[Question, ...]:
    """The solved questions that stand before ``question``, in their order.

    They are of the question's own domain where the split has enough of them, else of the whole
    split, and never ask what the question asks, under whatever id.

    Raises:
        UsageError: without the question itself, too few are left.
    """
    count = task.protocol.shots
    if not count:
        return ()
    others = [shot for shot in task.shots if _content(shot) != _content(question)]
    own = [shot for shot in others if shot.domain == question.domain]
    pool = own if len(own) >= count else others
    if len(pool) < count:
        raise UsageError(
            f"task {task.name!r} asks for {count} shots, and but for question {question.id!r} "
            f"itself has {len(pool)}. Name a file with more in shots_from."
        )
    ranked = _ranked(pool, task.protocol.shots_draw, task.protocol.seed)
    return tuple(pool[row] for row in ranked[:count])


def needed(shots: Sequence[Question], *, count: int, draw: str, seed: int) -> tuple[Question, ...]:
    """Those of ``shots`` that :func:`shots_of` can ever choose, in the order of their file.

    A split may have 40,000 rows, of which a task with one domain and 5 shots uses 6.
    """
    if not count:
        return ()
    ranked = _ranked(shots, draw, seed)
    groups: dict[str | None, list[int]] = {None: ranked}
    for row in ranked:
        groups.setdefault(shots[row].domain, []).append(row)
    chosen: set[int] = set()
    for rows in groups.values():
        contents: set[object] = set()
        for row in rows:
            if len(contents) > count:  # one more than is shown, since one may be left out
                break
            contents.add(_content(shots[row]))
            chosen.add(row)
    return tuple(shots[row] for row in sorted(chosen))


def _ranked(shots: Sequence[Question], draw: str, seed: int) -> list[int]:
    """Places of ``shots`` in the order in which they are chosen."""
    rows = list(range(len(shots)))
    return rows if draw == "first" else sorted(rows, key=lambda row: _rank(shots[row], seed))


def _rank(question: Question, seed: int) -> str:
    body = [seed, question.id, question.text, question.choices, question.contexts]
    return sha256_bytes(canonical_json(body).encode())


def _content(question: Question) -> object:
    return question.text, question.choices, question.contexts
