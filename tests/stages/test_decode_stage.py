"""calibrate --mode decode from end to end: files, bytes, words, shards, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moeprune
from moeprune.core.completions import completions_of
from moeprune.core.progress import Progress
from moeprune.core.stats import FIELDS, CalibrationStats
from moeprune.errors import (
    DomainError,
    MismatchError,
    MoePruneError,
    OutputError,
    UnsupportedModelError,
    UsageError,
)
from moeprune.stages.merge import merge

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% if not enable_thinking | default(true) %}<no>"
    "{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that ends some completions by itself, with a thinking switch."""
    path = Path(shutil.copytree(tiny("qwen3_moe"), tmp_path_factory.mktemp("model") / "m"))
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in tokenizer.items() if key != "chat_template"})
    )
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [20, 96, 158], "do_sample": True, "temperature": 3.0})
    )
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    chats = [{"messages": [{"role": "user", "content": f"Say {i * i}"}]} for i in range(6)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    prose = [{"text": f"Text {i}: " + "wörter und mehr. " * (1 + i % 4)} for i in range(7)]
    (folder / "prose.jsonl").write_text("\n".join(map(json.dumps, prose)))
    return {"chats": str(folder / "chats.jsonl"), "散文": str(folder / "prose.jsonl")}


def run(model: Path, texts: Any, output: Path | None = None, **options: Any) -> CalibrationStats:
    how = {"mode": "decode", "batch_tokens": 300, **options}
    if how["mode"] == "decode" and "generations" not in how:
        how.setdefault("max_new_tokens", 16)
    return moeprune.calibrate(model, domains=texts, output=output, **how)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def same(mine: CalibrationStats, theirs: CalibrationStats, *, exact: bool = True) -> None:
    assert [d.name for d in mine.domains] == [d.name for d in theirs.domains]
    for one, other in zip(mine.domains, theirs.domains, strict=True):
        for name in FIELDS:
            if exact or name in ("tokens", "count"):
                assert (one.arrays[name] == other.arrays[name]).all(), name
            else:
                np.testing.assert_allclose(
                    one.arrays[name], other.arrays[name], rtol=1e-5, atol=1e-6, err_msg=name
                )


def test_stats_and_what_was_written_are_kept(
    model: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    reports: list[Progress] = []
    made = run(model, texts, tmp_path / "s.safetensors", on_progress=reports.append)
    rows = rows_of(tmp_path / "s.generations.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "s.generations.jsonl",
        "s.safetensors",
    ]
    assert Counter(row["domain"] for row in rows) == {"chats": 6, "散文": 7}
    assert len({row["finished"] for row in rows}) == 2, "the fixture should show both ends"
    for row in rows:
        ends = [token in (20, 96, 158, 257) for token in row["completion_ids"]]
        assert ends[:-1] == [False] * (len(ends) - 1) and ends[-1] == row["finished"]
        assert row["finished"] or len(ends) == 16
        assert ("messages" in row) == (row["domain"] == "chats")
    assert rows[2]["prompt"] == "<user>Say 4<a>"
    # Each token of a completion but the last was fed back, and nothing of the prompt was.
    for domain in made.domains:
        mine = [row for row in rows if row["domain"] == domain.name]
        folds = [0] * 4
        for number, row in enumerate(mine):
            folds[number % 4] += len(row["completion_ids"]) - 1
        assert domain.arrays["tokens"][:, 0].tolist() == folds
        found = completions_of(made.provenance)[domain.name]
        assert found.percentile(100) == max(len(row["completion_ids"]) for row in mine)
        assert found.cut == sum(not row["finished"] for row in mine)
    said = made.provenance
    assert {key: said[key] for key in ("mode", "do_sample", "temperature", "seed")} == {
        "mode": "decode", "do_sample": False, "temperature": 0.0, "seed": 0,
    }  # fmt: skip
    assert (said["max_new_tokens"], said["thinking"]) == (16, "default")
    same(made, CalibrationStats.load(tmp_path / "s.safetensors"))
    stages = [report.stage for report in reports]
    assert stages == sorted(stages, reverse=True) and set(stages) == {"generate", "calibrate"}
    assert [r.done for r in reports if r.stage == "generate"][-1] == 13


def test_the_budget_leaves_room_for_prompts(model: Path, texts: dict[str, str]) -> None:
    made = moeprune.calibrate(model, domains={"d": texts["散文"]}, mode="decode", samples=1)
    assert made.provenance["max_new_tokens"] == 256  # half of 512 positions
    from moeprune.stages.decode_words import DecodeWords

    assert DecodeWords().settled(None).max_new_tokens == 512
    assert DecodeWords().settled(40960).max_new_tokens == 512
    assert DecodeWords(max_new_tokens=7).settled(512).max_new_tokens == 7
    assert DecodeWords.of(generations="f").settled(512).max_new_tokens is None


def test_the_same_request_gives_the_same_bytes(
    model: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    for options in ({}, {"temperature": 0.7, "seed": 5}):
        for name in "ab":
            run(model, texts, tmp_path / name, overwrite=True, **options)
        for suffix in ("", ".generations.jsonl"):
            first, second = (tmp_path / f"{name}{suffix}" for name in "ab")
            assert first.read_bytes() == second.read_bytes()
    greedy = run(model, texts)
    drawn = CalibrationStats.load(tmp_path / "a")
    assert drawn.provenance["do_sample"] is True and greedy.provenance["do_sample"] is False
    assert (drawn.domains[0].arrays["count"] != greedy.domains[0].arrays["count"]).any()


def test_generations_are_read_back_for_the_same_sums(
    model: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    made = run(model, texts, tmp_path / "s")
    kept = tmp_path / "s.generations.jsonl"
    again = run(model, None, tmp_path / "t", generations=kept)
    same(made, again)
    assert again.provenance["completions"] == made.provenance["completions"]
    assert again.provenance["continuations"] == "file"
    assert again.provenance["do_sample"] is None
    assert not (tmp_path / "t.generations.jsonl").exists()
    # One file a domain, named; the name in the file does not count then.
    for name in ("chats", "散文"):
        mine = [json.dumps(row) for row in rows_of(kept) if row["domain"] == name]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(mine))
    named = [f"{name}={tmp_path / name}.jsonl" for name in ("散文", "chats")]
    split = run(model, None, generations=named)
    assert [domain.name for domain in split.domains] == ["散文", "chats"]
    assert (split.domain("chats").arrays["count"] == made.domain("chats").arrays["count"]).all()


def test_another_engines_ids_and_texts_count_the_same(model: Path, tmp_path: Path) -> None:
    """Rows as vLLM or a server writes them; texts alone where every token is a letter."""
    written = [
        {"prompt": "What is it?", "completion": "It is this", "finish_reason": "length"},
        {"prompt": "And that?", "completion": "That", "finish_reason": "stop"},
        {"prompt": [{"role": "user", "content": "hi"}], "completion": "ho"},
    ]
    asked = ["What is it?", "And that?", "<user>hi<a>"]
    ends = [[], [257], [257]]

    def ids(text: str) -> list[int]:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False)["input_ids"]

    plain = [
        {
            "prompt_token_ids": ids(text),
            "token_ids": ids(row["completion"]) + end,
            "finish_reason": row.get("finish_reason", "stop"),
        }
        for row, text, end in zip(written, asked, ends, strict=True)
    ]
    both = [{**row, **other} for row, other in zip(written, plain, strict=True)]
    wrong = [{**row, "prompt_ids": [5, 6, 7], "completion_ids": [9]} for row in written]
    found = []
    for number, rows in enumerate((written, plain, both, wrong)):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        found.append(run(model, None, generations=f"d={tmp_path / str(number)}.jsonl"))
    for other in found[1:]:
        same(found[0], other)
    # Cut: the last token was not fed back. Ended: the end token was not.
    assert found[0].domains[0].arrays["tokens"][:, 0].tolist() == [9, 4, 2, 0]
    assert completions_of(found[0].provenance)["d"].cut == 1


def test_shards_merge_into_the_whole(model: Path, texts: dict[str, str], tmp_path: Path) -> None:
    whole = run(model, texts)
    files = [tmp_path / str(index) for index in range(3)]
    for index, file in enumerate(files):
        run(model, texts, file, shard=(index, 3))
    merged = merge(files[::-1], output=tmp_path / "merged")
    same(whole, merged, exact=False)
    assert merged.provenance["completions"] == whole.provenance["completions"]
    assert merged.domains[0].shards == ((0, 1),)


def test_prefill_and_decode_are_not_added_up(
    model: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    run(model, texts, tmp_path / "d")
    moeprune.calibrate(model, domains=texts, output=tmp_path / "p")
    with pytest.raises(MismatchError, match="mode 'prefill' and 'decode'"):
        merge([tmp_path / "p", tmp_path / "d"], output=tmp_path / "x")
    run(model, texts, tmp_path / "e", temperature=1)
    with pytest.raises(MismatchError, match="do_sample False and True"):
        merge([tmp_path / "d", tmp_path / "e"], output=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_thinking_is_told_and_recorded(model: Path, texts: dict[str, str], tmp_path: Path) -> None:
    made = run(model, texts, tmp_path / "s", thinking="off")
    assert made.provenance["thinking"] == "off"
    kept = tmp_path / "s.generations.jsonl"
    assert rows_of(kept)[0]["prompt"] == "<user>Say 0<a><no>"
    same(made, run(model, None, generations=kept, thinking="off"))
    with pytest.raises(DomainError, match="made with another --thinking"):
        run(model, None, generations=kept, thinking="on")
    with pytest.raises(UsageError, match="no row has 'messages'"):
        run(model, {"p": texts["散文"]}, thinking="on")
    # A shard that has got no chat is a part of a whole that has some.
    rows = [{"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hello"}]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for shard in ((1, 2), (2, 3)):
        part = run(model, {"d": str(tmp_path / "mixed.jsonl")}, thinking="on", shard=shard)
        assert part.provenance["thinking"] == "on"


def test_the_output_of_a_killed_pass_is_not_lost(
    model: Path, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprune.observe import generate, prefill

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    whole = run(model, texts, tmp_path / "whole")
    written = (tmp_path / "whole.generations.jsonl").read_bytes()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prefill, "passes", killed)
        run(model, texts, tmp_path / "s")
    left = {path.name for path in tmp_path.glob("s*")}
    assert left == {"s.generations.jsonl", "s.generations.jsonl.progress"}
    with pytest.raises(OutputError, match=r"s\.generations\.jsonl exists"):
        run(model, texts, tmp_path / "s", resume=False)
    same(run(model, None, generations=tmp_path / "s.generations.jsonl"), whole)
    with monkeypatch.context() as patch:
        patch.setattr(generate, "_batch", killed)  # nothing is written twice
        same(run(model, texts, tmp_path / "s"), whole)
    assert (tmp_path / "s.generations.jsonl").read_bytes() == written
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()
    assert {path.name for path in tmp_path.glob("s*")} == {"s", "s.generations.jsonl"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "decoding"}, "decode"),
        ({"mode": "prefill", "temperature": 1.0}, "--temperature goes with --mode decode only"),
        ({"mode": "prefill", "generations": "x.jsonl"}, "--generations goes with --mode decode"),
        ({"mode": "prefill", "max_new_tokens": 9}, "--max-new-tokens goes with"),
        ({"max_new_tokens": 1}, "at least 2"),
        ({"max_new_tokens": 512}, "leaves no room for a prompt: the model has 512 positions"),
        ({"temperature": -1.0}, "must be 0 .greedy., or 1e-06 or more"),
        ({"temperature": float("nan")}, "must be 0 .greedy., or 1e-06 or more"),
        ({"temperature": 1e-40}, "must be 0 .greedy., or 1e-06 or more"),
        ({"prompt_length": 9, "length": 8}, "--prompt-length 9: a prompt may have 8 tokens"),
        ({"prompt_length": 400, "max_new_tokens": 200}, "a prompt may have 312 tokens"),
        ({"chat_template": False}, "--chat-template off does not go with"),
        ({"prompt_length": 0}, "at least 1"),
        ({"thinking": "maybe"}, "thinking"),
        ({"generations": "x.jsonl"}, "neither --domain nor --recipe goes with it"),
        ({"domains": None, "generations": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"domains": None, "generations": "n.jsonl", "temperature": 1}, "nothing is generated"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_words_that_do_not_go_together(
    model: Path, texts: dict[str, str], options: dict[str, Any], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from moeprune.observe import load

    monkeypatch.setattr(load, "load_causal_lm", None)  # all is found before the model is loaded
    with pytest.raises(MoePruneError, match=words) as caught:
        run(model, options.pop("domains", texts), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"domain": "d", "completion": "x"}, "has no 'prompt'"),
        ({"domain": "d", "prompt": "x"}, "has no 'completion'"),
        ({"prompt": "x", "completion": "y"}, "has no 'domain'"),
        ({"domain": "a/b", "prompt": "x", "completion": "yes"}, "a domain cannot be called"),
        ({"domain": "d", "prompt": "x", "completion": 3}, "'completion' is a int"),
        ({"domain": "d", "prompt": "x", "completion": "yes", "finished": 1}, "true or false"),
        ({"domain": "d", "prompt_ids": [1, -2], "completion_ids": [1, 2]}, "list of token ids"),
        ({"domain": "d", "prompt_ids": [], "completion_ids": [1, 2]}, "prompt has no token"),
        ({"domain": "d", "prompt_ids": [1], "completion_ids": [1]}, "more than one token"),
        ({"domain": "d", "prompt_ids": [1], "completion_ids": [999, 1]}, "gives token 999"),
        ({"domain": "d", "prompt": "x", "completion": "y" * 600}, "the model has 512 positions"),
        ({"domain": "d", "prompt": "y" * 600, "completion": "x"}, "600 tokens, 512 are allowed"),
        ([1], "JSON list"),
    ],
)
def test_rows_that_do_not_serve(model: Path, tmp_path: Path, row: Any, words: str) -> None:
    (tmp_path / "g.jsonl").write_text(json.dumps(row))
    with pytest.raises(MoePruneError, match=words) as caught:
        run(model, None, tmp_path / "s", generations=tmp_path / "g.jsonl")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["g.jsonl"]


def test_null_is_as_good_as_no_key(model: Path, tmp_path: Path) -> None:
    """vLLM writes no prompt where it was asked with token ids."""
    row: dict[str, Any] = {"prompt_token_ids": [1, 2], "token_ids": [3, 4, 5], "finished": False}
    none = dict.fromkeys(("prompt", "messages", "completion", "prompt_ids", "finish_reason"))
    found = []
    for number, rows in enumerate([row, {**row, **none}]):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(json.dumps(rows))
        found.append(run(model, None, generations=f"d={file}"))
    same(*found)
    file.write_text(json.dumps({"prompt": "a", "completion": "bc", "finish_reason": "abort"}))
    cut = run(model, None, generations=f"d={file}")
    assert completions_of(cut.provenance)["d"].to_json() == {"cut": 1, "lengths": [[2, 1]]}


def test_no_row_counts_twice(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "g.jsonl"
    file.write_text(json.dumps({"domain": "d", "prompt": "x", "completion": "yes"}))
    with pytest.raises(UsageError, match=r"g\.jsonl is given twice"):
        run(model, None, generations=[file, file])
    for other in (f"d={file}", tmp_path / ".." / tmp_path.name / "g.jsonl"):
        with pytest.raises(UsageError, match="domain 'd' stands in"):
            run(model, None, generations=[file, other])
    # Rows of several domains are not one domain because somebody calls it so.
    file.write_text(file.read_text() + "\n" + file.read_text().replace('"d"', '"e"'))
    with pytest.raises(UsageError, match="holds the domains 'd' and 'e', and --generations c="):
        run(model, None, generations=[f"c={file}"])
    file.write_text(file.read_text().partition("\n")[0])
    two = run(model, None, generations=[f"c={file}", f"d={file}"])
    assert [domain.documents for domain in two.domains] == [1, 1]


def test_prompts_of_another_models_tokens_are_named(model: Path, texts: dict[str, str]) -> None:
    from moeprune.observe.generate import Decoding, end_tokens, generate
    from moeprune.observe.load import load_causal_lm, load_tokenizer

    live = load_causal_lm(model)
    with pytest.raises(MoePruneError, match="gives token 272, the model has 272"):
        prompts = [np.array([1, 272], np.int32)]
        generate(live, prompts, how=Decoding(max_new_tokens=3), ends=(), batch_tokens=99)
    # An end token that the model does not have says that there is none.
    live.generation_config.eos_token_id = [-1, 20, 272]
    assert end_tokens(live, load_tokenizer(model)) == (20, 257)
    for stated in ("x", 1.5, [[1]]):
        live.generation_config.eos_token_id = stated
        with pytest.raises(MoePruneError, match=r"eos_token_id .* is no token id"):
            end_tokens(live, load_tokenizer(model))


def test_the_generations_are_not_written_over(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "g.jsonl"
    file.write_text(json.dumps({"domain": "d", "prompt": "x", "completion": "yes"}))
    before = file.read_bytes()
    with pytest.raises(OutputError, match="it is read here"):
        run(model, None, file, generations=file, overwrite=True)
    assert file.read_bytes() == before


def test_a_model_that_cannot_write_is_refused(
    model: Path, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen3MoeForCausalLM

    monkeypatch.setattr(Qwen3MoeForCausalLM, "can_generate", lambda *_: False)
    with pytest.raises(UnsupportedModelError, match="has no generate"):
        run(model, texts, tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_a_search_asks_for_its_own_text(model: Path, texts: dict[str, str]) -> None:
    stats = run(model, texts)
    how: dict[str, Any] = {"method": "evoesap", "ratio": 0.25, "model": model, "generations": 1}
    with pytest.raises(UsageError, match="Name text to search by"):
        moeprune.plan(stats, **how)
    plan = moeprune.plan(stats, search_text={"散文": texts["散文"]}, **how)
    assert any("text that calibration used" in warning for warning in plan.warnings)
