"""CPU seconds of calibration's observed pass over those of a plain forward pass.

    python tests/bench/bench_calibrate.py [--family qwen3_moe] [--dtype float32] [--layers 12] …

Plain is the same base model, without its head, on the same token ids in the same batches, with the
fastest of the library's own experts functions here. Random weights; one thread; CPU seconds, which
other work on the machine disturbs less than seconds of a clock; runs alternate. ``x plain`` is the
median over rounds of a round's observed pass over its own plain pass with that function. With
several --batch-tokens, plain takes the last and every size is observed.
12 layers of 64 experts in float32 take 2.7 GB, and a pass of 16,384 tokens 1 to 2 GB more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from moeprune.architectures import layout_of
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.observe.batches import batches
from moeprune.observe.domains import Corpus
from moeprune.observe.load import decoder_of
from moeprune.observe.prefill import prefill

VOCAB = 1000

# Each with the words of its own config for one and the same size: experts a tensor each (qwen3_moe,
# olmoe, mixtral; deepseek_v3 with a selection bias, groups and shared experts), all experts in one
# tensor (granitemoe), and gpt_oss's: biased, transposed, gate and up interleaved.
OWN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "qwen3_moe": lambda o: {
        "head_dim": 32,
        "moe_intermediate_size": o.width,
        "num_experts": o.experts,
        "norm_topk_prob": True,
    },
    "olmoe": lambda o: {"intermediate_size": o.width, "num_experts": o.experts},
    "mixtral": lambda o: {"head_dim": 32, "intermediate_size": o.width},
    "granitemoe": lambda o: {"intermediate_size": o.width},
    "gpt_oss": lambda o: {
        "head_dim": 32,
        "intermediate_size": o.width,
        "sliding_window": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["sliding_attention", "full_attention"] * (o.layers // 2 + 1),
    },
    "deepseek_v3": lambda o: {
        "num_key_value_heads": o.hidden // 64,
        "num_attention_heads": o.hidden // 64,
        "first_k_dense_replace": 0,
        "moe_intermediate_size": o.width,
        "n_routed_experts": o.experts,
        "n_group": 8,
        "topk_group": 4,
        "q_lora_rank": o.hidden // 2,
        "kv_lora_rank": o.hidden // 4,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 64,
        "num_mtp_layers": 0,
    },
}


def build(options: argparse.Namespace) -> tuple[Any, MoeLayout]:
    """A random model of the family and its layout, from the tensors that it would store."""
    common = {
        "vocab_size": VOCAB,
        "hidden_size": options.hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // 32,
        "num_key_value_heads": options.hidden // 64,
        "num_local_experts": options.experts,
        "num_experts_per_tok": options.top_k,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }
    own = OWN[options.family](options)
    if any("experts" in key for key in own):
        del common["num_local_experts"]
    if "layer_types" in own:
        own["layer_types"] = own["layer_types"][: options.layers]
    config = AutoConfig.for_model(options.family, **{**common, **own})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype)).eval()
    tensors = {
        name: TensorInfo("F32", tuple(tensor.shape), 4 * tensor.numel())
        for name, tensor in model.state_dict().items()
    }
    return model, layout_of(config.to_dict(), tensors)


def corpus_of(options: argparse.Namespace) -> Corpus:
    count = options.tokens // options.length
    ids = np.random.default_rng(0).integers(0, VOCAB, (count, options.length), dtype=np.int32)
    return Corpus(
        name="d", source="bench", sha256="", total=count, numbers=tuple(range(count)),
        documents=tuple(ids),
    )  # fmt: skip


def jobs_of(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    model, layout = build(options)
    corpus = corpus_of(options)
    decoder = decoder_of(model)

    def plain(implementation: str) -> Callable[[], None]:
        def run() -> None:
            model.set_experts_implementation(implementation)
            with torch.inference_mode():
                for batch in batches(corpus, max_tokens=options.batch_tokens[-1]):
                    decoder(input_ids=torch.from_numpy(batch.ids_BS), use_cache=False)

        return run

    def observed(size: int) -> Callable[[], None]:
        return lambda: prefill(model, corpus, layout=layout, batch_tokens=size) and None

    jobs = {name: plain(name) for name in options.plain}
    jobs |= {f"observed {size}": observed(size) for size in options.batch_tokens[:-1]}
    return jobs | {"observed": observed(options.batch_tokens[-1])}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds of every job in every round, and the ratio."""
    jobs = jobs_of(options)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(options.repeats + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            if repeat:  # the first round warms up
                times[name].append(time.process_time() - start)
    fastest = min(options.plain, key=lambda name: statistics.median(times[name]))
    ratios = [seen / bare for seen, bare in zip(times["observed"], times[fastest], strict=True)]
    return {
        "cpu_seconds": times,
        "fastest_plain": fastest,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
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
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[16384])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    # batched_mm copies an expert's weights for every token: no memory holds that at this size.
    parser.add_argument("--plain", nargs="+", default=["eager", "grouped_mm"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = measured(options)
    if options.json:
        print(json.dumps({**found, "options": vars(options)}))
        return
    print(f"{options.family} {options.dtype} {options.layers} x {options.experts}")
    for name, seconds in found["cpu_seconds"].items():
        middle = statistics.median(seconds)
        print(
            f"{name:15} {middle:8.3f} s  ({min(seconds):.3f} to {max(seconds):.3f})"
            f"  {options.tokens / middle:8,.0f} tokens/s"
        )
    spread = f"{min(found['ratios']):.3f} to {max(found['ratios']):.3f}"
    print(f"observed / {found['fastest_plain']} = {found['ratio']:.3f} ({spread})")


if __name__ == "__main__":
    main()
