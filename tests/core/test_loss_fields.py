"""The fields of a loss: all or none, in all domains or none; sums that fit each other; merged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from moeprune.core.merging import merge
from moeprune.core.pooling import pool
from moeprune.core.stats import ALL_FIELDS, FIELDS, LOSS_FIELDS, CalibrationStats
from moeprune.errors import MismatchError, StatsError


def stats(**options: Any) -> CalibrationStats:
    options = {"domains": ("math", "code"), "loss": True, **options}
    return synthetic.stats(synthetic.facts((8, 6)), **options)


def body_of(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="numpy") as opened:
        found: dict[str, Any] = json.loads(opened.metadata()["moeprune"])
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stats.safetensors"
    stats().save(path)
    return path


def test_round_trip_and_a_minor_version(file: Path, tmp_path: Path) -> None:
    read = CalibrationStats.load(file)
    read.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    assert read.has_loss and all(set(domain.arrays) == set(ALL_FIELDS) for domain in read.domains)
    assert body_of(file)["schema"] == "moeprune.stats/1.1"
    # Without them a file is what it was before there were any.
    plain = replace(
        read,
        domains=tuple(
            replace(domain, arrays={name: domain.arrays[name] for name in FIELDS})
            for domain in read.domains
        ),
    )
    plain.save(tmp_path / "plain")
    assert body_of(tmp_path / "plain")["schema"] == "moeprune.stats/1"
    assert not CalibrationStats.load(tmp_path / "plain").has_loss
    with pytest.raises(StatsError, match="calibrate again with --loss-aware to collect it"):
        pool(plain, ["fisher_cf_sum"])


@given(seed=st.integers(0, 200), tokens=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_sums_of_the_same_numbers_fit(seed: int, tokens: list[int]) -> None:
    stats(seed=seed, tokens_F=tokens).check_counts()


def test_folds_and_means(file: Path) -> None:
    domain = CalibrationStats.load(file).domain("code")
    parts = [int(domain.total("loss_tokens", folds=[fold])) for fold in range(4)]
    assert sum(parts) == domain.total("loss_tokens") == 6 + 5 + 7 + 4 - 4
    assert domain.mean_loss() == pytest.approx(domain.arrays["loss_sum"].sum() / sum(parts))


Change = Callable[[np.ndarray[Any, Any]], object]


def scaled(factor: float) -> Change:
    return lambda array: array.__imul__(factor)


BAD: dict[str, tuple[str, Change, str]] = {
    "nan": ("drop_change_sum", lambda a: a.__setitem__((0, 0, 0), np.nan), "non-finite"),
    "negative": ("fisher_cf_sum", scaled(-1), "negative"),
    "negative loss": ("loss_sum", scaled(-1), "negative"),
    "change": ("cf_change_sum", scaled(1e3), r"math, layer 0, expert \d: \|cf_change_sum\| is"),
    "documents": ("cf_change_abs_sum", scaled(1e3), "more than abs_cf_sum"),
    "tokens": ("abs_cf_sum", scaled(1e-3), "more than abs_cf_sum"),
    "fisher": ("fisher_cf_sum", scaled(1e4), "fisher_cf_sum is .* more than abs_cf_sum squared"),
    "squares": ("cf_change_sq_sum", scaled(1e4), "more than cf_change_abs_sum squared"),
    "few squares": ("cf_change_sq_sum", scaled(1e-4), "documents x cf_change_sq_sum"),
    "dropped": ("drop_change_sq_sum", scaled(1e-6), "documents x drop_change_sq_sum"),
    "targets": ("loss_tokens", lambda a: a.fill(99), "the loss is of 396 tokens"),
    "no target": ("loss_tokens", lambda a: a.fill(0), "of no token"),
    "beyond": ("abs_cf_sum", lambda a: a.__setitem__((0, 1, 7), 1), "narrow layer"),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_sums_are_refused(case: str, file: Path) -> None:
    name, change, says = BAD[case]
    arrays, body = load_file(file), body_of(file)
    change(arrays[f"math/{name}"])
    save_file(arrays, file, metadata={"moeprune": json.dumps(body)})
    with pytest.raises(StatsError, match=says) as caught:
        CalibrationStats.load(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", LOSS_FIELDS)
def test_a_field_that_is_missing(name: str, file: Path) -> None:
    arrays, body = load_file(file), body_of(file)
    del arrays[f"code/{name}"]
    save_file(arrays, file, metadata={"moeprune": json.dumps(body)})
    with pytest.raises(StatsError, match=f"lacks the field '{name}'"):
        CalibrationStats.load(file)


def test_a_domain_without_them(file: Path) -> None:
    arrays, body = load_file(file), body_of(file)
    for name in LOSS_FIELDS:
        del arrays[f"math/{name}"]
    save_file(arrays, file, metadata={"moeprune": json.dumps(body)})
    with pytest.raises(StatsError, match="'code' was measured with --loss-aware and 'math' with"):
        CalibrationStats.load(file)


def test_changes_without_a_target_are_refused(file: Path) -> None:
    arrays, body = load_file(file), body_of(file)
    arrays["math/loss_tokens"][1] = arrays["math/loss_sum"][1] = 0
    save_file(arrays, file, metadata={"moeprune": json.dumps(body)})
    with pytest.raises(StatsError, match="fisher_sum is not 0 of no target"):
        CalibrationStats.load(file)


def test_shards_add_up_and_what_differs_is_refused() -> None:
    both = stats(domains=("d", "e"))
    first, second = (
        replace(
            both,
            domains=(replace(domain, name="d", source="t", shards=((index, 2),)),),
        )
        for index, domain in enumerate(both.domains)
    )
    for order in ([first, second], [second, first]):
        merged = merge(order).domain("d")
        for name in LOSS_FIELDS:
            want = first.domain("d").arrays[name] + second.domain("d").arrays[name]
            np.testing.assert_array_equal(merged.arrays[name], want)
    plain = synthetic.stats(synthetic.facts((8, 6)), domains=("f",))
    for order in ([first, plain], [plain, first]):
        with pytest.raises(MismatchError, match="with --loss-aware and without it"):
            merge(order)
    answers = replace(second, provenance={**second.provenance, "loss": "completion"})
    with pytest.raises(MismatchError, match="loss 'all' and 'completion'"):
        merge([first, answers])
