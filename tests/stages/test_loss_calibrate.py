"""calibrate --loss-aware: one set of sums, however the work is cut up, stopped or added up."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from killing import PRELUDE, After
from safetensors.numpy import load_file, save_file
from test_resumed_calibrate import DRIVER
from tiny import tiny_checkpoint

import moeprune
from moeprune.core.stats import ALL_FIELDS, FIELDS, LOSS_FIELDS, CalibrationStats
from moeprune.errors import MismatchError, StatsError, StoppedError


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Questions with answers of many lengths, and plain text."""
    folder = tmp_path_factory.mktemp("texts")
    asked = [
        {
            "prompt": f"What is {row} times {row}? " * (1 + row % 3),
            "completion": f"It is {row * row}.",
        }
        for row in range(14)
    ]
    plain = [{"text": f"Zeile {row}: {'mehr Text und ' * (row % 4)}Ende."} for row in range(11)]
    for name, rows in {"asked": asked, "plain": plain}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return {name: str(folder / f"{name}.jsonl") for name in ("asked", "plain")}


def run(
    model: Path, texts: dict[str, str] | None, output: Path | None = None, **options: Any
) -> Any:
    how = {"batch_tokens": 60, "device": "cpu", "loss_aware": True, **options}
    return moeprune.calibrate(model, domains=texts, output=output, **how)


def assert_close(mine: CalibrationStats, theirs: CalibrationStats) -> None:
    """Other batches: the same but for the last bits of what the model computes in float32."""
    for one, other in zip(mine.domains, theirs.domains, strict=True):
        assert set(one.arrays) == set(other.arrays) == set(ALL_FIELDS)
        for name, want in other.arrays.items():
            scale = np.abs(want).max() or 1.0
            atol = 1e-5 * scale if name in LOSS_FIELDS else 1e-6
            np.testing.assert_allclose(
                one.arrays[name], want, rtol=2e-5, atol=atol, err_msg=f"{one.name}/{name}"
            )


@pytest.fixture(scope="module")
def whole(tiny: Any, texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "s"
    run(tiny("qwen3_moe"), texts, path)
    return path


def test_the_plain_sums_are_those_of_a_plain_run(
    tiny: Any, texts: dict[str, str], whole: Path
) -> None:
    found = CalibrationStats.load(whole)
    plain = run(tiny("qwen3_moe"), texts, loss_aware=False)
    assert (found.provenance["loss"], "loss" in plain.provenance) == ("completion", False)
    assert found.provenance["loss_temperature"] == 3
    for mine, theirs in zip(found.domains, plain.domains, strict=True):
        assert set(theirs.arrays) == set(FIELDS)
        for name, array in theirs.arrays.items():
            assert (mine.arrays[name] == array).all(), name
        for name in LOSS_FIELDS:
            assert mine.arrays[name].any(), name


@pytest.mark.parametrize("loss", ["completion", "all"])
def test_the_loss_is_the_models_own(loss: str, tiny: Any, texts: dict[str, str]) -> None:
    """Of one document after the other, as transformers computes it of labels."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tiny("qwen3_moe")
    found = run(path, texts, loss=loss)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    for name, file in texts.items():
        want, count = np.zeros(4), np.zeros(4, int)
        for row, line in enumerate(Path(file).read_text("utf-8").splitlines()):
            parts = json.loads(line)
            text = parts.get("text") or parts["prompt"] + parts["completion"]
            encoded = tokenizer(text, return_offsets_mapping=True)
            ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
            asked = len(parts.get("prompt", "")) if loss == "completion" else 0
            labels = [one if end > asked else -100 for one, end in zip(ids, ends, strict=True)]
            targets = sum(label >= 0 for label in labels[1:])
            with torch.no_grad():
                mean = model(torch.tensor([ids]), labels=torch.tensor([labels])).loss
            want[row % 4] += float(mean) * targets
            count[row % 4] += targets
        domain = found.domain(name)
        assert domain.arrays["loss_tokens"].tolist() == count.tolist()
        np.testing.assert_allclose(domain.arrays["loss_sum"], want, rtol=1e-5)


def test_a_temperature_is_a_head_of_smaller_weights(
    texts: dict[str, str], whole: Path, tmp_path: Path
) -> None:
    """What the loss is stays; what it says of experts is that of a model that is as unsure."""
    settings: dict[str, Any] = {"tie_word_embeddings": False}
    tiny_checkpoint("qwen3_moe", tmp_path / "sure", **settings)
    shutil.copytree(tmp_path / "sure", tmp_path / "unsure")
    file = tmp_path / "unsure" / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] /= 4
    save_file(weights, file, metadata={"format": "pt"})
    sure = run(tmp_path / "sure", texts, loss_temperature=1)
    softer = run(tmp_path / "sure", texts, loss_temperature=4)
    unsure = run(tmp_path / "unsure", texts, loss_temperature=1)
    assert (sure.provenance["loss_temperature"], softer.provenance["loss_temperature"]) == (1, 4)
    for plain, found, want in zip(*(s.domains for s in (sure, softer, unsure)), strict=True):
        assert found.arrays["loss_sum"].tolist() == plain.arrays["loss_sum"].tolist()
        for name in set(LOSS_FIELDS) - {"loss_sum"}:
            other = want.arrays[name]
            atol = 1e-5 * np.abs(other).max()
            np.testing.assert_allclose(found.arrays[name], other, rtol=1e-5, atol=atol)
            if name != "loss_tokens":
                assert not np.allclose(plain.arrays[name], other, rtol=0.1)


def test_shards_merge_into_the_whole(
    tiny: Any, texts: dict[str, str], whole: Path, tmp_path: Path
) -> None:
    """What a document gives does not depend on which documents stand beside it."""
    parts = [tmp_path / f"{index}" for index in range(3)]
    for index, path in enumerate(parts):
        run(tiny("qwen3_moe"), texts, path, shard=(index, 3))
    made = [moeprune.merge(order, output=tmp_path / "merged") for order in (parts, parts[::-1])]
    assert_close(made[0], CalibrationStats.load(whole))
    for mine, theirs in zip(*(one.domains for one in made), strict=True):
        assert all((mine.arrays[name] == theirs.arrays[name]).all() for name in ALL_FIELDS)
    plain = tmp_path / "plain"
    run(tiny("qwen3_moe"), {"asked": texts["asked"]}, plain, shard=(0, 3), loss_aware=False)
    with pytest.raises(MismatchError, match="with --loss-aware and without it"):
        moeprune.merge([plain, parts[1]], output=tmp_path / "merged")


def test_batches_change_nothing_but_last_bits(
    tiny: Any, texts: dict[str, str], whole: Path
) -> None:
    for size in (1, 100_000):
        assert_close(run(tiny("qwen3_moe"), texts, batch_tokens=size), CalibrationStats.load(whole))


def test_stopped_after_every_batch(
    tiny: Any, texts: dict[str, str], whole: Path, tmp_path: Path
) -> None:
    stops = 0
    while not (tmp_path / "s").exists():
        try:
            run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(1))
        except StoppedError:
            stops += 1
    assert stops > 5
    assert (tmp_path / "s").read_bytes() == whole.read_bytes()


def test_another_loss_does_not_go_on(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(2))
    for other in ({"loss": "all"}, {"loss_aware": False}):
        with pytest.raises(MismatchError, match="begun with another --loss"):
            run(tiny("qwen3_moe"), texts, tmp_path / "s", **other)


def test_killed_at_random_moments(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    arguments = [str(tiny("qwen3_moe")), texts["asked"], str(tmp_path / "work")]
    driver = PRELUDE + DRIVER.replace("kills < 10", "kills < 4")
    done = forked.run(["-c", driver, *arguments, repr({"loss_aware": True})])
    assert done.returncode == 0, done.stderr
    kills, resumed = map(int, done.stdout.split())
    assert kills == 4
    assert resumed >= 1


def test_read_a_layer_at_a_time_in_waves(
    tiny: Any, texts: dict[str, str], whole: Path, tmp_path: Path
) -> None:
    """Stopped within a wave, the wave is given up; in the end the bytes are the same."""
    model, how = tiny("qwen3_moe"), {"memory": "6GB"}
    run(model, texts, tmp_path / "streamed", **how)
    assert (tmp_path / "streamed").read_bytes() == whole.read_bytes()
    with pytest.raises(StoppedError):
        run(model, texts, tmp_path / "s", stop=After(9), **how)
    run(model, texts, tmp_path / "s", **how)
    assert (tmp_path / "s").read_bytes() == whole.read_bytes()


def test_read_until_stable_in_rounds(
    tiny: Any, texts: dict[str, str], whole: Path, tmp_path: Path
) -> None:
    """All of the text in rounds is all of the text; and stopped in between, the same bytes."""
    how: dict[str, Any] = {"stop_when_stable": 1.0}
    assert_close(
        run(tiny("qwen3_moe"), texts, tmp_path / "one", **how), CalibrationStats.load(whole)
    )
    while not (tmp_path / "s").exists():
        with contextlib.suppress(StoppedError):
            run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=After(4), **how)
    assert (tmp_path / "s").read_bytes() == (tmp_path / "one").read_bytes()


def test_the_loss_of_what_the_model_wrote(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    """Decode mode: the targets are the tokens that are counted; the sums are of prompts too."""
    found = run(
        tiny("qwen3_moe"), texts, tmp_path / "s", mode="decode", max_new_tokens=5, temperature=1.0
    )
    for domain in found.domains:
        assert (domain.arrays["loss_tokens"] == domain.arrays["tokens"][:, 0]).all()
        assert 0.1 < domain.mean_loss() < 20
    again = run(
        tiny("qwen3_moe"), None, mode="decode", generations=tmp_path / "s.generations.jsonl"
    )
    assert_close(again, found)


def test_a_loss_of_other_tokens_than_the_targets_is_refused(
    tiny: Any, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is saved of a pass that takes no loss: zeros would look measured."""
    from moeprune.observe import prefill

    monkeypatch.setattr(prefill, "reading", lambda model, observer, layout, loss: plain(model))
    with pytest.raises(StatsError, match="the loss was taken of 0 tokens, and 126 are targets"):
        run(tiny("qwen3_moe"), {"asked": texts["asked"]}, tmp_path / "s")
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def plain(model: Any) -> Any:
    from moeprune.observe.inputs import one_pass

    yield one_pass(model)
