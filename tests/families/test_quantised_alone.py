"""GPT-OSS quantised loads with the code of its folder, where nobody has ever imported moeprune."""

from __future__ import annotations

import json
from pathlib import Path

from family_data import family_data, write_checkpoint
from forked import run
from quantised_reference import write_replaced

import moeprune

LOADING = Path(__file__).parent / "loading_alone.py"
# Experts in four bits stay packed, and their sums are added up in another order.
TOLERANCE = {"int8": 1e-5, "int4": 1e-5, "fp8": 1e-5, "nf4": 1e-4, "int8, then nf4": 1e-4}


def test_gpt_oss_in_every_scheme(tmp_path: Path) -> None:
    source = write_checkpoint(family_data("gpt_oss"), tmp_path / "source")
    pairs = []
    for scheme in TOLERANCE:
        first, _, then = scheme.partition(", then ")
        if then:
            options = moeprune.QuantOptions(scheme=then, requantize=True)
            out = moeprune.export(tmp_path / first, output=tmp_path / scheme, quantize=options)
        else:
            out = moeprune.export(source, output=tmp_path / scheme, quantize=scheme)
        pairs += [out, write_replaced("gpt_oss", source, out, tmp_path / f"{scheme}-plain")]
    done = run([LOADING, *pairs])
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for (scheme, allowed), one in zip(TOLERANCE.items(), found, strict=True):
        assert one["difference"] <= allowed * max(1, one["largest"]), (scheme, one)
        assert "load with trust_remote_code=True" in one["refused"], (scheme, one)
