"""How near to the optimum plans are proven to be, and how long that takes.

Over-dispersed router mass is drawn, not measured: 6 domains, every expert's share of a layer is
uniform but for a common and a domain's own log-normal factor of a few percent, which at 32 experts
gives shares of about 0.026 to 0.038, as in the MESA paper's figure 5.

    python tests/bench/bench_plan.py [--seeds 3] [--sizes 24x32,48x128,61x384] [--gap G]
"""

import argparse
import time

import numpy as np

from moeprune.allocators import mesa, mesa_exact
from moeprune.allocators._bound import lower_bound
from moeprune.core.budget import Budget
from moeprune.core.choice import domain_loss
from moeprune.core.facts import ModelFacts

DOMAINS = 6
SPREAD = 0.04  # of each of the two factors
# layers x experts -> the gap asked for, seconds allowed
SIZES = {"24x32": (1e-4, 60.0), "48x128": (5e-4, 60.0), "61x384": (1e-3, 120.0)}


def drawn(layers: int, experts: int, seed: int) -> np.ndarray:
    """(D, L, E) router mass, rows normalised to 1."""
    rng = np.random.default_rng([layers, experts, seed])
    common_LE = rng.normal(size=(1, layers, experts))
    own_DLE = rng.normal(size=(DOMAINS, layers, experts))
    mass_DLE = np.exp(SPREAD * (common_LE + own_DLE))
    return mass_DLE / mass_DLE.sum(axis=2, keepdims=True)


def facts(layers: int, experts: int) -> ModelFacts:
    return ModelFacts(
        name="drawn",
        fingerprint="0" * 64,
        model_type="drawn",
        layer_ids=tuple(range(layers)),
        num_experts=(experts,) * layers,
        top_k=4,
        num_groups=1,
        top_groups=1,
        gating="softmax",
        total_bytes=0,
        expert_bytes=(0,) * layers,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--gap", type=float, help="instead of each size's own")
    asked = parser.parse_args()
    print("| size | ratio | allocation | mesa | s | bound | s | mesa-exact | gap | mean gap | s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for size in asked.sizes.split(","):
        layers, experts = map(int, size.split("x"))
        gap, limit = SIZES.get(size, (1e-4, 60.0))
        for seed in range(asked.seeds):
            mass_DLE = drawn(layers, experts, seed)
            score_LE = mass_DLE.mean(axis=0)
            for ratio in (0.125, 0.25, 0.5):
                for allocation in ("uniform", "global"):
                    budget = Budget.of(
                        facts(layers, experts), ratio=ratio, keep=None, allocation=allocation
                    )
                    times = [time.perf_counter()]
                    heuristic = mesa.allocate(score_LE, worth_DLE=mass_DLE, budget=budget)
                    times.append(time.perf_counter())
                    low = lower_bound(mass_DLE, budget)
                    times.append(time.perf_counter())
                    exact = mesa_exact.allocate(
                        score_LE,
                        worth_DLE=mass_DLE,
                        budget=budget,
                        gap=asked.gap or gap,
                        time_limit=limit,
                    )
                    times.append(time.perf_counter())
                    took = np.diff(times)
                    said = exact.details
                    worst = domain_loss(mass_DLE, heuristic.keep_LE).max()
                    late = " (time limit)" if said["time_limit_hit"] else ""
                    print(
                        f"| {size} | {ratio} | {allocation} | {worst:.6f} | {took[0]:.2f} "
                        f"| {low:.6f} | {took[1]:.2f} | {said['worst_loss']:.6f} "
                        f"| {said['gap']:.1e}{late} | {said['mean_gap']:.1e} | {took[2]:.1f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
