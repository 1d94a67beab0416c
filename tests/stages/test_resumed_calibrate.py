"""A calibration that is stopped or killed goes on, to the bytes of one that never was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from killing import PRELUDE, After
from safetensors.numpy import load_file
from tiny import tiny_checkpoint
from two_domains import two_domains

import moeprune
from moeprune.errors import CheckpointError, MismatchError, StatsError, StoppedError

DECODE: dict[str, Any] = {"mode": "decode", "max_new_tokens": 6, "temperature": 0.8}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return two_domains(tmp_path_factory.mktemp("texts"))


def run(model: Path, texts: dict[str, str], output: Path, **options: Any) -> Any:
    how = {"batch_tokens": 60, "device": "cpu", **options}
    return moeprune.calibrate(model, domains=texts, output=output, **how)


@pytest.mark.parametrize("mode", [{}, DECODE], ids=["prefill", "decode"])
def test_stopped_after_every_batch(
    mode: dict[str, Any], tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    """One batch a run: as many stops as there are batches, and each run does one."""
    run(tiny("qwen3_moe"), texts, tmp_path / "whole", **mode)
    stops: list[str] = []
    story: list[str] = []
    while not (tmp_path / "s").exists():
        try:
            how = {"stop": After(1), "on_story": story.append, **mode}
            run(tiny("qwen3_moe"), texts, tmp_path / "s", **how)
        except StoppedError as stopped:
            stops.append(str(stopped))
            assert stopped.exit_code == 130
            assert "the same command goes on from there" in stops[-1]
    assert len(stops) > 8
    assert len(set(stops)) == len(stops)  # each got further
    held = [found[1] for line in story if (found := re.search(r"holds ([\d,]+) tokens", line))]
    left = [
        found[1] for stop in stops if (found := re.search(r"after ([\d,]+) of .* tokens", stop))
    ]
    assert held == left != []  # each says what it goes on from
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("*.progress"))


def test_without_an_output_nothing_is_promised(tiny: Any, texts: dict[str, str]) -> None:
    with pytest.raises(StoppedError, match="nothing is kept, as no output was named"):
        moeprune.calibrate(tiny("qwen3_moe"), domains=texts, stop=lambda: True, device="cpu")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"length": 9}, "--length"),
        ({"batch_tokens": 61}, "--batch-tokens"),
        ({"seed": 1}, "--seed"),
        ({"samples": 3}, "--samples"),
        ({"shard": (0, 2)}, "--shard"),
        ({"dtype": "bfloat16"}, "--dtype"),
        (DECODE, "--max-new-tokens"),
        ({"model": "olmoe"}, "model"),
    ],
    ids=str,
)
def test_progress_of_another_request(
    change: dict[str, Any], name: str, tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(3))
    before = (tmp_path / "s.progress").read_bytes()
    change = dict(change)
    model = tiny(change.pop("model", "qwen3_moe"))
    with pytest.raises(MismatchError, match=f"another {name}.*--no-resume") as caught:
        run(model, texts, tmp_path / "s", **change)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "s.progress").read_bytes() == before
    run(model, texts, tmp_path / "s", resume=False, **change)
    assert not list(tmp_path.glob("*.progress"))
    run(model, texts, tmp_path / "whole", **change)
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()


def test_text_that_changed_meanwhile(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"text": "one"}\n{"text": "two"}\n')
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), {"d": str(mine)}, tmp_path / "s", stop=lambda: True, batch_tokens=1)
    mine.write_text('{"text": "one"}\n{"text": "owt"}\n')
    with pytest.raises(MismatchError, match=r"another text.*--no-resume to begin anew"):
        run(tiny("qwen3_moe"), {"d": str(mine)}, tmp_path / "s", batch_tokens=1)


@pytest.mark.parametrize("damage", ["empty", "cut", "not ours", "other schema"])
def test_damaged_progress(damage: str, tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(3))
    path = tmp_path / "s.progress"
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": data[:-100],
            "not ours": (tiny("qwen3_moe") / "model.safetensors").read_bytes(),
            "other schema": data.replace(b"moeprune.progress/1", b"moeprune.progress/7"),
        }[damage]
    )
    with pytest.raises(StatsError, match=r"s\.progress.*--no-resume") as caught:
        run(tiny("qwen3_moe"), texts, tmp_path / "s")
    assert "\n" not in str(caught.value)
    run(tiny("qwen3_moe"), texts, tmp_path / "s", resume=False)


def test_what_another_model_wrote_is_not_gone_on_with(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    """Of the same shape and tokenizer, so that nothing else tells them apart."""
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(4), **DECODE)
    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=1)
    with pytest.raises(MismatchError, match=r"begun by a run of another model.*--no-resume"):
        run(other, texts, tmp_path / "s", **DECODE)


def test_a_completion_that_was_cut_by_the_kill(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    run(tiny("qwen3_moe"), texts, whole, **DECODE)
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(4), **DECODE)
    path = tmp_path / "s.generations.jsonl.progress"
    data = path.read_bytes()
    assert data.count(b"\n") == 5
    path.write_bytes(data[:-7])
    run(tiny("qwen3_moe"), texts, tmp_path / "s", **DECODE)
    assert (tmp_path / "s").read_bytes() == whole.read_bytes()
    path.write_bytes(data.replace(b'"rows"', b'"wors"', 1))
    with pytest.raises(MismatchError, match="--no-resume"):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", overwrite=True, **DECODE)


def test_numbers_that_are_not_finite_are_named(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    """One expert of one layer overflows for the tokens of one document."""
    from moeprune.architectures import layout_of
    from moeprune.checkpoint.index import CheckpointIndex
    from moeprune.observe.load import load_causal_lm
    from moeprune.observe.prefill import prefill

    path = tiny("qwen3_moe")
    index = CheckpointIndex.open(path)
    layout = layout_of(index.config, index.tensors)
    model = load_causal_lm(path, device="cpu")
    corpus = corpus_with_a_rare_token()
    # The rare token's embedding is what makes that document overflow in the first layer already.
    with torch.no_grad():
        model.get_input_embeddings().weight[200] = float("nan")
    with pytest.raises(CheckpointError, match=r"layer 0, document 3: .* not finite"):
        prefill(model, corpus, layout=layout, batch_tokens=100)
    with torch.no_grad():
        model.get_input_embeddings().weight[200] = 0.0
        model.model.layers[2].mlp.experts.down_proj[5, 0, 0] = float("inf")
    with pytest.raises(CheckpointError, match=r"layer 2, document \d: .* not finite"):
        prefill(model, corpus, layout=layout, batch_tokens=1)


def corpus_with_a_rare_token() -> Any:
    from moeprune.observe.domains import Corpus

    random = np.random.default_rng(0)
    documents = [random.integers(0, 100, 9 + row).astype(np.int32) for row in range(6)]
    documents[3][4] = 200
    return Corpus(
        name="d", source="s", sha256="", total=6, numbers=tuple(range(6)),
        documents=tuple(documents),
    )  # fmt: skip


# Kills a run again and again, at a random moment, and lets the next one go on.
DRIVER = """
model, text, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
options = eval(sys.argv[4])

def calibrate(output):
    moeprune.calibrate(
        model, domains={"d": text}, output=output, batch_tokens=40, device="cpu", **options
    )

def job():
    calibrate(work / "s")

calibrate(work / "first")  # so that everything is imported before a fork
start = time.perf_counter()
assert run(lambda: calibrate(work / "whole"))
seconds = time.perf_counter() - start
whole = (work / "whole").read_bytes()
chance = random.Random(1)
kills = resumed = 0
while kills < 10:
    kills += not run(job, after=(0.2 + 0.8 * chance.random()) * seconds)
    resumed += any(work.glob("s.*progress"))
    if (work / "s").exists() or kills % 3 == 0:
        late = (work / "s").exists()  # killed after the last write, before it tidied up
        assert late or run(job)
        assert (work / "s").read_bytes() == whole
        for path in work.glob("s*"):
            assert late or path.name in ("s", "s.generations.jsonl"), path
            path.unlink()
print(kills, resumed)
"""


@pytest.mark.parametrize("mode", [{}, DECODE], ids=["prefill", "decode"])
def test_killed_at_ten_random_moments(
    mode: dict[str, Any], tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    long = tmp_path / "long.jsonl"
    rows = [{"text": f"{row} und {row * row} " * 3} for row in range(12 if mode else 60)]
    long.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "work").mkdir()
    arguments = [str(tiny("qwen3_moe")), str(long), str(tmp_path / "work"), repr(mode)]
    done = forked.run(["-c", PRELUDE + DRIVER, *arguments])
    assert done.returncode == 0, done.stderr
    kills, resumed = map(int, done.stdout.split())
    assert kills == 10
    assert resumed >= 1


def test_the_file_holds_whole_sums(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match=r"stopped after (\d+) of \d+ tokens"):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(2))
    tensors = load_file(tmp_path / "s.progress")
    tokens = tensors["数学/tokens"]
    assert (tokens == tokens[:, :1]).all()  # every layer has seen the same
    assert 0 < tokens[:, 0].sum() <= 120
