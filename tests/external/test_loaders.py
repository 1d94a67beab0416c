"""Pruned checkpoints in mlx-lm, vLLM and llama.cpp: the numbers of transformers, to rounding.

    bash tests/external/install.sh
    python -m pytest -m external tests/external

Each loader lives in a virtual environment of its own and is run as a program. One that is not
installed fails its tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published import EXPERTS, published_checkpoint, transformers_logits

import moeprune
from moeprune.core.plan import PrunePlan

pytestmark = pytest.mark.external

HERE = Path(__file__).resolve().parent
INSTALLED = Path(os.environ.get("MOEPRUNE_LOADERS", HERE.parents[1] / "build" / "external"))
LOADERS = ("mlx", "vllm", "llamacpp")
REFUSES = {  # what each says of weights that do not fit the one count
    "mlx": r"KeyError: '[^']*\.experts\.\d+\.",
    "vllm": r"(Tried|Attempted) to load weight",
    "llamacpp": r"Unprocessed experts",
}
TOLERANCE = 1e-5  # of the largest logit, the rule of verify --forward
TOKENS = [int(t) for t in np.random.default_rng(0).permutation(512)[:48]]
TEXTS = [
    "The mill stood where the stream left the wood, and its wheel turned all night long.",
    "def mean(values):\n    return sum(values) / len(values)\n",
    "Bread wants flour, water, salt, and more patience than most people bring to it.",
]


@dataclass(frozen=True)
class Case:
    """A checkpoint: of which family, how it is pruned and how its config is spelled."""

    family: str
    keep: int = 7
    both_spellings: bool = False
    pad: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)


CASES = {
    "qwen3_moe": Case("qwen3_moe"),
    "qwen3_moe, both spellings": Case("qwen3_moe", keep=6, both_spellings=True),
    "olmoe": Case("olmoe", keep=5),
    "glm4_moe": Case("glm4_moe"),
    "glm4_moe --pad": Case("glm4_moe", pad=True),
}


@dataclass(frozen=True)
class Made:
    """A pruned checkpoint and what transformers computes with it and with its source."""

    folder: Path
    counts: tuple[int, ...]
    logits: torch.Tensor
    source_logits: torch.Tensor
    rounding: float  # largest difference of transformers in float32 from itself in float64


def planned(case: Case, folder: Path, allocation: str = "uniform") -> tuple[Path, PrunePlan]:
    """calibrate → plan of the case's own tiny source, which is written into ``folder``."""
    torch.manual_seed(0)  # Qwen3.5's decays are as transformers draws them
    source = published_checkpoint(
        case.family, folder / "source", both_spellings=case.both_spellings, **case.overrides
    )
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    stats = moeprune.calibrate(source, domains={"text": str(folder / "text.jsonl")})
    return source, moeprune.plan(stats, method="mesa", keep=case.keep, allocation=allocation)


def prune(case: Case, folder: Path, **options: object) -> tuple[Path, tuple[int, ...]]:
    """calibrate → plan → export of the case's own tiny source; the folder and its counts."""
    source, plan = planned(case, folder, "global" if options else "uniform")
    out = moeprune.export(source, plan=plan, output=folder / "out", **options)
    return out, tuple(map(len, plan.keep))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    known: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in known:
            folder, case = tmp_path_factory.mktemp("case"), CASES[name]
            out, counts = prune(case, folder, **({"pad": True} if case.pad else {}))
            report = moeprune.verify(out, source=folder / "source", forward=True)
            assert report.ok, report.to_text()
            logits = transformers_logits(out, TOKENS)
            known[name] = Made(
                folder=out,
                counts=counts,
                logits=logits,
                rounding=largest(logits, transformers_logits(out, TOKENS, torch.float64)),
                source_logits=transformers_logits(folder / "source", TOKENS),
            )
        return known[name]

    return get


def start(
    loader: str, folder: Path, result: Path, options: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the loader's script on ``folder`` in the loader's own environment."""
    python = INSTALLED / loader / "bin" / "python"
    if not python.exists():
        pytest.fail(
            f"{loader} is not installed: there is no {python}; run 'bash tests/external/install.sh "
            f"{loader}', or set MOEPRUNE_LOADERS to where it is",
            pytrace=False,
        )
    ids = result.with_suffix(".json")
    ids.write_text(json.dumps(TOKENS))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # -I: nothing of this environment, so no moeprune, is on the path.
    command = [python, "-I", HERE / f"{loader}_logits.py", folder, ids, result]
    if options:
        chosen = result.with_suffix(".options")
        chosen.write_text(json.dumps(options))
        command.append(chosen)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def largest(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return (found.double() - wanted.double()).abs().max().item()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", CASES)
def test_computes_what_transformers_computes(
    name: str,
    loader: str,
    made: Callable[[str], Made],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    case = made(name)
    assert set(case.counts) != {EXPERTS} and (len(set(case.counts)) > 1) == CASES[name].pad
    result = tmp_path / "seen.npz"
    ended = start(loader, case.folder, result)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    seen = np.load(result)
    kind = "logits" if "logits" in seen else "logprobs"
    found, wanted, source = torch.tensor(seen[kind]), case.logits, case.source_logits
    if kind == "logprobs":
        wanted, source = (x[:-1].double().log_softmax(-1) for x in (wanted, source))
    assert found.shape == wanted.shape
    difference, size = largest(found, wanted), wanted.abs().max().item()
    record_property(
        "figure",
        f"{loader} {seen['version']}, {name}, {'/'.join(map(str, case.counts))} experts: largest "
        f"difference of {kind} {difference:.1e} of {size:.1f} (transformers' own rounding "
        f"{case.rounding:.1e}; from the unpruned model {largest(found, source):.1f})",
    )
    assert difference <= TOLERANCE * size
    assert largest(found, source) > 1  # pruning matters here, so agreement is no accident


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe"])
def test_different_counts_fail_loudly(family: str, loader: str, tmp_path: Path) -> None:
    """``--per-layer`` is for transformers: nothing else may load it as if all were well."""
    out, counts = prune(Case(family), tmp_path, per_layer=True)
    assert len(set(counts)) > 1
    ended = start(loader, out, tmp_path / "seen.npz")
    assert ended.returncode != 0 and not (tmp_path / "seen.npz").exists()
    assert re.search(REFUSES[loader], ended.stderr), ended.stderr[-2000:]
