"""CPU seconds of k₁/k₂ over those of native routing, beside the ideal by cost accounting.

    python tests/bench/bench_k1k2.py [--layers 12] [--experts 64] [--batch 1 4 16] [--k1 4] …

One random model in one process, one thread; jobs take turns, and every ratio is that of one round,
the median over rounds. ``decode`` is ``generate`` of new tokens after a prompt of 8, ``prefill`` a
forward pass of a batch of long prompts; each with every experts implementation of the library that
runs here and every batch size.

=============  =============================================================
native         the model as it is
native pair    the live policy (k, k): what passing through the policy costs
policy         the live policy (k₁, k₂)
export         the model that ``export --k1 --k2`` makes, by its own code
top-k          k₁ as the router's own top-k: the least that k₁ can cost
=============  =============================================================

The ideal for compute is the share of activated parameters. For traffic it is the share of bytes of
weights that a step reads: of a layer's E experts, B tokens reach E · (1 − (1 − k/E)^B), as if
each chose at random. 12 layers of 64 experts of hidden size 768 in float32 take 2.7 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_calibrate import OWN, VOCAB, build

import moeprune
from moeprune.core.cost import Cost, cost_of
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.core.policy import RoutingPolicy
from moeprune.observe.layers import moe_layers
from moeprune.stages.policies import policy_applied

PROMPT = 8
HEAD = """\
                                     over native                              ideal over native
what    experts    batch   native    policy                export   top-k    pair  compute   bytes
"""


@contextmanager
def own_top_k(model: Any, layout: MoeLayout, k: int) -> Iterator[None]:
    """The routers' own top-k, set: what no policy can be cheaper than."""
    routers = [layer.router for layer in moe_layers(model, layout)]
    for router in routers:
        router.top_k = k
    try:
        yield
    finally:
        for router in routers:
            router.top_k = layout.top_k


def decode(batch: int, new_tokens: int) -> Callable[[Any], None]:
    ids = torch.randint(0, VOCAB, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))

    def run(model: Any) -> None:
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )

    return run


def prefill(batch: int, length: int) -> Callable[[Any], None]:
    ids = torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(batch))

    def run(model: Any) -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False, logits_to_keep=1)

    return run


def exported(model: Any, options: argparse.Namespace) -> Any:
    """The model as an exported folder's code builds it, with the very same weights in memory.

    The code and its block of config.json come from a small model of the same layers and experts.
    """
    small, _ = build(argparse.Namespace(**{**vars(options), "hidden": 64, "width": 16}))
    with tempfile.TemporaryDirectory() as folder:
        small.save_pretrained(f"{folder}/small")
        moeprune.export(f"{folder}/small", output=f"{folder}/out", k1=options.k1, k2=options.k2)
        config = AutoConfig.from_pretrained(f"{folder}/out", trust_remote_code=True)
        for key, value in model.config.to_dict().items():
            if key in small.config.to_dict() and value != small.config.to_dict()[key]:
                setattr(config, key, value)
        with init_empty_weights(include_buffers=False):
            made = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    made.load_state_dict(model.state_dict(), assign=True)
    made.generation_config = model.generation_config
    return made.eval()


def ideal(cost: Cost, layout: MoeLayout, k1: int, tokens: int) -> dict[str, float]:
    """The share of native's compute and of its bytes of weights that a pass of tokens needs."""
    mine, native = cost.activated, cost.native
    experts = layout.num_experts[0]

    def read(one: Any, k: int) -> float:
        reached = experts * (1 - (1 - k / experts) ** tokens)
        return one.bytes_per_token - one.routed_bytes + one.routed_bytes * reached / k

    return {
        "compute": cost.relative["total"],
        "bytes": read(mine, k1) / read(native, layout.top_k),
    }


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    model, layout = build(options)
    model.generation_config.eos_token_id = None
    width = getattr(torch, options.dtype).itemsize
    tensors = {
        name: TensorInfo(options.dtype, tuple(tensor.shape), width * tensor.numel())
        for name, tensor in model.state_dict().items()
    }
    policy = RoutingPolicy(k1=options.k1, k2=options.k2)
    cost = cost_of(layout, tensors, policy=policy)
    own = exported(model, options)
    ids = torch.arange(PROMPT)[None]
    with torch.inference_mode(), policy_applied(model, layout, policy):
        torch.testing.assert_close(own(ids).logits, model(ids).logits, rtol=0, atol=1e-4)
    ways: dict[str, Callable[[], Any]] = {
        "native": nullcontext,
        "native pair": lambda: policy_applied(model, layout, layout.native_policy),
        "policy": lambda: policy_applied(model, layout, policy),
        "export": nullcontext,
        "top-k": lambda: own_top_k(model, layout, options.k1),
    }
    found = []
    for implementation in options.implementations:
        for one in (model, own):
            one.set_experts_implementation(implementation)
        for batch in options.batch:
            for what in options.what:
                tokens = batch if what == "decode" else batch * options.length
                job = (
                    decode(batch, options.new_tokens)
                    if what == "decode"
                    else prefill(batch, options.length)
                )
                times: dict[str, list[float]] = {name: [] for name in ways}
                for repeat in range(options.repeats + 1):
                    # Each begins a round in turn: what comes first may be slower, or faster.
                    first = repeat % len(ways)
                    for name, way in [*ways.items()][first:] + [*ways.items()][:first]:
                        with way():
                            start = time.process_time()
                            job(own if name == "export" else model)
                            if repeat:  # the first round warms up
                                times[name].append(time.process_time() - start)
                ratios = {
                    name: [mine / bare for mine, bare in zip(seen, times["native"], strict=True)]
                    for name, seen in times.items()
                }
                found.append(
                    {
                        "what": what,
                        "implementation": implementation,
                        "batch": batch,
                        "cpu_seconds": times,
                        "ratios": ratios,
                        "ideal": ideal(cost, layout, options.k1, tokens),
                    }
                )
                if not options.json:
                    print(line(found[-1]), flush=True)
    return found


def line(row: dict[str, Any]) -> str:
    middle = {name: statistics.median(seen) for name, seen in row["ratios"].items()}
    spread = row["ratios"]["policy"]
    return (
        f"{row['what']:8}{row['implementation']:11}{row['batch']:>5}"
        f"{statistics.median(row['cpu_seconds']['native']):9.3f} s"
        f"{middle['policy']:8.3f} ({min(spread):.3f} to {max(spread):.3f})"
        f"{middle['export']:8.3f}{middle['top-k']:8.3f}{middle['native pair']:8.3f}"
        f"{row['ideal']['compute']:9.3f}{row['ideal']['bytes']:8.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=sorted(OWN), default="qwen3_moe")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--k1", type=int, default=4)
    parser.add_argument("--k2", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--what", nargs="+", default=["decode", "prefill"])
    parser.add_argument(
        "--implementations", nargs="+", default=["eager", "grouped_mm", "batched_mm"]
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.json:
        pair = f"native k={options.top_k}, k1={options.k1} k2={options.k2}"
        print(f"{options.family} {options.dtype} {options.layers} x {options.experts}, {pair}")
        print(HEAD, end="")
    found = measured(options)
    if options.json:
        print(json.dumps({"rows": found, "options": vars(options)}))


if __name__ == "__main__":
    main()
