"""plan --quantize mixed: the best schemes (and counts) there are, and never a byte too many."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from dequantised import plain_weights, stored
from tiny import tiny_checkpoint

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.quantisation import MIXABLE
from moeprune.core.stats import CalibrationStats
from moeprune.errors import MismatchError, PlanError, UnsupportedModelError, UsageError
from moeprune.stages.identify import open_model
from moeprune.stages.scoring import Scorer
from moeprune.stages.weighed import weigh

Tiny = Callable[[str], Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose weights are larger than their names."""
    path = tmp_path_factory.mktemp("model") / "model"
    return tiny_checkpoint("qwen3_moe", path, hidden_size=64, moe_intermediate_size=64)


@pytest.fixture(scope="module")
def stats(model: Path) -> CalibrationStats:
    return synthetic.stats(open_model(model).facts, seed=5)


@pytest.fixture(scope="module")
def weighed(model: Path):
    return weigh(open_model(model), on_progress=lambda _: None)


def carries_code(folder: Path) -> bool:
    return (folder / "modeling_moeprune.py").exists()


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sizes_of_every_choice(model: Path, tmp_path: Path) -> tuple[int, int]:
    """Bytes of the smallest and the largest export that mixes."""
    whole = folder_bytes(moeprune.export(model, output=tmp_path / "int4", quantize="int4"))
    return whole, folder_bytes(model)


def test_errors_are_those_that_an_export_has(model: Path, weighed, tmp_path: Path) -> None:
    for scheme in ("int8", "int4"):
        out = moeprune.export(model, output=tmp_path / scheme, quantize=scheme)
        found, source = plain_weights(out), stored(model)
        for row, layer in enumerate((0, 2, 3)):
            for expert in range(12):
                names = [
                    f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight"
                    for name in ("gate", "up", "down")
                ]
                gone = sum(np.sum((found[n] - source[n].double().numpy()) ** 2) for n in names)
                norm = sum(np.sum(source[n].double().numpy() ** 2) for n in names)
                assert weighed.errors[scheme][row, expert] == pytest.approx(
                    float((gone / norm) ** 0.5), rel=1e-5
                )
    assert not weighed.errors["none"].any()


def test_sizes_are_those_of_files_within_a_few_bytes(model: Path, weighed, tmp_path: Path) -> None:
    plain = folder_bytes(model)
    for scheme in ("int8", "int4"):
        options = moeprune.QuantOptions(scheme=scheme, group_size=weighed.group_sizes[scheme])
        out = moeprune.export(model, output=tmp_path / scheme, quantize=options)
        texts = ("README.md", "moeprune.json", "config.json")
        took = plain - folder_bytes(out) + sum((out / name).stat().st_size for name in texts)
        took -= (model / "config.json").stat().st_size
        each = zip(weighed.nbytes["none"], weighed.nbytes[scheme], strict=True)
        expected = sum(12 * (before - after) for before, after in each)
        assert took == pytest.approx(expected, abs=36 * 9 * 8)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.55, 0.9])
def test_no_other_choice_of_schemes_loses_less(
    share: float, model: Path, stats: CalibrationStats, weighed, tmp_path: Path
) -> None:
    low, high = sizes_of_every_choice(model, tmp_path)
    budget = int(low + share * (high - low)) + 2000
    path = tmp_path / "plan.json"
    plan = moeprune.plan(stats, quantize="mixed", budget=budget, weights=model, output=path)
    assert PrunePlan.load(path) == plan and plan.num_removed == 0
    out = moeprune.export(model, plan=path, output=tmp_path / "out")
    assert folder_bytes(out) <= plan.quantize.details["bytes"] <= budget
    worth_LE = Scorer(stats, "reap-sum", options={}).pooled()
    losses = {scheme: (worth_LE * weighed.errors[scheme]).sum(axis=1) for scheme in MIXABLE}
    chosen = plan.quantize.schemes
    assert plan.quantize.details["loss"] == pytest.approx(
        sum(losses[scheme][row] for row, scheme in enumerate(chosen))
    )
    room = budget - folder_bytes(out)
    for other in itertools.product(MIXABLE, repeat=3):
        loss = sum(losses[scheme][row] for row, scheme in enumerate(other))
        more = 12 * sum(
            weighed.nbytes[new][row] - weighed.nbytes[old][row]
            for row, (new, old) in enumerate(zip(other, chosen, strict=True))
        )
        if more <= room - 1500:  # what it takes is known within a few bytes of texts
            assert loss >= plan.quantize.details["loss"] * (1 - 1e-9), other
    assert plan.quantize.details["bound"] == pytest.approx(plan.quantize.details["loss"])


@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("method", ["reap", "rm-uniform"])
@pytest.mark.parametrize("share", [0.66, 0.8, 1.1])
def test_counts_and_schemes_together_are_the_best(
    allocation: str,
    method: str,
    share: float,
    model: Path,
    stats: CalibrationStats,
    weighed,
    tmp_path: Path,
) -> None:
    low, _ = sizes_of_every_choice(model, tmp_path)
    budget = int(low * share)
    plan = moeprune.plan(
        stats,
        quantize="mixed",
        max_bytes=budget,
        weights=model,
        method=method,
        allocation=allocation,
    )
    out = moeprune.export(
        model, plan=plan, output=tmp_path / "out", per_layer=plan.uniform_count is None
    )
    assert folder_bytes(out) <= budget
    criterion = "reap" if method == "reap" else "mass"
    worth_LE = Scorer(stats, criterion, options={}).pooled()
    order_LE = np.argsort(worth_LE, axis=1, kind="stable")

    @cache
    def option(row: int, leave: int, scheme: str) -> tuple[float, int]:
        gone, kept = order_LE[row, :leave], order_LE[row, leave:]
        error_E = weighed.errors[scheme][row]
        loss = worth_LE[row, gone].sum() + (worth_LE[row, kept] * error_E[kept]).sum()
        return float(loss), len(kept) * weighed.nbytes[scheme][row]

    counts = (0, *range(1, 10))  # a token runs three
    picked = [
        option(row, 12 - len(ids), scheme)
        for row, (ids, scheme) in enumerate(zip(plan.keep, plan.quantize.schemes, strict=True))
    ]
    loss, taken = sum(own for own, _ in picked), sum(size for _, size in picked)
    assert plan.quantize.details["loss"] == pytest.approx(loss)
    room = taken + budget - folder_bytes(out) - 1500
    each = list(itertools.product(counts, MIXABLE))
    code = (out / "modeling_moeprune.py").stat().st_size if carries_code(out) else 60_000
    least = np.inf
    for choice in itertools.product(each, repeat=3):
        same = len({count for count, _ in choice}) == 1
        if allocation == "uniform" and not same:
            continue
        options = [option(row, *one) for row, one in enumerate(choice)]
        # Where counts or schemes differ, code comes along; how large it is, is known about.
        coded = not same or len({scheme for _, scheme in choice}) > 1
        spare = room + (code - 4000) * carries_code(out) * (not coded)
        spare -= code * coded * (not carries_code(out))
        spare -= 20_000 * (coded and carries_code(out))  # of counts, of schemes, of both
        if sum(size for _, size in options) <= spare:
            least = min(least, sum(own for own, _ in options))
    assert loss <= least * (1 + 1e-9)
    for row, ids in enumerate(plan.keep):
        assert set(ids) == set(order_LE[row, 12 - len(ids) :].tolist())


def test_pruned_first_and_stored_then(model: Path, stats: CalibrationStats, tmp_path: Path) -> None:
    plain = moeprune.plan(stats, method="reap", ratio=0.25)
    plan = moeprune.plan(
        stats, method="reap", ratio=0.25, quantize="mixed", budget="700kB", weights=model
    )
    assert plan.keep == plain.keep and plan.domain_loss == plain.domain_loss
    assert plan.quantize.details["criterion"] == "reap-sum"
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    assert folder_bytes(out) <= 700_000
    whole = moeprune.export(
        model, plan=plain, quantize="mixed", budget="700kB", stats=stats, output=tmp_path / "two"
    )
    record = json.loads((whole / "moeprune.json").read_text("utf-8"))
    assert record["quantisation"]["schemes"] == list(plan.quantize.schemes)


def test_export_chooses_by_itself(model: Path, stats: CalibrationStats, tmp_path: Path) -> None:
    plan = moeprune.plan(stats, quantize="mixed", budget="900kB", weights=model)
    out = moeprune.export(
        model, quantize="mixed", budget=900_000, stats=stats, output=tmp_path / "out", k1=2, k2=6
    )
    record = json.loads((out / "moeprune.json").read_text("utf-8"))
    assert record["plan"]["quantize"]["budget"] == 900_000
    assert record["quantisation"]["schemes"] == list(plan.quantize.schemes)
    assert folder_bytes(out) <= 900_000


@pytest.mark.parametrize("words", [{"budget": 1000}, {"max_bytes": 1000, "method": "reap"}])
def test_the_smallest_size_that_is_named_can_be_had(
    words, model: Path, stats: CalibrationStats, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot be met") as caught:
        moeprune.plan(stats, quantize="mixed", weights=model, **words)
    (option,) = set(words) - {"method"}
    least = int(str(caught.value).split(f"Use --{option.replace('_', '-')} ")[1].split()[0])
    plan = moeprune.plan(stats, quantize="mixed", weights=model, **{**words, option: least})
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    assert folder_bytes(out) <= least
    with pytest.raises(UsageError, match="cannot be met"):
        moeprune.plan(stats, quantize="mixed", weights=model, **{**words, option: least - 700})


def test_an_export_that_grew_is_refused(
    model: Path, stats: CalibrationStats, tmp_path: Path
) -> None:
    least = folder_bytes(moeprune.export(model, output=tmp_path / "int4", quantize="int4"))
    plan = moeprune.plan(stats, quantize="mixed", budget=least + 4000, weights=model)
    with pytest.raises(UsageError, match="the plan's budget is"):
        moeprune.export(model, plan=plan, output=tmp_path / "out", k1=2, k2=6)
    assert not (tmp_path / "out").exists()


def test_auto_says_why_and_the_same_words_give_the_same_bytes(
    model: Path, stats: CalibrationStats, tmp_path: Path
) -> None:
    low, _ = sizes_of_every_choice(model, tmp_path)
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for path in files:
        plan = moeprune.plan(
            stats, quantize="mixed", max_bytes=int(low * 0.7), weights=model, output=path
        )
    assert files[0].read_bytes() == files[1].read_bytes()
    assert plan.options["method"] == "auto" and plan.reasons
    out = moeprune.export(model, plan=files[0], output=tmp_path / "out")
    assert folder_bytes(out) <= plan.quantize.details["bytes"] <= int(low * 0.7)


def test_stats_with_a_loss(model: Path, tmp_path: Path) -> None:
    """Best goes with a budget for the schemes; of both at once auto takes another method."""
    low, _ = sizes_of_every_choice(model, tmp_path)
    stats = synthetic.stats(open_model(model).facts, seed=5, loss=True)
    words: dict[str, Any] = {"quantize": "mixed", "weights": model}
    plan = moeprune.plan(stats, max_bytes=int(low * 0.7), **words)
    assert plan.method in ("mesa", "reap") and set(plan.predicted) == {"math", "code", "prose"}
    with pytest.raises(UsageError, match="--method best does not go with --quantize mixed"):
        moeprune.plan(stats, method="best", max_bytes=int(low * 0.7), **words)
    pruned = moeprune.plan(stats, method="best", ratio=0.25, allocation="uniform")
    stored = moeprune.plan(
        stats, method="best", ratio=0.25, allocation="uniform", budget=int(low * 0.9), **words
    )
    assert stored.keep == pruned.keep and stored.predicted == pruned.predicted
    whole = moeprune.plan(stats, budget=int(low * 1.05), **words)
    assert not whole.num_removed and not whole.predicted


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"budget": "1MB"}, "--weights MODEL"),
        ({"weights": "MODEL"}, "needs one of --budget SIZE"),
        ({"weights": "MODEL", "budget": "1MB", "max_bytes": "1MB"}, "needs one of --budget SIZE"),
        ({"weights": "MODEL", "budget": "much"}, "--budget 'much' is not a size"),
        ({"weights": "MODEL", "budget": "1MB", "quantize": "int4"}, "export --quantize int4"),
        ({"weights": "MODEL", "budget": "1MB", "quantize": None, "ratio": 0.5}, "--budget 1MB is"),
        ({"weights": "MODEL", "budget": "100MB"}, "fits already"),
        ({"weights": "MODEL", "budget": "100MB", "ratio": 0.25}, "fits already"),
        ({"weights": "MODEL", "budget": "1MB", "target": "llama.cpp"}, "reads one scheme"),
        ({"weights": "MODEL", "budget": "1MB", "keep_layers": [0]}, "--keep-layers speaks of"),
        ({"weights": "MODEL", "budget": "1MB", "allocation": "global"}, "--allocation speaks of"),
        ({"weights": "MODEL", "max_bytes": "1MB", "method": "mesa-exact"}, "--method mesa-exact"),
        (
            {"weights": "MODEL", "max_bytes": "90kB", "method": "mesa", "allocation": "global"},
            "goes with methods that rank",
        ),
    ],
)
def test_words_that_do_not_go_together(words, says, model, stats) -> None:
    given = {"quantize": "mixed", **words}
    if "weights" in given:
        given["weights"] = model
    with pytest.raises(UsageError) as caught:
        moeprune.plan(stats, **given)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"quantize": "int4", "budget": "1MB", "stats": True}, "give --quantize mixed too"),
        ({"quantize": "mixed", "budget": "1MB"}, "--budget is given and --stats is not"),
        ({"quantize": "mixed", "stats": True}, "--stats is given and --budget is not"),
        ({"quantize": "mixed", "budget": "1MB", "stats": True, "stream": True}, "--stream reads"),
        ({"quantize": "mixed"}, "give --budget and --stats"),
    ],
)
def test_words_of_export_that_do_not_go_together(words, says, model, stats, tmp_path) -> None:
    given = words | ({"stats": stats} if "stats" in words else {})
    with pytest.raises(UsageError) as caught:
        moeprune.export(model, output=tmp_path / "out", **given)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused(tiny: Tiny, stats: CalibrationStats) -> None:
    with pytest.raises(MismatchError, match="Give the model that the stats are of"):
        moeprune.plan(stats, quantize="mixed", budget="1MB", weights=tiny("olmoe"))


def test_a_quantised_model_is_refused(model: Path, stats: CalibrationStats, tmp_path: Path) -> None:
    out = moeprune.export(model, output=tmp_path / "int8", quantize="int8")
    own = synthetic.stats(open_model(out).facts, seed=1)
    with pytest.raises(UnsupportedModelError, match="quantised already"):
        moeprune.plan(own, quantize="mixed", budget="1MB", weights=out)


def test_an_edited_plan_is_followed_and_its_budget_held(
    model: Path, stats: CalibrationStats, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    moeprune.plan(stats, quantize="mixed", budget="900kB", weights=model, output=path)
    body = json.loads(path.read_text("utf-8"))
    for line in body["layers"]:
        line["scheme"] = "int4"
    body["quantize"]["group_sizes"] = {"int4": 32}
    path.write_text(json.dumps(body), "utf-8")
    out = moeprune.export(model, plan=path, output=tmp_path / "out")
    record = json.loads((out / "moeprune.json").read_text("utf-8"))
    assert record["quantisation"]["schemes"] == ["int4"] * 3
    for line in body["layers"]:
        line["scheme"] = "none"
    path.write_text(json.dumps(body), "utf-8")
    with pytest.raises(UsageError, match="there is nothing to change"):
        moeprune.export(model, plan=path, output=tmp_path / "three")
    body["layers"][0]["scheme"] = "int3"
    path.write_text(json.dumps(body), "utf-8")
    with pytest.raises(PlanError, match="int3"):
        moeprune.export(model, plan=path, output=tmp_path / "three")


def test_a_mask_is_not_taken_for_it(model: Path, stats: CalibrationStats, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    moeprune.plan(stats, quantize="mixed", budget="900kB", weights=model, output=path)
    (tmp_path / "text.jsonl").write_text('{"text": "What is it?"}\n', "utf-8")
    corpus = {"text": str(tmp_path / "text.jsonl")}
    with pytest.raises(UsageError, match="Export it, and evaluate the export"):
        moeprune.eval(model, output=tmp_path / "run", corpus=corpus, plan=path)
