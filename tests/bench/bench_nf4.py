"""Memory and time of experts that stay in four bits, beside the same model in bfloat16.

    python tests/bench/bench_nf4.py [--layers 12] [--experts 64] [--hidden 768] [--width 384] …

Every way of loading runs in a process of its own, on one thread. ``loaded`` is the memory that the
process holds more of once the model is there, ``peak`` the most that it held while loading; both as
the system counts it (pages of mapped files too), in megabytes and over what they are compared with.
Times are CPU milliseconds, the median: of a forward pass over a text, and of each token after it.

===========  =====================================================================
bfloat16     the unquantised model
packed       four bits, plain torch
packed bnb   four bits, with the kernels of bitsandbytes
dense        the same numbers, turned into bfloat16 while loading
===========  =====================================================================
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WAYS = ("bfloat16", "packed", "packed bnb", "dense")
HEAD = """\
             file       loaded              peak            text             token
             MB       MB  of bf16      MB  of file       ms  of bf16      ms  of bf16"""


def memory() -> dict[str, float]:
    """Megabytes that this process holds, and the most it ever held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return {"now": int(kilobytes["VmRSS"]) / 1e3, "peak": int(kilobytes["VmHWM"]) / 1e3}


def measure(
    way: str, path: str, small: str, *, length: int, tokens: int, repeats: int
) -> dict[str, Any]:
    """In a process of its own: load and run."""
    if way == "packed":
        sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    import gc
    import statistics
    import time

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import moeprune  # noqa: F401
    from moeprune.loading.four_bit import _kernels

    torch.set_num_threads(1)
    if way in ("packed bnb", "dense"):
        assert _kernels()
    config = AutoConfig.from_pretrained(path)
    if way == "dense":
        config.quantization_config["dequantize"] = True
    # What the libraries take by themselves is no part of the model.
    AutoModelForCausalLM.from_pretrained(small, config=AutoConfig.from_pretrained(small))(
        torch.ones(1, 2, dtype=torch.int64)
    )
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory()
    started = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.bfloat16).eval()
    seconds = time.perf_counter() - started
    after = memory()
    ids = torch.randint(1, 500, (1, length), generator=torch.Generator().manual_seed(0))
    text, each = [], []
    with torch.no_grad():
        for _ in range(repeats):
            start = time.process_time()
            found = model(ids, use_cache=True)
            text.append(time.process_time() - start)
        cache, token = found.past_key_values, found.logits[:, -1:].argmax(-1)
        for _ in range(tokens):
            start = time.process_time()
            found = model(token, past_key_values=cache, use_cache=True)
            each.append(time.process_time() - start)
            token = found.logits[:, -1:].argmax(-1)
    size = sum(file.stat().st_size for file in Path(path).glob("*.safetensors")) / 1e6
    return {
        "file": size,
        "loaded": after["now"] - before["now"],
        "peak": after["peak"] - before["now"],
        "seconds": seconds,
        "text_ms": 1e3 * statistics.median(text[1:] or text),
        "token_ms": 1e3 * statistics.median(each[1:] or each),
        "packed_modules": sum(hasattr(m, "moeprune_four_bit") for m in model.modules()),
    }


def prepare(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """The model in bfloat16, and its export in four bits."""
    from bench.bench_calibrate import build

    import moeprune

    options.dtype, options.top_k = "bfloat16", options.top_k
    model, _ = build(options)
    model.save_pretrained(folder / "plain")
    del model
    quantize = moeprune.QuantOptions(scheme="nf4", double_quant=options.double_quant)
    moeprune.export(folder / "plain", output=folder / "nf4", quantize=quantize)
    model, _ = build(argparse.Namespace(**{**vars(options), "layers": 1, "experts": 8}))
    model.save_pretrained(folder / "small-plain")
    moeprune.export(folder / "small-plain", output=folder / "small-nf4", quantize=quantize)
    return {way: "plain" if way == "bfloat16" else "nf4" for way in WAYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="qwen3_moe")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--double-quant", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        found = measure(
            *options.measure,
            length=options.length, tokens=options.tokens, repeats=options.repeats,
        )  # fmt: skip
        print(json.dumps(found))
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-nf4-"))
    try:
        results = {}
        for way, name in prepare(options, folder).items():
            paths = [str(folder / name), str(folder / f"small-{name}")]
            sizes = ["--length", options.length, "--tokens", options.tokens]
            command = [sys.executable, __file__, *map(str, sizes), "--measure", way, *paths]
            done = subprocess.run(
                [*command, "--repeats", str(options.repeats)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(done.stderr)
            results[way] = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps({"ways": results, "options": vars(options)}))
        return
    print(f"{options.family} {options.layers} x {options.experts}, hidden {options.hidden}")
    print(HEAD)
    plain = results["bfloat16"]
    for way, found in results.items():
        ratios = {key: found[key] / plain[key] for key in ("loaded", "text_ms", "token_ms")}
        print(
            f"{way:<12}{found['file']:5.0f}   {found['loaded']:6.0f} {ratios['loaded']:8.2f}"
            f"  {found['peak']:6.0f} {found['peak'] / found['file']:8.2f}"
            f"  {found['text_ms']:7.0f} {ratios['text_ms']:8.2f}"
            f"  {found['token_ms']:6.1f} {ratios['token_ms']:8.2f}"
        )


if __name__ == "__main__":
    main()
