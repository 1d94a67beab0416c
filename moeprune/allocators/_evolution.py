"""The loop of EvoESAP: elites, their children, and three shortcuts that do not change the result.

A genome drawn twice is judged once. Children of one parent are judged one after the other, so that
an evaluator that keeps the parent's hidden states computes only what comes after the first layer
that differs. And a genome that is proven worse than the elites so far need not be finished: elites
only ever get better, so it can never become one.

What is drawn depends on the seed, the generation and the elites alone, never on what a shortcut
left out.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from moeprune.allocators._journal import Progressed
from moeprune.allocators._mutation import below, mutated
from moeprune.allocators._patterns import PATTERNS, RANDOM, pattern
from moeprune.allocators._space import Space
from moeprune.core.fitness import Counts, Fitness


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The numbers of a search; the defaults of the command line are the paper's.

    Attributes:
        generations: the starting genomes are the first.
        population: genomes of a generation, elites included; the first has all patterns at least.
        elites: genomes that survive a generation.
        delta: the most units that a switch moves.
        mutations: the most switches of a child.
        seed: of everything that is drawn.
    """

    generations: int
    population: int
    elites: int
    delta: int
    mutations: int
    seed: int

    @property
    def candidates(self) -> int:
        """Genomes that are drawn in all."""
        first = max(self.population, len(PATTERNS))
        return first + (self.generations - 1) * (self.population - self.elites)


@dataclass(slots=True)
class _Ranking:
    """The best genomes so far: highest fitness first, equal ones by who was drawn first."""

    size: int
    entries: list[tuple[float, int, Counts]] = field(default_factory=list)

    def add(self, counts: Counts, fitness: float, born: int) -> None:
        insort(self.entries, (-fitness, born, counts))
        del self.entries[self.size :]

    @property
    def bar(self) -> float:
        """What a genome must reach to come in, if only by an earlier birth."""
        return -self.entries[-1][0] if len(self.entries) == self.size else -math.inf

    @property
    def genomes(self) -> tuple[Counts, ...]:
        return tuple(counts for _, _, counts in self.entries)


def starting(space: Space, settings: Settings) -> list[Counts]:
    """The genomes of the first generation: every pattern, then random ones."""
    rng = _stream(settings.seed, 0)
    wanted = [*PATTERNS, *[RANDOM] * (settings.population - len(PATTERNS))]
    return [space.counts(pattern(name, space, rng)) for name in wanted]


def children(
    space: Space, settings: Settings, generation: int, elites: Sequence[Counts]
) -> list[Counts]:
    """What a generation adds to the elites."""
    rng = _stream(settings.seed, generation)
    found = []
    for _ in range(settings.population - settings.elites):
        parent = space.levels(elites[below(rng, len(elites))])
        child = mutated(
            parent, space.top, delta=settings.delta, mutations=settings.mutations, rng=rng
        )
        found.append(space.counts(child))
    return found


def evolve(
    space: Space,
    fitness: Fitness,
    settings: Settings,
    state: Progressed,
    *,
    on_generation: Callable[[Progressed], None],
    on_genome: Callable[[Progressed], None],
) -> None:
    """Run the generations that ``state`` still lacks.

    Args:
        space: the genomes that are allowed.
        fitness: what judges them.
        settings: the numbers of the search.
        state: where it stands; changed.
        on_generation: told of each finished generation.
        on_genome: told after each drawn genome.
    """
    born = {counts: number for number, counts in enumerate(state.known)}
    ranking = _Ranking(settings.elites)
    for counts in state.elites:
        score = state.known[counts]
        assert score is not None
        ranking.add(counts, score, born[counts])
    for generation in range(state.generations, settings.generations):
        if generation:
            drawn = children(space, settings, generation, state.elites)
        else:
            drawn = starting(space, settings)
        fresh = [counts for counts in dict.fromkeys(drawn) if counts not in state.known]
        for counts in fresh:
            born[counts] = len(born)
            state.known[counts] = None
        state.drawn += len(drawn) - len(fresh)
        # Patterns are judged to the end, because the plan states what each is worth.
        whole = set(drawn[: len(PATTERNS)]) if not generation else set()
        fitness.retain(state.elites)
        for counts, parent in _in_turn(fresh, state.elites):
            ran, naive = fitness.layer_forwards, fitness.layer_forwards_naive
            bar = -math.inf if counts in whole else ranking.bar
            value = fitness.score(counts, parent=parent, at_least=bar)
            state.drawn += 1
            state.layer_forwards += fitness.layer_forwards - ran
            state.layer_forwards_naive += fitness.layer_forwards_naive - naive
            if value is not None:
                state.known[counts] = value
                ranking.add(counts, value, born[counts])
            on_genome(state)
        state.elites = ranking.genomes
        state.generations += 1
        state.history += (-ranking.entries[0][0],)
        on_generation(state)


def _stream(seed: int, generation: int) -> np.random.RandomState:
    """Random numbers of one generation: a resumed search need not remember where it stood.

    RandomState, because numpy promises its stream for ever.
    """
    return np.random.RandomState([seed, generation])


def _in_turn(
    fresh: Sequence[Counts], elites: Sequence[Counts]
) -> list[tuple[Counts, Counts | None]]:
    """Genomes and what they share hidden states with, those with one such elite together.

    The best elite's first: a good child early makes the others stop earlier. Without elites, as
    they were drawn: the uniform plan first.
    """
    pairs = [(counts, nearest(counts, elites)) for counts in fresh]
    if not elites:
        return pairs
    places = {elite: place for place, elite in enumerate((None, *elites))}
    return sorted(pairs, key=lambda pair: (places[pair[1]], pair[0]))


def nearest(counts: Counts, elites: Sequence[Counts]) -> Counts | None:
    """The genome of ``elites`` that agrees with ``counts`` in most layers from the first on.

    None: none agrees in the first layer.
    """
    found, longest = None, 0
    for elite in elites:
        same = (mine == theirs for mine, theirs in zip(counts, elite, strict=True))
        shared = sum(1 for _ in takewhile(bool, same))
        if shared > longest:
            found, longest = elite, shared
    return found
