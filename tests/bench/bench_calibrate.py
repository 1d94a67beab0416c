"""Time of calibration's observed pass over a plain forward pass of the same base model.

    python tests/bench/bench_calibrate.py [--layers 12] [--experts 64] [--tokens 4096]

One thread, float32, random weights; alternating runs, medians. Prints a table and, with ``--json``,
one JSON object. Plain is the fastest of the library's own experts functions here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from moeprune.core.layout import MoeLayout
from moeprune.observe.domains import Corpus
from moeprune.observe.load import decoder_of
from moeprune.observe.prefill import prefill


def build(layers: int, experts: int, hidden: int, top_k: int) -> tuple[object, MoeLayout]:
    config = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=1000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        moe_intermediate_size=hidden // 2,
        num_experts=experts,
        num_experts_per_tok=top_k,
        norm_topk_prob=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    layout = MoeLayout(
        model_type="qwen3_moe",
        layer_ids=tuple(range(layers)),
        num_experts=(experts,) * layers,
        top_k=top_k,
        num_groups=1,
        top_groups=1,
        gating="softmax",
        expert_bytes=(1,) * layers,
        count_keys=(),
        tensors={},
        experts_module="mlp.experts",
        router_module="mlp.gate",
        observer="function",
        quant_method=None,
    )
    return model, layout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, layout = build(options.layers, options.experts, options.hidden, options.top_k)
    count = options.tokens // options.length
    ids = np.random.default_rng(0).integers(0, 1000, (count, options.length), dtype=np.int32)
    corpus = Corpus(
        name="d", source="bench", sha256="", total=count, numbers=tuple(range(count)),
        documents=tuple(ids),
    )  # fmt: skip
    decoder = decoder_of(model)
    input_ids = torch.from_numpy(ids.astype(np.int64))

    def plain(implementation: str) -> Callable[[], None]:
        def run() -> None:
            model.set_experts_implementation(implementation)
            with torch.inference_mode():
                decoder(input_ids=input_ids, use_cache=False)

        return run

    def observed() -> None:
        prefill(model, corpus, layout=layout, batch_tokens=options.tokens)

    jobs = {"eager": plain("eager"), "grouped_mm": plain("grouped_mm"), "observed": observed}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(options.repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if repeat:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians["eager"], medians["grouped_mm"])
    ratio = medians["observed"] / best
    if options.json:
        print(json.dumps({"seconds": medians, "ratio": ratio, "options": vars(options)}))
        return
    for name, seconds in medians.items():
        print(f"{name:12} {seconds:7.3f} s  {options.tokens / seconds:9.0f} tokens/s")
    print(f"observed / plain = {ratio:.2f}")


if __name__ == "__main__":
    main()
