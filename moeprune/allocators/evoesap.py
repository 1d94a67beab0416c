"""EvoESAP: how many experts each layer loses, by evolution on the pruned model's own output.

Which experts of a layer leave first is fixed by a criterion; only how many leave where is
searched. A genome holds that number for every layer, all with one sum. The search starts from the
uniform plan and eleven other shapes over depth, keeps the best few (elites), and fills every
generation up with their children: level switches that move experts from one layer's loss to
another's. What a genome is worth is for the caller to say; EvoESAP's answer is the expected
speculative acceptance: the mean over tokens of Σ_v min(p_full(v), p_pruned(v)) on held-out text.

The uniform plan is in the first generation, so the result is never worth less than it, on the
text of the search.

After EvoESAP (arXiv 2603.06003). One difference: elites are different genomes; the authors' code
may keep one several times.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from moeprune.allocators._evolution import Settings, evolve, nearest, starting
from moeprune.allocators._journal import Journal, Progressed
from moeprune.allocators._patterns import PATTERNS, UNIFORM
from moeprune.allocators._space import Space
from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome, keep_counts, leaving_orders
from moeprune.core.fitness import Counts, Fitness
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.core.stats import Array
from moeprune.errors import MismatchError, UsageError

__all__ = ["Journal", "allocate"]

OPTIONS = ("generations", "population", "elites", "delta", "mutations", "seed")

Evaluate = Callable[[Sequence[NDArray[Any]]], Fitness]
"""From the order in which the experts of each layer leave to what judges genomes."""

_SEEDS = 2**32
_DIGITS = 12  # of fitnesses in a plan: the last bits of a sum depend on the machine
_SAME = 1e-6  # an elite that is judged again on the same machine gives the same number


def allocate(
    score_LE: Array,
    *,
    worth_DLE: Array,
    budget: Budget,
    generations: int = 50,
    population: int = 32,
    elites: int = 4,
    delta: int = 4,
    mutations: int = 3,
    seed: int = 0,
    start: Counts | None = None,
    evaluate: Evaluate | None = None,
    journal: Journal | None = None,
    on_progress: OnProgress = ignore,
) -> Outcome:
    """Search for the numbers of experts that leave.

    Args:
        score_LE: (L, E) float64, higher = worth more: in which order experts leave.
        worth_DLE: (D, L, E) the same per domain; not read.
        budget: the most that may leave each layer, and how many leave in all.
        generations: how long to search; 0 = the start, unsearched.
        population: genomes of a generation, elites included.
        elites: genomes that survive a generation.
        delta: the most units that a switch moves.
        mutations: the most switches of a child.
        seed: of everything that is drawn.
        start: (L,) the genome ``uniform``; None: the evenest one.
        evaluate: what a genome is worth; None: there is nothing to search by, as with 0
            generations.
        journal: where to save every generation, and to go on from; None: nowhere.
        on_progress: told of each genome.

    Returns:
        The best genome met; with details of the search.

    Raises:
        UsageError: an option out of range.
        MismatchError, PlanError, OutputError: see :class:`Journal`; or the saved search was begun
            where genomes are worth something else.
    """
    del worth_DLE
    settings = _checked(
        Settings(
            generations=generations,
            population=population,
            elites=elites,
            delta=delta,
            mutations=mutations,
            seed=seed,
        )
    )
    space = Space.of(budget, start)
    orders = leaving_orders(score_LE, budget)
    if evaluate is None or not generations:
        return Outcome(keep_counts(orders, space.start))
    state = Progressed()
    if journal is not None:
        state = journal.read(start=space.start, generations=generations)
    fitness = evaluate(orders)
    if state.generations:
        assert journal is not None
        _warm_up(fitness, space, state, journal)
    report = _reporter(settings, on_progress, resumed=state.generations > 0)
    report(state)
    evolve(
        space,
        fitness,
        settings,
        state,
        on_generation=journal.write if journal is not None else _nowhere,
        on_genome=report,
    )
    return Outcome(keep_counts(orders, state.elites[0]), _details(space, settings, state))


def _checked(settings: Settings) -> Settings:
    for name in ("generations", "population", "elites", "delta", "mutations"):
        value, least = getattr(settings, name), 0 if name == "generations" else 1
        if type(value) is not int or value < least:
            raise UsageError(f"--{name} {value} is not a count; use {least} or more.")
    if settings.elites >= settings.population:
        raise UsageError(
            f"--elites {settings.elites} leave no room for children in a --population of "
            f"{settings.population}; use fewer elites."
        )
    if not 0 <= settings.seed < _SEEDS:
        raise UsageError(f"--seed {settings.seed} is out of range; use 0 to {_SEEDS - 1}.")
    return settings


def _nowhere(state: Progressed) -> None:
    del state


def _warm_up(fitness: Fitness, space: Space, state: Progressed, journal: Journal) -> None:
    """Judge the elites of a saved search again: their hidden states are not in the file.

    The start comes first, as it does in a search from the beginning.

    Raises:
        MismatchError: one is worth something else here.
    """
    done: list[Counts] = []
    for counts in dict.fromkeys((space.start, *state.elites)):
        value = fitness.score(counts, parent=nearest(counts, done))
        before = state.known[counts]
        assert value is not None and before is not None
        if abs(value - before) > _SAME:
            raise MismatchError(
                f"{journal.path} was begun where a plan is worth {before:.6f} that is worth "
                f"{value:.6f} here: another machine or library. Go on there, or remove it to "
                "start again."
            )
        done.append(counts)


def _reporter(
    settings: Settings, on_progress: OnProgress, *, resumed: bool
) -> Callable[[Progressed], None]:
    """Tells where a search stands: at its beginning, then after each genome that was judged."""
    begun = "resumed, " if resumed else ""
    judged = -1

    def report(state: Progressed) -> None:
        nonlocal judged
        # Later, known holds genomes of the generation that are still to be judged.
        judged = judged + 1 if judged >= 0 else len(state.known)
        known = [value for value in state.known.values() if value is not None]
        best = f", best fitness {max(known):.4f}" if known else ""
        now = min(state.generations + 1, settings.generations)
        note = f"{begun}generation {now} of {settings.generations}{best}"
        if state.layer_forwards_naive:
            # Every candidate costs the same when nothing is saved, one drawn again as well.
            naive = state.layer_forwards_naive * state.drawn / judged
            note += f", {state.layer_forwards / naive:.0%} of a plain search's layers run"
        on_progress(Progress("search", state.drawn, settings.candidates, "plans", note))

    return report


def _details(space: Space, settings: Settings, state: Progressed) -> dict[str, Any]:
    """What the search found and what it cost, plain JSON values."""
    first = starting(space, settings)[: len(PATTERNS)]
    patterns = {}
    for name, counts in zip(PATTERNS, first, strict=True):
        value = state.known[counts]
        assert value is not None
        patterns[name] = round(value, _DIGITS)
    search = {
        "fitness": {
            "best": round(state.history[-1], _DIGITS),
            "uniform": patterns[UNIFORM],
            "patterns": patterns,
        },
        "history": [round(value, _DIGITS) for value in state.history],
        "generations": state.generations,
        "candidates": state.drawn,
        "evaluations": len(state.known),
        "stopped_early": state.stopped,
    }
    return {"search": search}
