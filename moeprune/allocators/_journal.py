"""The state of a search between two generations, and the file that an interrupted one leaves.

L MoE layers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeprune.artefact import check_schema, read_json, write_bytes
from moeprune.core.fitness import Counts
from moeprune.errors import MismatchError, PlanError

SCHEMA = "moeprune.search/1"


@dataclass(slots=True)
class Progressed:
    """What a search knows after some generations. Its random numbers need no state of their own.

    Attributes:
        generations: finished ones; the starting genomes are the first.
        known: every genome met so far, in the order they were first drawn -> its fitness, or None:
            proven to be worse than the elites of its time.
        elites: the best genomes, best first.
        history: best fitness after each generation.
        drawn: genomes to judge so far, those drawn twice counted twice.
        layer_forwards: layers run so far.
        layer_forwards_naive: layers that judging every known genome in full would have run.
    """

    generations: int = 0
    known: dict[Counts, float | None] = field(default_factory=dict)
    elites: tuple[Counts, ...] = ()
    history: tuple[float, ...] = ()
    drawn: int = 0
    layer_forwards: int = 0
    layer_forwards_naive: int = 0

    @property
    def stopped(self) -> int:
        """Genomes whose evaluation stopped early."""
        return sum(fitness is None for fitness in self.known.values())


@dataclass(frozen=True, slots=True)
class Journal:
    """The file of one search.

    Attributes:
        path: where it lies.
        fingerprint: of everything that decides the search apart from its number of generations.
    """

    path: Path
    fingerprint: str

    def write(self, state: Progressed) -> None:
        """Save a state, complete or not at all.

        Raises:
            OutputError: it cannot be written.
        """
        body = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "generations": state.generations,
            "known": [[*counts, fitness] for counts, fitness in state.known.items()],
            "elites": [list(counts) for counts in state.elites],
            "history": list(state.history),
            "drawn": state.drawn,
            "layer_forwards": state.layer_forwards,
            "layer_forwards_naive": state.layer_forwards_naive,
        }
        write_bytes(self.path, (json.dumps(body, separators=(",", ":")) + "\n").encode())

    def read(self, *, start: Counts, generations: int) -> Progressed:
        """The saved state; a new one where there is none.

        Args:
            start: the genome that every search begins with.
            generations: how many are asked for in all.

        Raises:
            MismatchError: the file is of another search, or one that went further.
            PlanError: the file is damaged.
        """
        if not self.path.exists():
            return Progressed()
        body = read_json(self.path, error=PlanError, what="the state of a search")
        check_schema(body, schema=SCHEMA, path=self.path, error=PlanError)
        way_out = "Remove it to start again."
        if body.get("fingerprint") != self.fingerprint:
            raise MismatchError(
                f"{self.path} is of a search with other stats, text, model or options. Repeat the "
                f"command that left it, or name another plan with -o. {way_out}"
            )
        state = _state(body, start)
        if state is None:
            raise PlanError(f"{self.path} is damaged. {way_out}")
        if state.generations > generations:
            raise MismatchError(
                f"{self.path} holds {state.generations} generations, --generations {generations} "
                f"asks for fewer. {way_out}"
            )
        return state

    def remove(self) -> None:
        """Take the file away: the plan is written."""
        self.path.unlink(missing_ok=True)


def _state(body: Mapping[str, Any], start: Counts) -> Progressed | None:
    """The state that a file holds, or None: it holds something else."""
    try:
        known = {tuple(row[:-1]): row[-1] for row in body["known"]}
        state = Progressed(
            generations=body["generations"],
            known=known,
            elites=tuple(tuple(counts) for counts in body["elites"]),
            history=tuple(body["history"]),
            drawn=body["drawn"],
            layer_forwards=body["layer_forwards"],
            layer_forwards_naive=body["layer_forwards_naive"],
        )
        best = [known.get(counts) for counts in (start, *state.elites)]
    except (KeyError, TypeError, IndexError):
        return None
    numbers = [state.generations, state.drawn, state.layer_forwards, state.layer_forwards_naive]
    good = (
        all(type(number) is int and number >= 0 for number in numbers)
        and len(state.history) == state.generations
        and all(type(count) is int for counts in known for count in counts)
        and all(len(counts) == len(start) and sum(counts) == sum(start) for counts in known)
        and all(fitness is None or _is_number(fitness) for fitness in known.values())
        and all(map(_is_number, (*state.history, *best)))
        and state.drawn >= len(known)
        and len(set(state.elites)) == len(state.elites) > 0
        and state.generations > 0
    )
    return state if good else None


def _is_number(value: object) -> bool:
    return type(value) is float and math.isfinite(value)  # JSON readers let NaN pass
