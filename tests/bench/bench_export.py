"""Time and memory of ``export`` against ``cp`` + fsync of the very bytes it wrote.

    python tests/bench/bench_export.py [--gigabytes 4] [--layouts per-expert fused fp8]
        [--ratios 0.5] [--caches warm cold] [--repeats 3]

A synthetic qwen3_moe checkpoint is written shard by shard without torch. Then, for each layout,
ratio and state of the cache, exports and copies alternate. Warm: both find all they read in the
page cache; cold: no page of either source is in it. Both end with fsync of every file. Medians are
reported; JSON is the last line. At most three times the source's size lies on the disk.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LAYERS, EXPERTS, HIDDEN, VOCAB, TOP_K = 12, 64, 1024, 8192, 8
POOL_BYTES = 64 << 20
TARGET_TIME, TARGET_RSS_MB = 1.25, 200
BLOCK = 128  # FP8: values of a weight that share a scale, on both axes
LAYOUTS, CACHES = ("per-expert", "fused", "fp8"), ("warm", "cold")
WIDTHS = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
Row = tuple[str, str, tuple[int, ...]]  # name, type, shape

EXPORT = """
import resource, sys, time
from pathlib import Path
started = time.perf_counter()
from moeprune.stages.export import export
imported = time.perf_counter()
export(Path(sys.argv[1]), plan=sys.argv[2], output=sys.argv[3])
ended = time.perf_counter()
assert "torch" not in sys.modules
status = Path("/proc/self/status")
if status.exists():  # unlike ru_maxrss, not inherited from the process that started this one
    peak = next(int(l.split()[1]) for l in status.read_text().splitlines() if "VmHWM" in l)
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(imported - started, ended - imported, peak)
"""


def tensors(intermediate: int, layout: str) -> Iterator[Row]:
    """Names, types and shapes of a qwen3_moe checkpoint."""
    for name, shape in plain_tensors(intermediate, layout):
        if layout == "fp8" and ".experts." in name:
            yield name, "F8_E4M3", shape
            scales = tuple(-(-length // BLOCK) for length in shape)
            yield f"{name}_scale_inv", "F32", scales
        else:
            yield name, "BF16", shape


def plain_tensors(intermediate: int, layout: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (HIDDEN,)
        for name in "qkvo":
            yield f"{prefix}.self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)
        yield f"{prefix}.mlp.gate.weight", (EXPERTS, HIDDEN)
        if layout == "fused":
            yield f"{prefix}.mlp.experts.gate_up_proj", (EXPERTS, HIDDEN, 2 * intermediate)
            yield f"{prefix}.mlp.experts.down_proj", (EXPERTS, intermediate, HIDDEN)
        else:
            for expert in range(EXPERTS):
                for name in ("gate", "up"):
                    shape = (intermediate, HIDDEN)
                    yield f"{prefix}.mlp.experts.{expert}.{name}_proj.weight", shape
                yield f"{prefix}.mlp.experts.{expert}.down_proj.weight", (HIDDEN, intermediate)
        yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def size_of(row: Row) -> int:
    return WIDTHS[row[1]] * math.prod(row[2])


def build(
    path: Path,
    *,
    gigabytes: float,
    layout: str,
    shard_bytes: float = 5e8,
    pool: bytes | None = None,
) -> None:
    """Write the checkpoint, in shards of about ``shard_bytes``; values come from ``pool``."""
    per_width = LAYERS * EXPERTS * 3 * HIDDEN * (1 if layout == "fp8" else 2)
    fixed = sum(map(size_of, tensors(0, layout)))
    intermediate = max(BLOCK, round((gigabytes * 1e9 - fixed) / per_width / BLOCK) * BLOCK)
    shards: list[list[Row]] = [[]]
    filled = 0
    for row in tensors(intermediate, layout):
        if filled > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(row)
        filled += size_of(row)
    path.mkdir()
    pool = pool or os.urandom(POOL_BYTES)
    weight_map, total = {}, 0
    for number, rows in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, dtype, shape in rows:
            end = position + size_of((name, dtype, shape))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
            weight_map[name] = file
            position = end
        total += position
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (path / file).open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            left = position
            while left:
                # Another start each time, so that no two experts hold the same bytes.
                start = (left * 31) % (POOL_BYTES // 2)
                left -= target.write(pool[start : start + min(left, POOL_BYTES // 2)])
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    config: dict[str, object] = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": intermediate,
        "num_hidden_layers": LAYERS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "vocab_size": VOCAB,
    }
    if layout == "fp8":
        config["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def save_plan(model: Path, ratio: float, path: Path) -> None:
    """A uniform plan that removes experts spread over each layer, another set in each."""
    import random

    from moeprune.core.plan import PrunePlan
    from moeprune.stages.identify import open_model

    facts = open_model(model).facts
    keep = [
        tuple(sorted(random.Random(row).sample(range(count), count - int(ratio * count))))
        for row, count in enumerate(facts.num_experts)
    ]
    PrunePlan(
        model_name=facts.name,
        model_fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        top_k=facts.top_k,
        layer_ids=facts.layer_ids,
        num_experts=facts.num_experts,
        keep=tuple(keep),
    ).save(path)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def warm(folder: Path) -> None:
    for path in files(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def cool(folder: Path) -> None:
    """Take the pages of a folder out of the cache; they must be on the disk."""
    for path in files(folder):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def run_export(model: Path, plan: Path, out: Path) -> tuple[float, float, float]:
    """(wall seconds of the process, seconds of the call, peak MB)."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, str(model), str(plan), str(out)],
        check=True,
        capture_output=True,
        text=True,
    )
    wall = time.perf_counter() - started
    _, call, peak = map(float, done.stdout.split())
    return wall, call, peak * 1024 / 1e6


def run_copy(source: Path, out: Path) -> float:
    """Seconds of ``cp -r`` and fsync of every file and folder it made."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(out)], check=True)
    for path in [*files(out), out, out.parent]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return time.perf_counter() - started


def measure(
    model: Path, work: Path, *, ratio: float, cache: str, repeats: int
) -> dict[str, object]:
    plan, reference = work / f"plan-{ratio}.json", work / f"reference-{ratio}"
    save_plan(model, ratio, plan)
    run_export(model, plan, reference)
    written = sum(path.stat().st_size for path in files(reference))
    exports, copies = [], []
    for turn in range(repeats):
        # Source and reference are made alike before either is timed; who goes first alternates.
        for kind in ("export", "copy") if turn % 2 == 0 else ("copy", "export"):
            os.sync()
            for folder in (model, reference):
                (warm if cache == "warm" else cool)(folder)
            out = work / "out"
            if kind == "export":
                exports.append(run_export(model, plan, out))
            else:
                copies.append(run_copy(reference, out))
            shutil.rmtree(out)
    shutil.rmtree(reference)
    wall = statistics.median(item[0] for item in exports)
    copy = statistics.median(copies)
    return {
        "ratio": ratio,
        "cache": cache,
        "gigabytes_written": round(written / 1e9, 3),
        "export_seconds": round(wall, 3),
        "export_call_seconds": round(statistics.median(item[1] for item in exports), 3),
        "cp_fsync_seconds": round(copy, 3),
        "times_cp_fsync": round(wall / copy, 3),
        "peak_rss_mb": round(max(item[2] for item in exports), 1),
        "all_export_seconds": [round(item[0], 3) for item in exports],
        "all_cp_fsync_seconds": [round(item, 3) for item in copies],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--layouts", choices=LAYOUTS, nargs="+", default=LAYOUTS)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5])
    parser.add_argument("--caches", choices=CACHES, nargs="+", default=CACHES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default: a temp")
    options = parser.parse_args()
    results = []
    print("layout      cache  ratio  GB written  export s  (call s)  cp+fsync s  times  peak MB")
    for layout in options.layouts:
        work = Path(tempfile.mkdtemp(prefix="bench-export-", dir=options.folder))
        try:
            model = work / "model"
            build(model, gigabytes=options.gigabytes, layout=layout)
            for ratio, cache in itertools.product(options.ratios, options.caches):
                row = measure(model, work, ratio=ratio, cache=cache, repeats=options.repeats)
                results.append({"layout": layout} | row)
                print(
                    f"{layout:10}  {cache:5}  {ratio:5}  {row['gigabytes_written']:10}  "
                    f"{row['export_seconds']:8}  {row['export_call_seconds']:8}  "
                    f"{row['cp_fsync_seconds']:10}  {row['times_cp_fsync']:5}  "
                    f"{row['peak_rss_mb']:7}",
                    flush=True,
                )
        finally:
            shutil.rmtree(work)
    print(json.dumps({"gigabytes": options.gigabytes, "results": results}))
    good = all(
        float(str(row["times_cp_fsync"])) <= TARGET_TIME
        and float(str(row["peak_rss_mb"])) < TARGET_RSS_MB
        for row in results
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
