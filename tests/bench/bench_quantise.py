"""Time and memory of ``export --quantize`` against ``cp`` + fsync of the source.

    python tests/bench/bench_quantise.py [--gigabytes 2] [--schemes int8 int4 fp8 nf4]
        [--layouts per-expert] [--shard-gigabytes 0.5 100] [--repeats 3]

The checkpoint is that of bench_export.py, of normally distributed weights; both find the source in
the page cache and end with fsync of every file. Beside the wall time of the process stands that of
the call (torch takes seconds to import), the processor seconds of all its threads, and the floor:
what one process needs to encode as many weights that lie in memory, over the processors at hand, or
what cp and fsync of the output need, whichever is more. Medians; JSON is the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_export import POOL_BYTES, build, files, run_copy, warm

EXPORT = """
import resource, sys, time
from pathlib import Path
import torch
from moeprune.stages.export import export
started = time.perf_counter()
export(Path(sys.argv[1]), quantize=sys.argv[2], output=sys.argv[3])
ended = time.perf_counter()
used = resource.getrusage(resource.RUSAGE_SELF)
status = Path("/proc/self/status").read_text()
peak = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
print(ended - started, used.ru_utime + used.ru_stime, peak)
"""
IDLE = """
from pathlib import Path
import torch, moeprune.stages.export, moeprune.quant.schemes.nf4
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line))
"""
ENCODE = """
import sys, time
import torch
torch.set_num_threads(1)
from moeprune.core.quantisation import SchemeOptions
from moeprune.quant import encoded, scheme
weight = (torch.randn(1024, 2048) * 0.02).bfloat16()
size = scheme(sys.argv[1]).group_size([tuple(weight.shape)], None)
options = SchemeOptions(group_size=size)
times = []
for _ in range(9):
    started = time.process_time()
    encoded(sys.argv[1], weight, options)
    times.append(time.process_time() - started)
print(min(times) / weight.numel())
"""


def normal_pool() -> bytes:
    """Normally distributed bfloat16."""
    import torch

    return bytes((torch.randn(POOL_BYTES // 2) * 0.02).bfloat16().view(torch.uint8).numpy())


def printed(code: str, *arguments: object) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(word) for word in done.stdout.split()]


def experts_of(folder: Path) -> int:
    """Parameters of all experts."""
    config = json.loads((folder / "config.json").read_text())
    names = ("num_hidden_layers", "num_experts", "moe_intermediate_size", "hidden_size")
    layers, experts, intermediate, hidden = (config[name] for name in names)
    return 3 * int(layers * experts * intermediate * hidden)


def measure(model: Path, work: Path, scheme: str, repeats: int) -> dict[str, object]:
    out = work / "out"
    exports, copies, smaller = [], [], []
    for turn in range(repeats):
        for kind in ("export", "copy") if turn % 2 == 0 else ("copy", "export"):
            os.sync()
            warm(model)
            if kind == "export":
                started = time.perf_counter()
                found = printed(EXPORT, model, scheme, out)
                exports.append((time.perf_counter() - started, *found))
                written = sum(path.stat().st_size for path in files(out))
                smaller.append(run_copy(out, work / "again"))
                shutil.rmtree(work / "again")
            else:
                copies.append(run_copy(model, out))
            shutil.rmtree(out)
    wall, call, processor, peak = (
        statistics.median(column) for column in zip(*exports, strict=True)
    )
    copy = statistics.median(copies)
    encoding = printed(ENCODE, scheme)[0] * experts_of(model) / (os.cpu_count() or 1)
    return {
        "scheme": scheme,
        "gigabytes_written": round(written / 1e9, 3),
        "export_seconds": round(wall, 2),
        "call_seconds": round(call, 2),
        "processor_seconds": round(processor, 2),
        "cp_fsync_source_seconds": round(copy, 2),
        "call_times_cp": round(call / copy, 2),
        "floor_seconds": round(max(encoding, statistics.median(smaller)), 2),
        "floor_encoding_seconds": round(encoding, 2),
        "peak_rss_mb": round(peak * 1024 / 1e6),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    schemes = ("int8", "int4", "fp8", "nf4")
    parser.add_argument("--schemes", choices=schemes, nargs="+", default=schemes)
    parser.add_argument(
        "--layouts", choices=("per-expert", "fused"), nargs="+", default=["per-expert"]
    )
    parser.add_argument("--shard-gigabytes", type=float, nargs="+", default=[0.5, 100.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default: a temp")
    options = parser.parse_args()
    results = []
    idle = round(printed(IDLE)[0] * 1024 / 1e6)
    print(f"a process that has imported torch and the stages holds {idle} MB")
    print(
        "layout      shards  scheme  GB written  export s  (call s)  CPU s  cp s  times  floor  MB"
    )
    for layout in options.layouts:
        for shard in options.shard_gigabytes:
            work = Path(tempfile.mkdtemp(prefix="bench-quantise-", dir=options.folder))
            try:
                model = work / "model"
                build(
                    model,
                    gigabytes=options.gigabytes,
                    layout=layout,
                    shard_bytes=shard * 1e9,
                    pool=normal_pool(),
                )
                shards = len(list(model.glob("*.safetensors")))
                for scheme in options.schemes:
                    row = measure(model, work, scheme, options.repeats)
                    results.append({"layout": layout, "shards": shards} | row)
                    print(
                        f"{layout:10}  {shards:6}  {scheme:6}  {row['gigabytes_written']:10}  "
                        f"{row['export_seconds']:8}  {row['call_seconds']:8}  "
                        f"{row['processor_seconds']:5}  {row['cp_fsync_source_seconds']:4}  "
                        f"{row['call_times_cp']:5}  {row['floor_seconds']:5}  {row['peak_rss_mb']}",
                        flush=True,
                    )
            finally:
                shutil.rmtree(work)
    print(json.dumps({"gigabytes": options.gigabytes, "idle_rss_mb": idle, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
