"""Calibrate a checkpoint larger than memory, under a limit of the memory; time against reading it.

    python tests/bench/bench_streamed.py [--gigabytes 12.5] [--memory 4GB] [--tokens 4096]
        [--twin-layers 3] [--loss-aware]

A qwen3_moe checkpoint of random bfloat16 weights (layers of half a gigabyte) is written shard by
shard. A process whose private memory is limited by RLIMIT_DATA to --memory calibrates it with that
--memory. A twin of few layers is calibrated both ways and must give the same stats, byte for byte.
The floor is plain reads of all bytes, once. With --loss-aware all is done for the loss, too, and
both are compared: seconds, bytes read, memory. JSON is the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

HIDDEN, EXPERTS, TOP_K, EXPERT_WIDTH, VOCAB = 2048, 64, 8, 640, 32000
HEADS, KV_HEADS, HEAD_DIM = 16, 4, 128
POOL = 32 << 20

RUN = """
import json, resource, sys, time
limit, options = int(sys.argv[1]), json.loads(sys.argv[2])
import torch
torch.set_num_threads(int(sys.argv[3]))
import moeprune.stages.calibrate as stage
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
story = []
start = time.perf_counter()
stage.calibrate(on_story=story.append, **options)
wall = time.perf_counter() - start
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
reads = dict(line.split(":") for line in open("/proc/self/io"))
print(json.dumps({
    "wall_s": round(wall, 1),
    "peak_rss_mb": int(status["VmHWM"].split()[0]) // 1024,
    "rss_file_mb": int(status["RssFile"].split()[0]) // 1024,
    "peak_virtual_data_mb": int(status["VmData"].split()[0]) // 1024,
    "read_gb": round(int(reads["rchar"]) / 1e9, 2),
    "story": story,
}))
"""


def tensors(layers: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the checkpoint."""
    rows: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (VOCAB, HIDDEN))]
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        rows += [
            (f"{prefix}.input_layernorm.weight", (HIDDEN,)),
            (f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)),
            (f"{prefix}.self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)),
            (f"{prefix}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
            (f"{prefix}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
            (f"{prefix}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)),
            (f"{prefix}.self_attn.q_norm.weight", (HEAD_DIM,)),
            (f"{prefix}.self_attn.k_norm.weight", (HEAD_DIM,)),
            (f"{prefix}.mlp.gate.weight", (EXPERTS, HIDDEN)),
        ]
        for expert in range(EXPERTS):
            inner = f"{prefix}.mlp.experts.{expert}"
            rows += [
                (f"{inner}.gate_proj.weight", (EXPERT_WIDTH, HIDDEN)),
                (f"{inner}.up_proj.weight", (EXPERT_WIDTH, HIDDEN)),
                (f"{inner}.down_proj.weight", (HIDDEN, EXPERT_WIDTH)),
            ]
    return [*rows, ("model.norm.weight", (HIDDEN,)), ("lm_head.weight", (VOCAB, HIDDEN))]


def nbytes(shape: tuple[int, ...]) -> int:
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def build(path: Path, layers: int) -> int:
    """Write the checkpoint in shards of about half a gigabyte; its bytes."""
    import torch
    from tiny import add_tokenizer

    generator = torch.Generator().manual_seed(0)
    pool = (torch.randn(POOL // 2, generator=generator) * 0.02).bfloat16()
    noise = pool.view(torch.uint8).numpy().tobytes()
    ones = torch.ones(HIDDEN, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled = 0
    for name, shape in tensors(layers):
        if filled > 5e8:
            shards.append([])
            filled = 0
        shards[-1].append((name, shape))
        filled += nbytes(shape)
    path.mkdir(parents=True)
    weight_map, total = {}, 0
    for number, rows in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, shape in rows:
            end = position + nbytes(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
            weight_map[name] = file
            position = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (path / file).open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            for name, shape in rows:
                if len(shape) == 1:
                    target.write(ones[: nbytes(shape)])
                    continue
                left, at = nbytes(shape), (total * 31 + 2 * len(name)) % (POOL // 4) // 2 * 2
                total += 2 * shape[0]
                while left:
                    left -= target.write(noise[at : at + min(left, POOL // 2)])
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config))
    add_tokenizer(path)
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def text(path: Path, tokens: int) -> Path:
    """Documents of 512 letters, each a token."""
    words = ["the", "expert", "reads", "what", "its", "router", "sends", "to", "it", "now"]
    rows = []
    for document in range(tokens // 512):
        line = " ".join(words[(document * 7 + place * place) % len(words)] for place in range(120))
        rows.append(json.dumps({"text": f"{document} {line}"[:512]}))
    path.write_text("\n".join(rows))
    return path


def cool(folder: Path) -> None:
    os.sync()
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_all(folder: Path) -> float:
    start = time.perf_counter()
    buffer = bytearray(16 << 20)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def run(limit: int, threads: int, **options: object) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(limit), json.dumps(options), str(threads)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r"([\d.]+)([GM])B", text).groups()  # type: ignore[union-attr]
    return int(float(number) * {"G": 1e9, "M": 1e6}[unit])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=12.5)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--twin-layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loss-aware", action="store_true", help="also with the loss")
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default: a temp")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench-streamed-", dir=options.folder))
    per_layer = sum(nbytes(shape) for _, shape in tensors(1)) - 2 * nbytes((VOCAB, HIDDEN))
    layers = round((options.gigabytes * 1e9 - 2 * nbytes((VOCAB, HIDDEN))) / per_layer)
    try:
        words = text(work / "text.jsonl", options.tokens)
        domains = {"text": str(words)}
        common = {"domains": domains, "length": 512, "batch_tokens": options.batch_tokens}
        ways: dict[str, dict[str, object]] = {"plain": {}}
        if options.loss_aware:
            ways["loss_aware"] = {"loss_aware": True}
        twin = work / "twin"
        build(twin, options.twin_layers)
        twins = {
            name: both_ways(twin, work, options, **common, **more) for name, more in ways.items()
        }
        shutil.rmtree(twin)
        model = work / "model"
        size = build(model, layers)
        cool(model)
        floor = read_all(model)
        limited = {}
        for name, more in ways.items():
            cool(model)
            limited[name] = run(
                bytes_of(options.memory),
                options.threads,
                model=str(model),
                output=str(work / f"limited-{name}"),
                memory=options.memory,
                **common,
                **more,
            )
    finally:
        shutil.rmtree(work)
    result = {
        "checkpoint_gb": round(size / 1e9, 2),
        "layers": layers,
        "memory": options.memory,
        "plain_reads_s": round(floor, 1),
        "limited": limited["plain"],
        **twins["plain"],
    }
    if options.loss_aware:
        result["loss_aware"] = {"limited": limited["loss_aware"], **twins["loss_aware"]}
        result["loss_aware_times_plain"] = {
            what: round(number(limited["loss_aware"], what) / number(limited["plain"], what), 2)
            for what in ("wall_s", "read_gb", "peak_rss_mb")
        }
    for name, value in result.items():
        print(f"{name}: {value}")
    print(json.dumps(result))
    good = all(found["twin_same_bytes"] for found in twins.values()) and all(
        number(found, "peak_rss_mb") * 1048576 <= bytes_of(options.memory)
        for found in limited.values()
    )
    return 0 if good else 1


def both_ways(
    twin: Path, work: Path, options: argparse.Namespace, **how: object
) -> dict[str, object]:
    """Calibrate the twin in memory and streamed."""
    whole = run(0, options.threads, model=str(twin), output=str(work / "a"), **how)
    waves = run(
        0, options.threads, model=str(twin), output=str(work / "b"), memory=options.memory, **how
    )
    same = (work / "a").read_bytes() == (work / "b").read_bytes()
    for name in ("a", "b"):
        (work / name).unlink()
    return {
        "twin_in_memory": whole,
        "twin_streamed": waves,
        "twin_times_in_memory": round(number(waves, "wall_s") / number(whole, "wall_s"), 2),
        "twin_same_bytes": same,
    }


def number(found: dict[str, object], what: str) -> float:
    return float(str(found[what]))


if __name__ == "__main__":
    sys.exit(main())
