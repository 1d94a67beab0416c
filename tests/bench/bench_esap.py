"""Decoder layers that a search by ESAP runs, over those that judging every genome whole would run.

    python tests/bench/bench_esap.py [--generations 12] [--population 16] [--json FILE]

Two models: the demo model with its calibration text, and random weights in 12 layers. The search is
elites and mutations that move experts between layers, as EvoESAP's. Each line adds a saving; the
best genome and its fitness must be the same in every line of a model and objective. Genomes are
asked for once, so what is counted is never a genome drawn twice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from esap_setup import Subject, documents
from tiny import tiny_checkpoint

from moeprune.core.fitness import Counts
from moeprune.observe.load import load_tokenizer

DEMO = Path(__file__).parent.parent.parent / "calibration" / "demo"
ELITES, DELTA, SWITCHES = 4, 4, 3
# What the evaluator is given, and whether genomes may be given up.
SAVINGS: dict[str, tuple[dict[str, Any], bool]] = {
    "none": ({"reuse": False}, False),
    "bound": ({"reuse": False}, True),
    "beginnings": ({}, False),
    "both": ({}, True),
    "both, cache 10 MB": ({"cache_bytes": 10 << 20}, True),
    "both, cache 1 MB": ({"cache_bytes": 1 << 20}, True),
}


def demo_subject(samples: int, length: int) -> Subject:
    tokenizer = load_tokenizer(DEMO / "model")
    text = {}
    for file in sorted((DEMO / "calibration").glob("*.jsonl")):
        rows = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
        ids = [np.asarray(tokenizer(row)["input_ids"][:length], np.int64) for row in rows[:samples]]
        text[file.stem] = [ids[at : at + 4] for at in range(0, samples, 4)]
    return Subject(DEMO / "model", text=text)


def deep_subject(samples: int, length: int, folder: Path) -> Subject:
    path = tiny_checkpoint(
        "qwen3_moe", folder / "deep", num_hidden_layers=12, mlp_only_layers=[], num_experts=24
    )
    batches = [[length] * 4] * (samples // 4)
    return Subject(path, text=documents(dict.fromkeys(("a", "b", "c"), batches)))


def mutated(parent: Counts, most: list[int], rng: random.Random) -> Counts:
    for _ in range(32):
        child = list(parent)
        for _ in range(min(rng.randint(1, SWITCHES), rng.randint(1, SWITCHES))):
            more, less = rng.sample(range(len(child)), 2)
            step = rng.randint(1, DELTA)
            child[more] += step
            child[less] -= step
        if child != list(parent) and all(0 <= n <= m for n, m in zip(child, most, strict=True)):
            return tuple(child)
    return parent


def search(esap: Any, start: Counts, most: list[int], options: argparse.Namespace, bound: bool):
    rng = random.Random(options.seed)
    value: dict[Counts, float] = {}
    tried: set[Counts] = set()
    elites: list[Counts] = []
    drawn = [start]
    for _ in range(4 * options.population):
        drawn.append(mutated(drawn[-1], most, rng))
    drawn = drawn[:: max(1, len(drawn) // options.population)][: options.population]
    for generation in range(options.generations):
        if generation:
            children = options.population - ELITES
            drawn = [mutated(rng.choice(elites), most, rng) for _ in range(children)]
        for counts in drawn:
            if counts in tried:
                continue
            tried.add(counts)
            bar = sorted(value.values())[-ELITES] if bound and len(value) >= ELITES else -1.0
            found = esap.score(counts, at_least=bar)
            if found is not None:
                value[counts] = found
        elites = sorted(value, key=lambda counts: (-value[counts], counts))[:ELITES]
        esap.retain(elites)
    return elites[0], value[elites[0]], len(tried)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--population", type=int, default=16)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=["demo", "deep"])
    parser.add_argument("--objectives", nargs="+", default=["mean", "worst-domain"])
    parser.add_argument("--savings", nargs="+", default=list(SAVINGS), choices=SAVINGS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("model objective      saving             genomes  layers run   whole  fewer  seconds")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            if model == "demo":
                subject = demo_subject(options.samples, options.length)
            else:
                subject = deep_subject(options.samples, options.length, Path(folder))
            most = [len(order) for order in subject.order]
            start = tuple(row.num_experts // 4 for row in subject.rows)
            for objective in options.objectives:
                results = set()
                for name in options.savings:
                    given, bound = SAVINGS[name]
                    began = time.perf_counter()
                    esap = subject.esap(objective=objective, **given)
                    best, fitness, genomes = search(esap, start, most, options, bound)
                    took = time.perf_counter() - began
                    results.add((best, fitness))
                    ran, whole = esap.layer_forwards, esap.layer_forwards_naive
                    print(
                        f"{model:5} {objective:14} {name:18} {genomes:7} {ran:11} {whole:7} "
                        f"{whole / ran:5.2f}x {took:8.1f}  cache {esap.cache.most / 2**20:.1f} MB",
                        flush=True,
                    )
                    rows.append(
                        {
                            "model": model,
                            "objective": objective,
                            "saving": name,
                            "genomes": genomes,
                            "layer_forwards": ran,
                            "layer_forwards_naive": whole,
                            "fitness": fitness,
                            "best": best,
                        }
                    )
                assert len(results) == 1, results
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
