"""What ``calibrate --loss-aware`` costs: CPU seconds over the plain pass's, and memory.

    python tests/bench/bench_loss_aware.py [--family qwen3_moe] [--dtype float32] [--layers 12] …

The models and options of bench_calibrate.py. Plain is calibration as it is without a loss: the
observed pass over the same documents in the same batches. Every token but each document's first is
a target. One thread; CPU seconds; runs alternate; ``x plain`` is the median over rounds.

What must be computed at least, in products of the plain pass: the pass itself, each layer again
for its graph, as many products for the gradients of the inputs, and in each MoE layer one more
expert a token beside its k; the head is beside it. ``floor`` weighs the experts' products and the
others by their number. Memory: how far each pass rises above the model at its highest, then what a
layer's graph alone keeps (autograd's saved tensors), and what the layers' kept inputs take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import bench_calibrate
import torch
from bench_calibrate import OWN, build, corpus_of

from moeprune.observe.prefill import passes
from moeprune.observe.sums import FoldedSums

LIMIT = 4.0


def peak_of(job: Callable[[], None]) -> int:
    """MB that a job takes at its highest beyond what is taken before it."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    job()
    return (_status("VmHWM") - before) // 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def floor_of(options: argparse.Namespace) -> float:
    """Least products over the plain pass's, the head aside."""
    hidden, width, k = options.hidden, options.width, options.top_k
    heads = hidden // 32
    expert = 3 * hidden * width
    attention = hidden * 32 * (2 * heads + heads)  # q and o; k and v of half as many heads
    attention += options.length * hidden  # scores and their sums, causal
    other = attention + hidden * options.experts
    plain = k * expert + other
    return (3 * plain + expert) / plain


def jobs_of(options: argparse.Namespace) -> tuple[Any, dict[str, Callable[[], None]]]:
    model, layout = build(options)
    model.requires_grad_(False)
    corpus = corpus_of(options)

    def run(loss: bool) -> Callable[[], None]:
        def job() -> None:
            sums = FoldedSums.of(layout, loss=loss)
            how = {"layout": layout, "batch_tokens": options.batch_tokens[-1]}
            with closing(passes(model, corpus, sums, **how)) as steps:
                for _ in steps:
                    pass
            if loss:
                assert sums.arrays()["fisher_cf_sum"].any(axis=0).mean() > 0.5

        return job

    return model, {"plain": run(False), "loss-aware": run(True)}


def graph_of(model: Any, options: argparse.Namespace) -> int:
    """MB that plain autograd keeps for one layer of one batch, weights aside, by the library."""
    layer = model.model.layers[0]
    shape = (options.batch_tokens[-1] // options.length, options.length)
    weights = {value.untyped_storage().data_ptr() for value in model.parameters()}
    kept: dict[int, int] = {}
    given: list[Any] = []

    class Stop(Exception):
        pass

    def stop(_module: Any, args: Any, kwargs: Any) -> None:
        given.extend((args, kwargs))
        raise Stop

    hook = layer.register_forward_pre_hook(stop, with_kwargs=True)
    with torch.no_grad():
        try:
            model.model(input_ids=torch.ones(shape, dtype=torch.int64), use_cache=False)
        except Stop:
            hook.remove()
    (hidden, *rest), kwargs = given

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        answer = layer(hidden.detach().requires_grad_(), *rest, **kwargs)
    del answer
    return sum(kept.values()) >> 20


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds of both passes in every round, the ratio, and memory."""
    model, jobs = jobs_of(options)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    peaks = {}
    for repeat in range(options.repeats + 1):
        for name, job in jobs.items():
            start = time.process_time()
            rise = peak_of(job)
            if repeat:  # the first round warms up
                times[name].append(time.process_time() - start)
                peaks[name] = rise
    ratios = [loss / plain for plain, loss in zip(*times.values(), strict=True)]
    positions = options.batch_tokens[-1]
    size = torch.empty(0, dtype=getattr(torch, options.dtype)).element_size()
    return {
        "cpu_seconds": times,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "floor": floor_of(options),
        "peak_mb": peaks,
        "inputs_mb": (options.layers * positions * options.hidden * size) >> 20,
        "graph_mb": graph_of(model, options) if options.graph else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=sorted(OWN), default="qwen3_moe")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-tokens", type=int, nargs=1, default=[16384])
    parser.add_argument("--vocab", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--graph", action="store_true", help="what a layer's graph keeps, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench_calibrate.VOCAB = options.vocab
    found = measured(options)
    if options.json:
        print(json.dumps({**found, "options": vars(options)}))
        return
    print(f"{options.family} {options.dtype} {options.layers} x {options.experts}")
    for name, seconds in found["cpu_seconds"].items():
        middle = statistics.median(seconds)
        print(
            f"{name:12} {middle:8.3f} s  ({min(seconds):.3f} to {max(seconds):.3f})"
            f"  {options.tokens / middle:8,.0f} tokens/s  peak +{found['peak_mb'][name]} MB"
        )
    spread = f"{min(found['ratios']):.3f} to {max(found['ratios']):.3f}"
    verdict = "within" if found["ratio"] <= LIMIT else "beyond"
    print(f"loss-aware / plain = {found['ratio']:.3f} ({spread}), {verdict} {LIMIT:g}")
    graph = "" if found["graph_mb"] is None else f"; a layer's graph {found['graph_mb']} MB"
    print(f"floor {found['floor']:.3f}; kept inputs of the layers {found['inputs_mb']} MB{graph}")


if __name__ == "__main__":
    main()
