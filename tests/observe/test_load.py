"""A model is loaded whole or not at all, and only its tokenizer-free, code-free parts are run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint

from moeprune.errors import CheckpointError, UsageError
from moeprune.observe.load import check_config, check_device, load_causal_lm
from moeprune.observe.quiet import foreign_errors, quiet


@pytest.fixture
def copy(tiny: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("qwen3_moe"), tmp_path / "copy"))


def edit_weights(path: Path, change: Any) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def edit_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def test_dtypes_and_evaluation_mode(tiny: Any) -> None:
    assert load_causal_lm(tiny("olmoe")).dtype == torch.float32  # as stored
    model = load_causal_lm(tiny("olmoe"), dtype="float16", device="cpu")
    assert model.dtype == torch.float16
    assert not model.training


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.2.mlp.experts.5.up_proj.weight",
        "model.layers.0.mlp.gate.weight",
        "model.norm.weight",
    ],
)
def test_a_missing_weight_is_never_made_up(name: str, copy: Path) -> None:
    edit_weights(copy, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError) as caught:
        load_causal_lm(copy)
    assert "\n" not in str(caught.value)
    assert "weight" in str(caught.value) and str(copy) in str(caught.value)


def test_a_misshapen_weight_is_refused(copy: Path) -> None:
    edit_weights(copy, lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(CheckpointError, match=r"norm\.weight has shape \[7\], .* it \[32\]"):
        load_causal_lm(copy)


def test_what_a_library_asserts_of_the_config_is_one_line(copy: Path) -> None:
    edit_config(copy, vocab_size=50)  # the padding token's id is larger
    with pytest.raises(CheckpointError, match=r"cannot load the model .*adding_idx"):
        load_causal_lm(copy)


def test_a_bad_config_is_called_one(copy: Path) -> None:
    check_config(copy)
    edit_config(copy, max_position_embeddings="512")
    with pytest.raises(CheckpointError, match=r"read config\.json .*got str") as caught:
        check_config(copy)
    assert "\n" not in str(caught.value)


def test_expert_tensors_without_a_place_are_refused(copy: Path) -> None:
    scales = {"model.layers.0.mlp.experts.gate_up_proj_scale_inv": torch.ones(12)}
    edit_weights(copy, lambda tensors: tensors.update(scales))
    with pytest.raises(CheckpointError, match=r"no place for .*gate_up_proj_scale_inv"):
        load_causal_lm(copy)


def test_layers_behind_the_last_are_ignored(copy: Path) -> None:
    extra = {
        "model.layers.4.mlp.experts.0.up_proj.weight": torch.ones(16, 32),
        "mtp.layers.0.mlp.experts.0.up_proj.weight": torch.ones(16, 32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    edit_weights(copy, lambda tensors: tensors.update(extra))
    load_causal_lm(copy)


def test_damaged_files_are_one_line(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot load the model") as caught:
        load_causal_lm(copy)
    assert "\n" not in str(caught.value)


def test_an_unknown_family_is_one_line(copy: Path) -> None:
    edit_config(copy, model_type="no_such_family")
    with pytest.raises(CheckpointError, match="no_such_family") as caught:
        load_causal_lm(copy)
    assert "\n" not in str(caught.value)


def test_code_of_a_checkpoint_is_not_run(copy: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (copy / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    edit_config(copy, model_type="own", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    with pytest.raises(CheckpointError) as caught:
        load_causal_lm(copy)
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_bad_choices_are_named() -> None:
    with pytest.raises(UsageError, match="no dtype named 'float23'"):
        load_causal_lm(Path("x"), dtype="float23")
    with pytest.raises(UsageError, match="device 'abacus' cannot be used here"):
        check_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device 'cuda:0' cannot be used here"):
            check_device("cuda:0")
    with pytest.raises(UsageError, match="device 'meta' holds no numbers"):
        check_device("meta")
    assert check_device("auto") is None
    assert str(check_device("cpu")) == "cpu"


def test_loading_is_silent_and_leaves_the_library_as_talkative_as_before(
    tiny: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    level, path = logging.get_verbosity(), tiny("mixtral")
    capfd.readouterr()
    load_causal_lm(path)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert logging.get_verbosity() == level
    assert logging.is_progress_bar_enabled()
    with pytest.raises(ZeroDivisionError), quiet():
        raise ZeroDivisionError
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    "kind", [ZeroDivisionError, AssertionError, MemoryError, KeyboardInterrupt]
)
def test_our_own_mistakes_are_not_blamed_on_files(kind: type[BaseException]) -> None:
    with pytest.raises(kind), foreign_errors("a", "b", error=CheckpointError):
        raise kind
    for theirs in (Exception("x\ny"), ValueError("x"), OSError("x"), KeyError("x")):
        with pytest.raises(CheckpointError), foreign_errors("a", "b", error=CheckpointError):
            raise theirs
    with pytest.raises(UsageError), foreign_errors("a", "b", error=CheckpointError):
        raise UsageError("ours")


def test_tiny_checkpoints_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    one, two = (tiny_checkpoint("mixtral", tmp_path / name) for name in "ab")
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name
