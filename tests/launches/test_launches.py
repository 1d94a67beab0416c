"""Several processes write the file of one, fail together with one line, and go on together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launching import assert_same, drive, only_one_says
from tiny import tiny_checkpoint

import moeprune
from moeprune.core.stats import CalibrationStats
from moeprune.errors import MismatchError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an odd number of experts, one that can be halved, and texts."""
    folder = tmp_path_factory.mktemp("launch")
    tiny_checkpoint("qwen3_moe", folder / "odd", num_experts=7, num_hidden_layers=2)
    tiny_checkpoint("qwen3_moe", folder / "even")
    tiny_checkpoint("gpt_oss", folder / "biased")
    rows = [{"text": f"Text {i}: " + "wörter und mehr. " * (i % 5)} for i in range(23)]
    pairs = [
        {"prompt": f"{i} + {i} = " * (i % 4), "completion": f"{2 * i}, sure."} for i in range(9)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)), "utf-8")
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (folder / "b.txt").write_text("A running text that is cut into pieces.\n" * 9)
    (folder / "one.txt").write_text("A single document.")
    return folder


def asked(place: Path, **more: Any) -> dict[str, Any]:
    domains = {"prose": "a.jsonl", "数学": "b.txt", "one": "one.txt"}
    return {
        "model": str(place / "odd"),
        "domains": {name: str(place / file) for name, file in domains.items()},
        "length": 40,
        "batch_tokens": 100,
        "device": "cpu",
        **more,
    }


def decode(**more: Any) -> dict[str, Any]:
    return {"mode": "decode", "max_new_tokens": 6, **more}


def stable(place: Path) -> dict[str, Any]:
    domains = {"prose": str(place / "a.jsonl"), "数学": str(place / "b.txt")}
    return {"domains": domains, "stop_when_stable": 0.3, "batch_tokens": 60}


def loss(place: Path) -> dict[str, Any]:
    """Of answers and of all of a text; the second process has no batch of the last domain."""
    domains = {"pairs": "pairs.jsonl", "数学": "b.txt", "one": "one.txt"}
    named = {name: str(place / file) for name, file in domains.items()}
    return {"domains": named, "loss_aware": True}


def alone(place: Path, name: str, **more: Any) -> Path:
    """What one process writes."""
    output = place / f"alone-{name}.safetensors"
    if not output.exists():
        moeprune.calibrate(**asked(place, output=output, **more))
    return output


def spread(place: Path, model: str, **more: Any) -> dict[str, Any]:
    options = asked(place, model=str(place / model), expert_parallel=2, **more)
    del options["device"]
    return options


Said = dict[str, list[Any]]


@pytest.fixture(scope="module")
def two(place: Path) -> Said:
    """Everything that two processes do, in one launch of two."""
    (place / "there").write_text("no stats")
    (place / "other.txt").write_text("Another document.")
    other = {"domains": {"one": str(place / "other.txt")}}
    missing = {"domains": {"one": str(place / "missing.txt")}}
    out = {name: str(place / f"two-{name}.safetensors") for name in OUTPUTS}
    jobs = {
        "text": asked(place, output=out["text"]),
        "again": asked(place, output=out["again"]),
        "greedy": asked(place, output=out["greedy"], **decode()),
        "drawn": asked(place, output=out["drawn"], **decode(temperature=1.0, seed=3)),
        "file": asked(
            place,
            output=out["file"],
            **decode(
                generations=str(place / "two-drawn.generations.jsonl"),
                domains=None,
                max_new_tokens=None,
            ),
        ),
        "spread": spread(place, "even", output=out["spread"]),
        "biased": spread(place, "biased", output=out["biased"]),
        "spread-greedy": spread(place, "even", output=out["spread-greedy"], **decode()),
        "spread-odd": spread(place, "odd"),
        "spread-three": spread(place, "even") | {"expert_parallel": 3},
        "there": asked(place, output=str(place / "there")),
        "missing": asked(place, output=out["none"], **{"rank 1": missing}),
        "other": asked(place, output=out["none"], **{"rank 1": other}),
        "longer": asked(place, output=out["none"], **{"rank 0": {"length": 41}}),
        "stopped": asked(place, output=out["stopped"], **{"rank 1": {"stop_after": 2}}),
        "left": asked(place, output=out["left"], stop_after=3),
        "resumed": asked(place, output=out["stopped"]),
        "stopped-greedy": asked(place, output=out["stopped-greedy"], stop_after=2, **decode()),
        "resumed-greedy": asked(place, output=out["stopped-greedy"], **decode()),
        "stopped-spread": spread(
            place, "even", output=out["stopped-spread"], **{"rank 1": {"stop_after": 4}}
        ),
        "resumed-spread": spread(place, "even", output=out["stopped-spread"]),
        "apart": spread(place, "even", output=out["apart"], stop_after=4),
        "together": spread(
            place, "even", output=out["apart"], **{"rank 1": {"remove": out["apart"] + KEPT}}
        ),
        "streamed": asked(place, output=out["streamed"], memory="1GB"),
        "loss": asked(place, output=out["loss"], **loss(place)),
        "loss-streamed": asked(place, output=out["loss-streamed"], memory="1GB", **loss(place)),
        "stopped-loss": asked(
            place, output=out["stopped-loss"], **loss(place), **{"rank 1": {"stop_after": 2}}
        ),
        "resumed-loss": asked(place, output=out["stopped-loss"], **loss(place)),
        "loss-spread": spread(place, "even", loss_aware=True),
        "stable": asked(place, output=out["stable"], **stable(place)),
        "stopped-stable": asked(
            place, output=out["stopped-stable"], **stable(place), **{"rank 1": {"stop_after": 5}}
        ),
        "resumed-stable": asked(place, output=out["stopped-stable"], **stable(place)),
        "to-nowhere": asked(place),
    }
    return drive(2, jobs, place)


KEPT = ".progress.1-of-2"
OUTPUTS = (
    *("text", "again", "greedy", "drawn", "file", "none", "stopped", "left", "stopped-greedy"),
    *("spread", "biased", "spread-greedy", "stopped-spread", "stable", "stopped-stable"),
    *("streamed", "apart", "loss", "loss-streamed", "stopped-loss"),
)


def output(place: Path, name: str) -> Path:
    return place / f"two-{name}.safetensors"


def test_two_write_what_one_writes(place: Path, two: Said) -> None:
    assert_same(alone(place, "text"), output(place, "text"))
    assert output(place, "text").read_bytes() == output(place, "again").read_bytes()
    whole = {d.name: d.num_tokens() for d in CalibrationStats.load(output(place, "text")).domains}
    assert [said["tokens"] for said in two["text"]] == [whole, whole]
    assert [said["tokens"] for said in two["to-nowhere"]] == [whole, whole]


def test_one_reports_and_warns_for_all(place: Path, two: Said) -> None:
    first, second = two["text"]
    assert second["reports"] == second["warnings"] == []
    assert len(first["warnings"]) == 1
    total = sum(first["tokens"].values())
    done = [report[1] for report in first["reports"]]
    assert done == sorted(done) and 0 < done[-1] <= total
    assert {report[2] for report in first["reports"]} == {total}


@pytest.mark.parametrize(
    ("name", "more"),
    [("greedy", decode()), ("drawn", decode(temperature=1.0, seed=3))],
)
def test_two_write_the_text_that_one_writes(
    name: str, more: dict[str, Any], place: Path, two: Said
) -> None:
    stats = alone(place, name, **more)
    assert_same(stats, output(place, name))
    texts = [p.with_suffix(".generations.jsonl") for p in (stats, output(place, name))]
    assert texts[0].read_bytes() == texts[1].read_bytes()
    assert texts[0].stat().st_size > 1000


def test_two_read_what_was_written(place: Path, two: Said) -> None:
    from_file = CalibrationStats.load(output(place, "file"))
    drawn = CalibrationStats.load(output(place, "drawn"))
    assert [d.name for d in from_file.domains] == [d.name for d in drawn.domains]
    for mine, theirs in zip(from_file.domains, drawn.domains, strict=True):
        assert (mine.arrays["count"] == theirs.arrays["count"]).all()


@pytest.mark.parametrize(
    ("name", "model", "more"),
    [
        ("spread", "even", {}),
        ("biased", "biased", {}),
        ("spread-greedy", "even", decode()),
        ("stopped-spread", "even", {}),
    ],
)
def test_experts_in_two_processes_give_the_sums_of_one(
    name: str, model: str, more: dict[str, Any], place: Path, two: Said
) -> None:
    """The outputs of two parts are added in another order, in float32."""
    assert not any("error" in said for said in two[name.replace("stopped", "resumed")])
    one = alone(place, f"{name}-{model}", model=str(place / model), **more)
    assert_same(one, output(place, name), rtol=1e-5)
    if more:
        texts = [p.with_suffix(".generations.jsonl") for p in (one, output(place, name))]
        assert texts[0].read_bytes() == texts[1].read_bytes()


def test_what_cannot_be_spread_is_refused(two: Said) -> None:
    assert "does not divide the 7 experts of layer 0" in only_one_says(
        two["spread-odd"], "UsageError"
    )
    assert "--expert-parallel 3 takes a launch of 3 processes, and this one has 2" in only_one_says(
        two["spread-three"], "UsageError"
    )


def test_what_fails_in_one_or_all_is_said_once(place: Path, two: Said) -> None:
    assert "there exists" in only_one_says(two["there"], "OutputError")
    assert "missing.txt" in only_one_says(two["missing"], "DomainError")
    assert "process 1 was not given the same text as process 0" in only_one_says(
        two["other"], "MismatchError"
    )
    assert "not given the same options" in only_one_says(two["longer"], "MismatchError")
    assert (place / "there").read_text() == "no stats"
    assert not output(place, "none").exists()


def test_stopped_launches_go_on(place: Path, two: Said) -> None:
    assert only_one_says(two["stopped"], "StoppedError") == (
        "stopped; what the 2 processes have measured is kept beside the output, if one was named: "
        "the same launch goes on from there."
    )
    only_one_says(two["stopped-greedy"], "StoppedError")
    only_one_says(two["stopped-spread"], "StoppedError")
    assert output(place, "stopped").read_bytes() == output(place, "text").read_bytes()
    tokens = sum(two["text"][0]["tokens"].values())
    assert 0 < two["resumed"][0]["reports"][0][1] < tokens
    assert output(place, "stopped-greedy").read_bytes() == output(place, "greedy").read_bytes()
    kept = {path.name for path in place.glob("*.progress*")} - {
        "two-apart.safetensors.progress.0-of-2"
    }
    assert kept == {f"two-left.safetensors.progress.{rank}-of-2" for rank in (0, 1)}


def test_two_that_read_the_model_a_layer_at_a_time_write_the_same(place: Path, two: Said) -> None:
    assert_same(alone(place, "text"), output(place, "streamed"))
    assert not [path for path in place.iterdir() if "streamed" in path.name and path.is_dir()]


def test_two_follow_a_loss_back_as_one_does(place: Path, two: Said) -> None:
    one = alone(place, "loss", **loss(place))
    assert all(domain.total("fisher_cf_sum").any() for domain in CalibrationStats.load(one).domains)
    assert_same(one, output(place, "loss"))
    assert_same(one, output(place, "loss-streamed"))
    only_one_says(two["stopped-loss"], "StoppedError")
    assert output(place, "stopped-loss").read_bytes() == output(place, "loss").read_bytes()
    assert "--loss-aware follows the loss back through all experts" in only_one_says(
        two["loss-spread"], "UsageError"
    )


def test_processes_that_share_experts_go_on_from_one_place(two: Said) -> None:
    line = only_one_says(two["together"], "MismatchError")
    assert "were not at the same place. Give --no-resume" in line


def test_two_stop_reading_where_one_does(place: Path, two: Said) -> None:
    one = alone(place, "stable", **stable(place))
    assert_same(one, output(place, "stable"))
    assert len(CalibrationStats.load(one).provenance["stable"]["curve"]) > 1
    only_one_says(two["stopped-stable"], "StoppedError")
    assert output(place, "stopped-stable").read_bytes() == output(place, "stable").read_bytes()


def test_another_number_of_processes_does_not_go_on(place: Path, two: Said) -> None:
    left = output(place, "left")
    with pytest.raises(MismatchError, match="begun by a launch of 2 processes, this one has 1"):
        moeprune.calibrate(**asked(place, output=left))
    moeprune.calibrate(**asked(place, output=left, resume=False))
    assert left.read_bytes() == alone(place, "text").read_bytes()
    assert not list(place.glob("two-left*.progress*"))


def test_four_with_empty_shares_and_a_shard_each(place: Path) -> None:
    jobs = {
        "whole": asked(place, output=str(place / "four-whole")),
        "first": asked(place, output=str(place / "four-0"), shard=[0, 2]),
        "second": asked(place, output=str(place / "four-1"), shard=[1, 2]),
        "few": asked(place, output=str(place / "four-few"), batch_tokens=10_000),
        "spread": spread(place, "even", output=str(place / "four-spread")) | {"expert_parallel": 4},
    }
    said = drive(4, jobs, place)
    assert not any("error" in one for ranks in said.values() for one in ranks)
    assert_same(alone(place, "text"), place / "four-whole")
    assert_same(alone(place, "shard", shard=(1, 2)), place / "four-1")
    assert_same(alone(place, "few", batch_tokens=10_000), place / "four-few")
    even = alone(place, "spread-even", model=str(place / "even"))
    assert_same(even, place / "four-spread", rtol=1e-5)
    moeprune.merge([place / "four-1", place / "four-0"], output=place / "four-merged")
    shards = [alone(place, f"shard-{i}", shard=(i, 2)) for i in (0, 1)]
    moeprune.merge(shards, output=place / "alone-merged")
    assert_same(place / "alone-merged", place / "four-merged")
    assert_same(alone(place, "text"), place / "four-merged", rtol=1e-5)
