"""How many decoder layers an EvoESAP search runs, and what each shortcut saves.

    python tests/bench/bench_search.py [--layers 4 12 24] [--generations 50] [--ratio 0.25]

Tiny random Qwen3-MoE models of 32 experts, top 4; two built-in domains, a document a batch; the
paper's numbers otherwise. Every search is run again without early stopping, without reuse of
hidden states, and without both, and must find the same plan and the same history. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tiny import tiny_checkpoint

import moeprune
from moeprune.evaluate.esap import Esap

DOMAINS = ["math=builtin:math", "science=builtin:science"]
# What is left out of a search; both shortcuts left out is the plain search, which judges no plan
# twice either.
CASES = {
    "all": (),  # nothing left out
    "no early stop": ("stop",),
    "no reuse": ("reuse",),
    "neither": ("stop", "reuse"),
}


@contextmanager
def without(shortcuts: tuple[str, ...]) -> Iterator[list[Esap]]:
    """Leave shortcuts out of every search in the block; yields the evaluators made in it."""
    init, score = Esap.__init__, Esap.score
    made: list[Esap] = []

    def noted(self: Esap, model: Any, **how: Any) -> None:
        made.append(self)
        init(self, model, **{**how, "reuse": "reuse" not in shortcuts})

    def in_full(self: Esap, counts: Any, **how: Any) -> float | None:
        return score(self, counts, parent=how.get("parent"))

    Esap.__init__ = noted  # type: ignore[method-assign]
    if "stop" in shortcuts:
        Esap.score = in_full  # type: ignore[method-assign, assignment]
    try:
        yield made
    finally:
        Esap.__init__, Esap.score = init, score  # type: ignore[method-assign]


def sharpened(folder: Path, layers: int, factor: float) -> Path:
    """A random model whose output is as sure of itself as ``factor`` makes it."""
    from transformers import AutoModelForCausalLM

    path = tiny_checkpoint(
        "qwen3_moe",
        folder / f"model-{layers}",
        num_hidden_layers=layers,
        mlp_only_layers=[],
        num_experts=32,
        num_experts_per_tok=4,
    )
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.lm_head.weight.mul_(factor)
    model.save_pretrained(path)
    return path


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12, 24])
    parser.add_argument("--generations", type=int, default=50)
    parser.add_argument("--ratio", type=float, default=0.25)
    parser.add_argument("--documents", type=int, default=6, help="of each of two domains")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--sharpness", type=float, default=3.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| layers | left out | fitness: uniform, best | plans | judged | given up | share | saved |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for layers in asked.layers:
            model = sharpened(Path(folder), layers, asked.sharpness)
            stats = moeprune.calibrate(
                model, domains=DOMAINS, samples=asked.documents, length=asked.length
            )
            first = None
            for case in asked.cases:
                with without(CASES[case]) as made:
                    plan = moeprune.plan(
                        stats,
                        method="evoesap",
                        ratio=asked.ratio,
                        model=model,
                        generations=asked.generations,
                        search_samples=asked.documents,
                        search_batch_tokens=asked.length,
                    )
                search = plan.details["search"]
                first = first or plan
                assert plan.keep == first.keep
                for key in ("fitness", "history"):
                    assert search[key] == first.details["search"][key]
                fitness, ran = search["fitness"], made[0].layer_forwards
                # Every candidate costs the same when nothing is saved, one drawn again as well.
                naive = made[0].layer_forwards_naive * search["candidates"] // search["evaluations"]
                print(
                    f"| {layers} | {case} | {fitness['uniform']:.4f}, {fitness['best']:.4f} | "
                    f"{search['candidates']} | {search['evaluations']} | {search['stopped_early']} "
                    f"| {ran:,} of {naive:,} | {naive / ran:.2f} x |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
