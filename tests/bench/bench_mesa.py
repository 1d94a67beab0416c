"""How MESA converges on matrices with the statistics that its paper reports of gpt-oss-20b.

    python tests/bench/bench_mesa.py [--seed 0] [--ratio 0.25]

24 layers x 32 experts, 6 domains, router mass about 0.028 to 0.038 (its figure 5), top-8 sets of
two domains that overlap by 0.41 to 0.47 (its figure 6). Prints its tables 12 (a) and (b), the decay
schedules and the time of a large model, as Markdown.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from moeprune.allocators import mesa
from moeprune.core.budget import Budget
from moeprune.core.choice import jaccard
from moeprune.core.facts import ModelFacts

STEPS = (1, 3, 5, 10, 15, 20, 30, 40, 80)
BOOSTS = (0.01, 0.03, 0.05, 0.08, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.60)


def matrices(seed: int, *, layers: int = 24, experts: int = 32, domains: int = 6) -> np.ndarray:
    """(D, L, E) router mass, rows summing to 1: a common part and a domain's own, both weak.

    The last domain stands apart, as one must where minimax is to have something to do.
    """
    draw = np.random.RandomState(seed)
    apart_D = np.resize([0.5, 0.5, 1.0, 1.0, 1.0], domains)
    apart_D[-1] = 2.2
    common_LE = draw.standard_normal((layers, experts)) * 0.034
    own_DLE = draw.standard_normal((domains, layers, experts)) * 0.021
    mass_DLE = np.exp(common_LE + own_DLE * apart_D[:, None, None])
    return mass_DLE / mass_DLE.sum(axis=-1, keepdims=True)


def budget(ratio: float, *, layers: int = 24, experts: int = 32) -> Budget:
    """The uniform budget of such a model, top-4."""
    facts = ModelFacts(
        name="matrices",
        fingerprint="0" * 64,
        model_type="none",
        layer_ids=tuple(range(layers)),
        num_experts=(experts,) * layers,
        top_k=4,
        num_groups=1,
        top_groups=1,
        gating="softmax",
        total_bytes=layers * experts,
        expert_bytes=(1,) * layers,
    )
    return Budget.of(facts, ratio=ratio, keep=None, allocation="uniform")


def top_overlap(mass_DLE: np.ndarray, top: int = 8) -> float:
    """Jaccard overlap of two domains' ``top`` experts of a layer, mean over layers and pairs."""
    rank_DLE = np.argsort(np.argsort(-mass_DLE, axis=-1), axis=-1)
    in_top_DLE = rank_DLE < top
    pairs = [(one, two) for one in range(len(mass_DLE)) for two in range(one)]
    shared = [(in_top_DLE[one] & in_top_DLE[two]).sum(axis=-1) for one, two in pairs]
    return float(np.mean([both / (2 * top - both) for both in shared]))


def oscillation(losses: tuple[float, ...]) -> float:
    """Standard deviation of the worst-domain loss over the second half of the steps."""
    return float(np.std(losses[len(losses) // 2 :]))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ratio", type=float, default=0.25)
    asked = parser.parse_args()
    mass_DLE, due = matrices(asked.seed), budget(asked.ratio)
    print(
        f"mass {mass_DLE.min():.4f} to {mass_DLE.max():.4f}, top-8 overlap "
        f"{top_overlap(mass_DLE):.2f}, ratio {asked.ratio}, seed {asked.seed}\n"
    )

    def run(**options: object) -> mesa.Trace:
        pooled_LE = mass_DLE.mean(axis=0)
        return mesa.trace(pooled_LE, worth_DLE=mass_DLE, budget=due, **options)

    default, longest = run(), run(steps=STEPS[-1])
    print("| T | worst-domain loss | Jaccard vs T = 80 | best step |\n|---|---|---|---|")
    for steps in STEPS:
        found = run(steps=steps)
        same = jaccard(~found.keep_LE, ~longest.keep_LE)
        print(f"| {steps} | {min(found.losses):.5f} | {same:.1%} | {found.best_step} |")
    print("\n| η₀ | worst-domain loss | Jaccard vs 0.15 | oscillation |\n|---|---|---|---|")
    for boost in BOOSTS:
        found = run(boost=boost)
        same = jaccard(~found.keep_LE, ~default.keep_LE)
        print(
            f"| {boost:.2f} | {min(found.losses):.5f} | {same:.1%} "
            f"| {oscillation(found.losses):.5f} |"
        )
    print("\n| decay | worst-domain loss | Jaccard vs linear | best step |\n|---|---|---|---|")
    for decay in mesa.DECAYS:
        found = run(decay=decay)
        same = jaccard(~found.keep_LE, ~default.keep_LE)
        print(f"| {decay} | {min(found.losses):.5f} | {same:.1%} | {found.best_step} |")
    large_DLE = matrices(asked.seed, layers=61, experts=384)
    started = time.perf_counter()
    mesa.trace(
        large_DLE.mean(axis=0),
        worth_DLE=large_DLE,
        budget=budget(asked.ratio, layers=61, experts=384),
    )
    print(f"\n61 x 384, 6 domains, 20 steps: {time.perf_counter() - started:.2f} s")


if __name__ == "__main__":
    main()
