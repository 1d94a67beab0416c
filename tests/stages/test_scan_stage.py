"""scan on tiny models: against a slow loop, resumed, of plans and odd sizes; text within a page."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from hand_router import loaded, perplexity, routed_by_hand
from plans import plan_keeping
from questions import choosing, every_kind, rows
from tiny import tiny_checkpoint

import moeprune
from moeprune.cli.main import main
from moeprune.cli.scan_text import scan_text
from moeprune.core.run import Run
from moeprune.core.scan import Scan
from moeprune.core.scan_findings import Finding
from moeprune.errors import (
    DomainError,
    MismatchError,
    OutputError,
    StoppedError,
    UnsupportedModelError,
    UsageError,
    VerificationError,
)
from moeprune.stages.scan_result import Commands

TEXTS = [f"{n} und {n * n}, größer als {n}. " * (2 + n % 2) for n in range(6)]
TUNING, HELD_OUT = "perplexity-tuning", "perplexity-held-out"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("texts") / "größe.jsonl"
    return str(rows(path, [{"text": text} for text in TEXTS]))


def scan(model: Path, texts: str | None, **words: Any) -> Scan:
    if texts is not None:
        words = {"corpus": {"größe": texts}, "chunk": 50, **words}
    return moeprune.scan(model, device="cpu", dtype="float32", **words)


def data(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_against_a_slow_loop(tiny: Any, texts: str, tmp_path: Path) -> None:
    """Load, write the router by hand, read every other document token by token."""
    path = tiny("qwen3_moe")
    found = scan(path, texts, k1=[1, 2], k2=["E"], gain=0.5, output=tmp_path / "s")
    assert [(row.point.kind, row.point.k1, row.point.k2) for row in found.rows] == [
        ("native", 3, 3),
        *(("control" if k2 == 1 else "grid", 1, k2) for k2 in (1, 2, 3, 6, 12)),
        ("gain", 1, 1),
        *(("control" if k2 == 2 else "grid", 2, k2) for k2 in (2, 3, 6, 12)),
        ("gain", 2, 2),
    ]
    model, tokenizer = loaded(path)
    for row in found.rows:
        policy = row.point.policy
        pair = {"k1": row.point.k1, "k2": row.point.k2}
        gain = 1.0 if policy is None else policy.gain
        with routed_by_hand(model, path, **pair, gain=gain):
            for split, own in ((TUNING, TEXTS[::2]), (HELD_OUT, TEXTS[1::2])):
                wanted = perplexity(model, tokenizer, own, chunk=50)
                assert row.texts[split].perplexity == pytest.approx(wanted, rel=1e-6)
                if policy is not None:
                    ratio = wanted / found.rows[0].texts[split].perplexity
                    assert row.texts[split].ratio == pytest.approx(ratio, rel=1e-6)
    assert found.check["routers"] == found.check["calls"] == 3


def test_gains_are_those_of_the_routers(tiny: Any, texts: str) -> None:
    """Against p[:k₁] / Σ p[:k₂] of the softmax of router logits that a hook sees."""
    path = tiny("qwen3_moe")
    found = scan(path, texts, k1=2, gain=0.5)
    model, tokenizer = loaded(path)
    seen: dict[int, list[Any]] = {}
    for number, module in enumerate(model.modules()):
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(
                lambda _m, _a, out, n=number: seen.setdefault(n, []).append(out[0].softmax(-1))
            )
    with torch.no_grad():
        # Within 2,048 tokens: all that the first split has.
        for text in TEXTS[::2]:
            ids = [257, *tokenizer(text)["input_ids"]]
            for start in range(0, len(ids) - 1, 50):
                end = min(start + 50, len(ids) - 1)
                window = ids[start if start == 0 else max(0, end - 50) : end]
                model(input_ids=torch.tensor([window]), use_cache=False)
    ranked = [torch.cat(parts).sort(-1, descending=True).values for parts in seen.values()]
    default = [row for row in found.rows if row.point.kind in ("control", "grid")]
    for row in default:
        # Native hidden states of later layers are others than those under the policy.
        wanted = ranked[0][:, :2].sum(-1) / ranked[0][:, : row.point.k2].sum(-1)
        assert row.gain_L[0] == pytest.approx(float(wanted.mean()), rel=1e-5)
        assert len(row.gain_L) == 3 and row.gain == pytest.approx(np.mean(row.gain_L))
    assert found.rows[0].gain == 1.0
    assert found.rows[-1].point.kind == "gain" and found.rows[-1].gain == pytest.approx(0.5)


@pytest.mark.parametrize("family", ["olmoe", "deepseek_v3", "glm4_moe", "mixtral", "gpt_oss"])
def test_other_gates(family: str, tiny: Any, texts: str) -> None:
    found = scan(tiny(family), texts, k2=["E"], ablations=True)
    default = [row for row in found.rows if row.point.default]
    assert len(default) == 1
    verdict = {"olmoe": "open", "deepseek_v3": "fails", "glm4_moe": "fails"}.get(family, "works")
    assert found.verdict.expected == verdict
    whole = max(row.point.k2 for row in found.rows)
    gains = {(row.point.k1, row.point.k2): row.gain for row in found.rows[1:-3]}
    assert [row.point.kind for row in found.rows[-3:]] == ["ablation"] * 3
    for (k1, k2), gain in gains.items():
        assert gain is not None and (gain == pytest.approx(1.0, abs=1e-5)) == (k1 == k2)
        assert k1 <= k2 and 0 < gain < 1 + 1e-5
    # A router that does not renormalise is (k, E) by itself.
    own = found.rows[0]
    assert own.point.k2 == (whole if family == "olmoe" else own.point.k1)
    assert (own.gain == pytest.approx(1.0)) == (family != "olmoe")
    assert default[0].point.k2 == (whole if family == "olmoe" else default[0].point.k1)
    if family == "deepseek_v3":  # 2 of 3 groups of 4
        assert {row.point.k2 for row in found.rows if row.point.k1 == 1} == {1, 2, 3, 6, 12}


def test_tasks_are_paired_and_compare_reads_the_folder(
    tiny: Any, texts: str, tmp_path: Path
) -> None:
    model, out = tiny("qwen3_moe"), tmp_path / "扫描 größe"
    choosing(tmp_path / "问.jsonl", 8)
    (tmp_path / "问.toml").write_text(
        'schema = "moeprune.task/1"\nkind = "cloze"\nquestions = "问.jsonl"\n'
        "chat_template = false\n",
        "utf-8",
    )
    found = scan(model, texts, k1=1, tasks=tmp_path / "问.toml", output=out)
    names = [row.point.name for row in found.rows]
    assert sorted(path.name for path in out.iterdir()) == sorted(["scan.json", *names])
    runs = {name: Run.load(out / name) for name in names}
    assert runs["native"].variant == {}
    assert runs["k1-1_k2-6"].variant == {"policy": {"k1": 1, "k2": 6}}
    base = {sample.id: sample.correct for sample in runs["native"].of_task("问")}
    compared = {one.name: one for one in moeprune.compare(out).variants}
    assert set(compared) == set(names) - {"native"}
    for row in found.rows[1:]:
        own = {sample.id: sample.correct for sample in runs[row.point.name].of_task("问")}
        lost = sum(base[one] and not own[one] for one in base)
        won = sum(own[one] and not base[one] for one in base)
        figures = row.tasks["问"]
        assert (figures.lost, figures.won) == (lost, won)
        assert figures.accuracy == sum(own.values()) / len(own)
        assert figures.points == pytest.approx(100 * (won - lost) / len(own))
        pair = compared[row.point.name].tasks["问"].overall
        assert (figures.p, figures.p_holm) == (pair.p, pair.p_holm)
    body = json.loads((out / "scan.json").read_text("utf-8"))
    assert body == json.loads(json.dumps(found.to_json()))
    assert body["schema"] == "moeprune.scan/1"
    assert set(body["texts"]) == {TUNING, HELD_OUT}
    assert body["texts"][TUNING]["sha256"] != body["texts"][HELD_OUT]["sha256"]
    assert [row["name"] for row in body["rows"]] == names
    assert found.commands[0] == f"moeprune compare '{out}'"
    text = scan_text(found, out)
    assert [
        line for line in text.split("\n") if len(line) > 100 and str(model)[:9] not in line
    ] == []
    assert "default reduction" in text and "lost/won" in text
    with pytest.raises(OutputError, match="exists; name another folder, or pass --overwrite"):
        scan(model, texts, k1=1, tasks=tmp_path / "问.toml", output=out)
    before = data(out)
    scan(model, texts, k1=1, tasks=tmp_path / "问.toml", output=out, overwrite=True)
    assert data(out) == before


def test_texts_are_cut_the_same_every_time(tiny: Any, texts: str, tmp_path: Path) -> None:
    one = scan(tiny("qwen3_moe"), texts, k1=1)
    other = scan(tiny("olmoe"), texts, k1=2)
    assert one.texts == other.texts, "the tokenizer is the same"
    assert one.texts != scan(tiny("qwen3_moe"), texts, k1=1, chunk=51).texts
    longer = scan(tiny("qwen3_moe"), texts, k1=1, chunk=10_000)
    assert {split["chunk"] for split in longer.texts.values()} == {512}, "as many as it reads"
    named = {"a": texts, "b": str(rows(tmp_path / "b.jsonl", [{"text": "other"}]))}
    both = scan(tiny("qwen3_moe"), None, k1=1, corpus={"a": texts}, held_out={"b": named["b"]})
    assert [split["names"] for split in both.texts.values()] == [["a"], ["b"]]
    with pytest.raises(UsageError, match=r"--held-out alone leaves no text to choose k2 by\. Give"):
        scan(tiny("qwen3_moe"), None, k1=1, held_out={"b": named["b"]})


def test_what_is_to_be_run_next_loads_the_same_model(tiny: Any, texts: str) -> None:
    found = scan(tiny("mixtral"), texts, k1=1, k2=1, trust_remote_code=True)
    assert "--trust-remote-code" in found.commands[-2].split()
    assert "--trust-remote-code" not in found.commands[-1], "an export runs no code"
    edge = Finding(name="edge", text="", k1=1, k2=2)
    wider = Commands(model="m", plan=None, output=None).after(
        [edge, Finding(name="recommended", text="", k1=1, k2=4)]
    )
    assert wider == (
        "moeprune scan m -o SCAN --k1 1 --k2 4,2 --tasks TASKS",
        "moeprune export m -o OUT --k1 1 --k2 4",
    )
    rescan = Commands(model="org/m", plan=None, output=None, revision="v 2").after(found.findings)
    assert all(line.split()[2:5] == ["org/m", "--revision", "'v"] for line in rescan)


def test_the_built_in_texts_are_the_default(tiny: Any) -> None:
    found = scan(tiny("mixtral"), None, k1=1, k2=1, chunk=32, chunks=2)
    assert [split["names"] for split in found.texts.values()] == [
        ["math", "code", "commonsense", "science", "instruction", "knowledge"]
    ] * 2
    assert [split["chunks"] for split in found.texts.values()] == [12, 12]
    assert [split["tokens"] for split in found.texts.values()] == [12 * 32] * 2


def test_first_windows_of_all_documents_come_first(tiny: Any, tmp_path: Path) -> None:
    long = [{"text": letter * 150} for letter in "abcdef"]
    path = str(rows(tmp_path / "t.jsonl", long))
    out = tmp_path / "s"
    scan(tiny("mixtral"), path, k1=1, k2=1, chunks=4, output=out)
    run = Run.load(out / "native")
    for split, windows in ((TUNING, "0/0 0/1 2/0 4/0"), (HELD_OUT, "1/0 1/1 3/0 5/0")):
        ids = [sample.id.removeprefix("größe/") for sample in run.of_task(split)]
        assert " ".join(ids) == windows


def test_stopped_and_gone_on(tiny: Any, texts: str, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    words: dict[str, Any] = {"k1": 1, "tasks": every_kind(tmp_path, 3)[1:3], "batch_size": 8}
    scan(model, texts, output=tmp_path / "whole", **words)
    stops = 0
    while not (tmp_path / "s").exists():
        calls = iter(range(100))
        try:
            scan(model, texts, output=tmp_path / "s", stop=lambda n=calls: next(n) == 9, **words)
        except StoppedError:
            stops += 1
    assert stops >= 2
    assert data(tmp_path / "s") == data(tmp_path / "whole")
    calls = iter(range(100))
    with pytest.raises(StoppedError):
        scan(model, texts, output=tmp_path / "t", stop=lambda: next(calls) == 3, **words)
    with pytest.raises(MismatchError, match="begun with another list of variants"):
        scan(model, texts, output=tmp_path / "t", **{**words, "k1": 2})


def test_killed_and_gone_on(tiny: Any, texts: str, tmp_path: Path) -> None:
    model, out = tiny("qwen3_moe"), tmp_path / "s"
    scan(model, texts, k1=1, batch_size=2, output=tmp_path / "whole")
    code = (
        "import os, signal, sys, moeprune\n"
        "moeprune.scan(sys.argv[1], corpus={'größe': sys.argv[2]}, chunk=50, k1=1,\n"
        "    batch_size=2, output=sys.argv[3], device='cpu', dtype='float32',\n"
        "    on_progress=lambda at: at.done > 20 and os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    done = forked.run(["-c", code, model, texts, out])
    assert done.returncode == -signal.SIGKILL and not out.exists()
    reports: list[int] = []
    words: dict[str, Any] = {"k1": 1, "batch_size": 2, "output": out}
    scan(model, texts, on_progress=lambda at: reports.append(at.done), **words)
    assert reports[0] > 20
    assert data(out) == data(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"s", "whole"}


def test_a_policy_that_is_not_reached_stops_everything(
    tiny: Any, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that another library has put its own forward over: what the self-check is for."""
    from moeprune.routing import policy

    @contextmanager
    def nothing(chooser: Any, method: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(policy, "replaced", nothing)
    words = ["--corpus", f"t={texts}", "--device", "cpu", "-o", str(tmp_path / "s")]
    with pytest.raises(VerificationError, match=r"not reached in every layer .*layers\.0\.mlp"):
        scan(tiny("qwen3_moe"), texts, k1=1)
    assert main(["scan", str(tiny("qwen3_moe")), *words]) == 1
    assert not list(tmp_path.iterdir()), "another command may have that name"


def test_of_a_plan_it_is_that_of_the_export(tiny: Any, texts: str, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    keep = [[0, 2, 3, 4, 7, 8, 10, 11], [1, 2, 3, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 11]]
    plan = plan_keeping(model, keep)
    plan.save(tmp_path / "plän.json")
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    words: dict[str, Any] = {"k1": 2, "k2": ["E"], "ablations": True}
    masked = scan(model, texts, plan=tmp_path / "plän.json", output=tmp_path / "s", **words)
    exported = scan(out, texts, **words)
    assert masked.native == exported.native == {"k1": 3, "k2": 3, "experts": 8}
    for mine, theirs in zip(masked.rows, exported.rows, strict=True):
        assert mine.point == theirs.point
        for split, figures in mine.texts.items():
            wanted = theirs.texts[split].perplexity
            drawn = mine.point.kind == "ablation" and mine.point.name != "ablation-uniform"
            # What is drawn is drawn of as many as the router has.
            assert drawn or figures.perplexity == pytest.approx(wanted, rel=1e-6)
        assert mine.gain == pytest.approx(theirs.gain, rel=1e-5)
        assert mine.cost["total"] == theirs.cost["total"]
    assert masked.plan is not None and masked.plan["removed"] == 12
    assert masked.rows[0].cost["relative"]["total"] < 1
    assert masked.commands[0].endswith(f"{tmp_path}/s/native {tmp_path}/s")
    assert "--plan" in masked.commands[-1]
    assert len(moeprune.compare(tmp_path / "s" / "native", tmp_path / "s").variants) == 7


def test_what_a_fold_would_write(tiny: Any, texts: str, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    stats = moeprune.calibrate(model, output=tmp_path / "x", domains={"d": texts}, device="cpu")
    found = scan(model, texts, k1=1, stats=tmp_path / "x")
    profile = sum(domain.total("rank_prob_sum") for domain in stats.domains)
    folds = [row for row in found.rows if row.point.kind == "folded"]
    assert [row.point.k2 for row in folds] == [2, 3, 6]
    loop, tokenizer = loaded(model)
    for row in folds:
        policy = row.point.policy
        gains = profile[:, 0] / profile[:, : row.point.k2].sum(axis=1)
        assert policy is not None and (policy.k1, policy.k2) == (1, 1)
        assert policy.gain == pytest.approx(tuple(gains.tolist()))
        with routed_by_hand(loop, model, k1=1, k2=1, gain=gains.tolist()):
            wanted = perplexity(loop, tokenizer, TEXTS[::2], chunk=50)
        assert row.texts[TUNING].perplexity == pytest.approx(wanted, rel=1e-6)
    assert len([one for one in found.findings if one.name == "folded"]) == 1
    with pytest.raises(MismatchError, match="stats are of qwen3_moe"):
        scan(tiny("olmoe"), texts, stats=tmp_path / "x")
    (policy,) = [row.point.policy for row in folds if row.point.k2 == 3]
    out = moeprune.export(model, output=tmp_path / "out", k1=1, k2=3, fold_gain=tmp_path / "x")
    (exported,) = moeprune.eval(out, corpus={"t": texts}, chunk=50, device="cpu")
    (live,) = moeprune.eval(
        model, corpus={"t": texts}, chunk=50, device="cpu", variants={"a": policy}
    )
    for mine, theirs in zip(live.samples, exported.samples, strict=True):
        assert mine.details["nll"] == pytest.approx(theirs.details["nll"], rel=1e-5)


@pytest.mark.parametrize(
    ("experts", "k", "tried"),
    [
        (3, 3, [(3, 3), (1, 1), (1, 2), (1, 3)]),
        (4, 3, [(3, 3), (1, 1), (1, 2), (1, 3), (1, 4)]),
        (5, 1, [(1, 1), (1, 2)]),
    ],
)
def test_few_experts(
    experts: int, k: int, tried: list[tuple[int, int]], texts: str, tmp_path: Path
) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m", num_experts=experts, num_experts_per_tok=k)
    found = scan(path, texts, k2="E" if k > 1 else ())
    assert [(row.point.k1, row.point.k2) for row in found.rows] == tried
    assert all(math.isfinite(row.texts[HELD_OUT].perplexity) for row in found.rows)
    assert scan_text(found, None)


def test_one_expert_leaves_nothing_to_scan(texts: str, tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m", num_experts=1, num_experts_per_tok=1)
    with pytest.raises(UsageError, match="runs 1 of 1 experts a token: there is nothing to scan"):
        scan(path, texts)


def refused(
    model: Path, texts: str | None, match: str, error: type[Exception], **words: Any
) -> None:
    with pytest.raises(error, match=match) as caught:
        scan(model, texts, **words)
    assert "\n" not in str(caught.value)


def test_what_is_refused(tiny: Any, texts: str, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    refused(tiny("llama4_text"), texts, "do not fit family llama4", UnsupportedModelError)
    refused(model, texts, "--k1 13 is more than the 12 experts", UsageError, k1=13)
    refused(model, texts, "--k2 cannot be 0", UsageError, k2=0)
    refused(tiny("deepseek_v3"), texts, "--k1 9 is too many", UsageError, k1=9)
    one = str(rows(tmp_path / "one.jsonl", [{"text": "one document"}]))
    refused(model, one, "holds one document, of which nothing can be held out", UsageError)
    held: Mapping[str, Any] = {"corpus": {"a": texts}, "held_out": {"b": texts}}
    refused(
        model, None, r"--held-out has \d+ chunks of text that --corpus has too", UsageError, **held
    )
    refused(model, str(tmp_path / "no.jsonl"), "no.jsonl", DomainError)
    short = str(rows(tmp_path / "short.jsonl", [{"text": letter} for letter in "ab"]))
    out = tmp_path / "s"
    refused(
        model, short, "no chunk of the first text has more than 1 token", UsageError, output=out
    )
    assert not (tmp_path / "s.progress").exists(), "the same name serves other text"
    for words in ({"k1": "2"}, {"k1": 2.5}, {"gain": "0.5"}):
        refused(model, texts, f"--{next(iter(words))} cannot be", UsageError, **words)
    out = moeprune.export(model, output=tmp_path / "out", k1=1, k2=3)
    refused(out, texts, "was exported with --k1 1 --k2 3", UsageError)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--k1", "E"], "'E' is no whole number from 1, E is for --k2"),
        (["--k1", "0"], "'0' is no whole number from 1. See"),
        (["--k1", "1,,2"], "'' is no whole number from 1"),
        (["--k2", "4,all"], "'all' is neither"),
        (["--gain", "0.5,x"], "'x' is no number above 0"),
        (["--gain", "inf"], "'inf' is no number above 0"),
    ],
)
def test_slips_on_the_command_line(
    args: list[str], match: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", "nowhere", "-o", str(tmp_path / "s"), *args]) == 2
    said = capsys.readouterr().err
    assert match in said and len(said.splitlines()) == 1


def test_from_the_command_line(
    tiny: Any, texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["scan", str(tiny("qwen3_moe")), "--corpus", f"t={texts}", "--chunk", "50"]
    args += ["--device", "cpu", "--k1", "1,2", "--k2", "4", "--k2", "E", "--gain", "0.5,2"]
    assert main([*args, "-o", str(tmp_path / "a")]) == 0
    text = capsys.readouterr().out
    assert "natively k1=3 k2=3" in text and "self-check: 3 routers follow a policy" in text
    assert [
        line for line in text.split("\n") if len(line) > 100 and str(tmp_path)[:9] not in line
    ] == []
    assert main([*args, "-o", str(tmp_path / "b"), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body.pop("output") == str(tmp_path / "b")
    assert " -o OUT --k1 1 --k2 " in body.pop("commands")[-1]
    assert body == json.loads((tmp_path / "b" / "scan.json").read_text("utf-8"))
    pairs = [(row["k1"], row["k2"]) for row in body["rows"]]
    assert pairs[1:9] == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 6), (1, 12), (1, 1), (1, 1)]


def test_one_chunk_has_no_p(tiny: Any, tmp_path: Path) -> None:
    path = str(rows(tmp_path / "t.jsonl", [{"text": letter * 30} for letter in "ab"]))
    found = scan(tiny("qwen3_moe"), path, k1=1, k2=2, output=tmp_path / "s")
    for row in found.to_json()["rows"]:
        assert row["texts"][HELD_OUT]["p"] is None
    lines = scan_text(found, None).splitlines()
    (cells,) = (line.split() for line in lines if line.split()[:2] == ["1", "2"])
    assert "-" in cells and "1.000" not in cells[3:]
    variants = moeprune.compare(tmp_path / "s").to_json()["variants"]
    assert all(one["perplexity"][HELD_OUT]["p"] is None for one in variants)


def test_a_warning_of_several_rows_is_said_once(tiny: Any, texts: str) -> None:
    found = scan(tiny("qwen3_moe"), texts, k1=1)
    names = [row.point.name for row in found.rows]

    def guard(name: str, task: str, text: str) -> dict[str, str]:
        return {"name": name, "level": "warn", "task": task, "text": text}

    guards = [
        *(
            guard("budget", "t", f"task 't': {n} of 9 answers of {one} (x)")
            for n, one in enumerate(names[1:4])
        ),
        guard("budget", "u", f"task 'u': 3 of 9 answers of {names[2]} (x)"),
        guard("resolution", "", "tasks 'a' and 'b': 9 questions"),
        guard("resolution", "", "tasks 'c' and 'native': 8 questions"),
    ]
    text = scan_text(replace(found, guards=tuple(guards)), None)
    said = " ".join(text.split())
    assert f"answers of {names[1]} (x) (True of 3 of {len(names)} rows; scan.json has" in said
    assert said.count("task 't'") == said.count("task 'u'") == 1
    assert "tasks 'a' and 'b'" in said and "tasks 'c' and 'native'" in said
    assert said.count("True of") == 1
