"""``inspect`` against what transformers says of the same checkpoints, and against smaller ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Tiny
from tiny import FAMILIES, tiny_checkpoint

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.stages.inspect import inspect

COUNT = {
    "mixtral": "num_local_experts",
    "gpt_oss": "num_local_experts",
    "granitemoe": "num_local_experts",
    "llama4_text": "num_local_experts",
    "deepseek_v3": "n_routed_experts",
    "glm4_moe": "n_routed_experts",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_transformers_counts(family: str, tiny: Tiny) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny(family), dtype="float32")
    found = inspect(tiny(family))
    state = model.state_dict()
    assert found.parameters == sum(tensor.numel() for tensor in state.values())
    assert found.total_bytes == 4 * found.parameters
    assert found.dtypes == {"F32": found.total_bytes}
    experts = [
        value for name, value in model.named_parameters() if ".experts." in name and value.dim() > 1
    ]
    assert found.expert_parameters == sum(value.numel() for value in experts)
    assert found.shared_experts == any("shared_expert" in name for name in state)
    assert len(found.layer_ids) + len(found.dense_layers) == model.config.num_hidden_layers
    assert not set(found.layer_ids) & set(found.dense_layers)
    assert found.experts_bytes == found.num_experts * sum(found.expert_bytes)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_size_after_pruning_is_that_of_a_model_built_so(
    family: str, tiny: Tiny, tmp_path: Path
) -> None:
    found = inspect(tiny(family))
    assert found.choices
    for choice in found.choices:
        assert choice.keep >= found.min_keep and choice.keep % found.unit == 0
    for choice in (found.choices[0], found.choices[-1]):
        key = {COUNT.get(family, "num_experts"): choice.keep}
        built = tiny_checkpoint(family, tmp_path / str(choice.keep), **key)
        assert CheckpointIndex.open(built).total_bytes == choice.bytes_after
    assert [choice.keep for choice in found.choices] == sorted(
        {choice.keep for choice in found.choices}, reverse=True
    )


def test_group_limited_router_states_its_unit(tiny: Tiny) -> None:
    found = inspect(tiny("deepseek_v3"))
    assert (found.num_groups, found.top_groups) == (3, 2)
    # 12 experts in 3 groups: two must stay in each, and two groups of two must hold 3 experts.
    assert (found.min_keep, found.unit) == (6, 3)
    assert [choice.keep for choice in found.choices] == [9, 6]


def test_a_model_that_runs_all_its_experts_has_no_choice(tmp_path: Path) -> None:
    path = tiny_checkpoint("olmoe", tmp_path / "m", num_experts=3, num_experts_per_tok=3)
    found = inspect(path)
    assert found.choices == () and found.min_keep == 3


def test_layers_that_follow_are_counted(tmp_path: Path, tiny: Tiny) -> None:
    """glm4_moe with its last layer declared a next-token-prediction layer."""
    path = tmp_path / "m"
    path.mkdir()
    for file in tiny("glm4_moe").iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    config["num_hidden_layers"] = 2
    (path / "config.json").write_text(json.dumps(config))
    found, whole = inspect(path), inspect(tiny("glm4_moe"))
    # A token passes neither the experts of that layer nor the rest of it.
    assert found.token.routed == whole.token.routed // 2
    assert found.token.shared == whole.token.shared // 2
    assert found.token.other < whole.token.other
    assert found.layer_ids == (1,) and found.dense_layers == (0,)
    assert found.following_layers == 1 and whole.following_layers == 0
    assert sum(found.expert_bytes) == sum(whole.expert_bytes)
    assert found.experts_bytes == whole.experts_bytes


def test_json_is_plain_and_repeatable(tiny: Tiny) -> None:
    first = json.dumps(inspect(tiny("qwen3_moe")).to_json())
    assert first == json.dumps(inspect(str(tiny("qwen3_moe"))).to_json())
    body = json.loads(first)
    assert body["model_type"] == "qwen3_moe"
    assert body["layer_ids"] == [0, 2, 3] and body["dense_layers"] == [1]
    token = body["token"]
    assert token["routed"] == body["expert_parameters"] * 3 // 12
    assert token["total"] == sum(token[part] for part in ("routed", "shared", "other"))
    assert token["bytes_per_token"] == 4 * token["total"]
    assert {key: token[key] for key in token["native"]} == token["native"]
    assert set(token["relative"].values()) == {1.0}
    assert body["choices"][0] == {
        "ratio": 0.125,
        "keep": 11,
        "bytes_after": body["total_bytes"] - sum(body["expert_bytes"]),
    }


def test_a_dense_model_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file(
        {"model.layers.0.mlp.up_proj.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(UnsupportedModelError, match=r"no routed experts \(model_type llama\)"):
        inspect(tmp_path)
    with pytest.raises(CheckpointError):
        inspect(tmp_path / "nowhere")


def test_command_imports_neither_torch_nor_transformers(tiny: Tiny) -> None:
    code = (
        "import sys\n"
        "from moeprune.cli.main import main\n"
        "try:\n"
        "    main(['inspect', sys.argv[1]])\n"
        "finally:\n"
        "    heavy = {'torch', 'transformers', 'accelerate', 'scipy'} & set(sys.modules)\n"
        "    print('heavy:', sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny("deepseek_v3"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "heavy: []" in done.stderr, done.stderr
    assert "2 MoE layers x 12 experts, top-3 of sigmoid scores" in done.stdout
    assert "MoE layers 1-2; dense 0" in done.stdout
    assert "a token activates " in done.stdout and "in shared ones)" in done.stdout
    assert "a pruned layer keeps 6 to 9 experts, a multiple of 3" in done.stdout
