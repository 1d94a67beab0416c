"""Seconds a question of our evaluation over those of lm-evaluation-harness, on the same inputs.

    python tests/bench/bench_eval.py [--layers 12] [--experts 64] [--hidden 768] [--batch 16] …

The same random model, tokenizer and texts in one process; both encode, batch and score. The
harness is asked through its ``HFLM`` with as many sequences a pass. Runs alternate; CPU seconds,
one thread; ``ours / harness`` is the median over rounds. Log-likelihoods and texts are checked to
be the same.
12 layers of 64 experts of hidden size 768 in float32 take 2.7 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_calibrate import build
from tiny import add_tokenizer

from moeprune.core.tasks import Protocol, Question, Task
from moeprune.evaluate.asking import ask, requests_of
from moeprune.evaluate.encoding import Encoder
from moeprune.evaluate.tasks.prompts import context_texts, continuation_texts
from moeprune.observe.load import load_tokenizer
from moeprune.observe.writing import writer

WORDS = ("river", "stone", "copper", "letter", "window", "bread", "winter", "table", "engine")
LENGTH = 4096


def tokenizer_of() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(add_tokenizer(Path(folder)))


def task_of(kind: str, options: argparse.Namespace) -> Task:
    """Questions of different lengths, each with four choices and an answer, after shots."""
    draw = np.random.default_rng(0)

    def words(least: int, most: int) -> str:
        return " ".join(draw.choice(WORDS, int(draw.integers(least, most))))

    questions = tuple(
        Question(
            id=str(number),
            domain="d",
            text=f"{words(5, 15)} {number}?",
            choices=tuple(f"{letter} {words(1, 6)}" for letter in "wxyz"),
            right=number % 4,
            answers=("x",),
        )
        for number in range(options.questions + options.shots)
    )
    protocol = Protocol(kind=kind, shots=options.shots, max_new_tokens=options.new_tokens)
    shots = questions[: options.shots]
    return Task(name="t", protocol=protocol, questions=questions[options.shots :], shots=shots)


def ours(model: Any, tokenizer: Any, task: Task, batch: int) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        encoder = Encoder(tokenizer, max_length=LENGTH)
        requests = requests_of(task, encoder=encoder, tokenizer=tokenizer)
        write = writer(model, tokenizer)
        done = ask(model, task, requests, tokenizer=tokenizer, write=write, batch_size=batch)
        name = {"letters": "logprobs", "cloze": "loglik"}.get(task.kind, "text")
        return [sample.details[name] for sample in done]

    return run


def harness(model: Any, tokenizer: Any, task: Task, batch: int) -> Callable[[], list[Any]]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=LENGTH)
    budget = {"until": [], "max_gen_toks": task.protocol.max_new_tokens}

    def run() -> list[Any]:
        asked = [(context_texts(task, q, tokenizer=tokenizer)[0], q) for q in task.questions]
        if task.kind == "generate":
            requests = [
                Instance("generate_until", {}, (context, dict(budget)), 0) for context, _ in asked
            ]
            return lm.generate_until(requests, disable_tqdm=True)
        requests = [
            Instance("loglikelihood", {}, (context, ending), 0)
            for context, question in asked
            for ending in continuation_texts(task, question)
        ]
        found = [loglik for loglik, _ in lm.loglikelihood(requests, disable_tqdm=True)]
        return [found[start : start + 4] for start in range(0, len(found), 4)]

    return run


def measured(kind: str, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    tokenizer, task = tokenizer_of(), task_of(kind, options)
    jobs = {
        "ours": ours(model, tokenizer, task, options.batch),
        "harness": harness(model, tokenizer, task, options.batch),
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(options.repeats + 1):
        found = {}
        for name, job in jobs.items():
            start = time.process_time()
            found[name] = job()
            if repeat:  # the first round warms up
                times[name].append((time.process_time() - start) / options.questions)
        if kind == "generate":
            assert found["ours"] == found["harness"]
        else:
            # Of a random model many experts are nearly tied; one that flips moves a sum this far.
            np.testing.assert_allclose(found["ours"], found["harness"], rtol=0, atol=0.1)
    ratios = [mine / other for mine, other in zip(times["ours"], times["harness"], strict=True)]
    return {"cpu_seconds": times, "ratios": ratios, "ratio": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="qwen3_moe")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["letters", "cloze", "generate"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, _ = build(SimpleNamespace(**vars(options)))  # type: ignore[arg-type]
    model.generation_config.eos_token_id = 257
    found = {kind: measured(kind, model, options) for kind in options.kinds}
    if options.json:
        print(json.dumps({"kinds": found, "options": vars(options)}))
        return
    print(f"{options.family} {options.dtype} {options.layers} x {options.experts}")
    for kind, figures in found.items():
        middle = {
            name: statistics.median(figures["cpu_seconds"][name]) for name in ("ours", "harness")
        }
        spread = f"{min(figures['ratios']):.3f} to {max(figures['ratios']):.3f}"
        print(
            f"{kind:9} ours {middle['ours']:.4f} s, harness {middle['harness']:.4f} s a question;"
            f" ours / harness = {figures['ratio']:.3f} ({spread})"
        )


if __name__ == "__main__":
    main()
