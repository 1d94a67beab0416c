"""Run jobs, one after the other, in every process of a launch, and say what came of each.

``driver.py JOBS FOLDER``: JOBS is JSON, a list of ``{"name", "options"}``; of ``options``, those
under ``"rank 1"`` (and so on) are of that process alone. ``stop_after`` counts batches; ``remove``
is a file that is gone before; ``call`` another function of moeprune than ``calibrate``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

import moeprune
from moeprune.errors import MoePruneError


def main() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    jobs, folder = Path(sys.argv[1]), Path(sys.argv[2])
    rank = os.environ["RANK"]
    for job in json.loads(jobs.read_text("utf-8")):
        options = {**job["options"], **job["options"].get(f"rank {rank}", {})}
        options = {key: value for key, value in options.items() if not key.startswith("rank ")}
        said = {"reports": [], "warnings": []}
        left = options.pop("stop_after", None)
        if "remove" in options:
            Path(options.pop("remove")).unlink()

        def stop(left: Any = left) -> bool:
            nonlocal asked
            asked += 1
            return left is not None and asked >= left

        asked = 0
        name = options.pop("call", "calibrate")
        try:
            made = getattr(moeprune, name)(
                **options,
                stop=stop,
                on_progress=lambda report, to=said["reports"]: to.append(
                    [report.stage, report.done, report.total]
                ),
                on_warning=said["warnings"].append,
            )
            if name == "calibrate":
                said["tokens"] = {domain.name: domain.num_tokens() for domain in made.domains}
            elif name == "scan":
                said["rows"] = len(made.rows)
            else:
                said["samples"] = {run.name: len(run.samples) for run in made}
        except MoePruneError as error:
            said |= {"error": type(error).__name__, "line": str(error)}
        (folder / f"{job['name']}.{rank}.json").write_text(json.dumps(said), "utf-8")


if __name__ == "__main__":
    main()
