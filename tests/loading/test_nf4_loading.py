"""Experts in four bits, loaded: packed and plain, against a model of the same numbers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run
from four_bit import EXPERT, four_bit_copy, plain_copy
from safetensors.torch import load_file, save_file
from tiny import VOCAB, tiny_checkpoint
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import moeprune
from moeprune.checkpoint import own_code
from moeprune.checkpoint.composing import MODELING_FILE, modeling_text
from moeprune.loading.merging import NOT_ALONE
from moeprune.loading.packed_experts import FourBitParameter

IDS = torch.arange(40).reshape(2, 20) % VOCAB


def load(path: Path, **options: Any) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def packed_modules(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "moeprune_four_bit")]


def made(family: str, folder: Path, **options: Any) -> tuple[Path, Any]:
    source = tiny_checkpoint(family, folder / "source")
    plain = four_bit_copy(source, folder / "packed", **options)
    return folder / "packed", load(plain_copy(source, folder / "plain", plain))


def stored(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= load_file(file)
    return found


def same_tensors(one: Path, other: Path) -> bool:
    mine, theirs = stored(one), stored(other)
    return mine.keys() == theirs.keys() and all(
        value.dtype == theirs[name].dtype and torch.equal(value, theirs[name])
        for name, value in mine.items()
    )


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "mixtral", "glm4_moe"])
def test_packed_and_plain(family: str, double: bool, tmp_path: Path) -> None:
    path, plain = made(family, tmp_path, double=double)
    wanted = logits(plain)
    packed = load(path)
    assert packed_modules(packed) and packed.is_quantized
    assert {p.dtype for m in packed_modules(packed) for p in m.parameters() if p.ndim > 2} == set()
    assert (logits(packed) - wanted).abs().max() < 1e-5
    config = AutoConfig.from_pretrained(path)
    config.quantization_config["dequantize"] = True
    dense = load(path, config=config)
    assert not packed_modules(dense) and not dense.is_quantized
    theirs = plain.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in dense.state_dict().items())
    packed.dequantize()
    assert not packed_modules(packed)
    assert all(torch.equal(value, theirs[name]) for name, value in packed.state_dict().items())


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return made("qwen3_moe", tmp_path_factory.mktemp("double"), double=True)


def test_saving_writes_what_was_stored(double: tuple[Path, Any], tmp_path: Path) -> None:
    path, plain = double
    load(path).save_pretrained(tmp_path / "again")
    assert same_tensors(path, tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert "dequantize" not in config["quantization_config"]
    assert (logits(load(tmp_path / "again")) - logits(plain)).abs().max() < 1e-5
    model = load(path)
    model.dequantize()
    model.save_pretrained(tmp_path / "dense")
    assert "quantization_config" not in json.loads((tmp_path / "dense/config.json").read_text())
    assert same_tensors(tmp_path / "dense", path.parent / "plain")


def test_bfloat16_of_a_bfloat16_source(tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source")
    plain = four_bit_copy(source, tmp_path / "packed", dtype=torch.bfloat16)
    assert {numbers.dtype for numbers in plain.values()} == {torch.bfloat16}
    wanted = load(plain_copy(source, tmp_path / "plain", plain))
    for dtype in (torch.float32, torch.bfloat16):
        model, other = load(tmp_path / "packed", dtype=dtype), wanted.to(dtype)
        for mine, theirs in zip(packed_modules(model), experts_of(other), strict=True):
            for name in ("gate_up_proj", "down_proj"):
                parameter = getattr(mine, name)
                assert isinstance(parameter, FourBitParameter) and parameter.dtype == dtype
                assert torch.equal(parameter[torch.arange(12)], getattr(theirs, name))
        assert (logits(model) - logits(other)).abs().max() < (0.1, 1e-5)[dtype == torch.float32]


def experts_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "is_transposed")]


def test_indexing_is_that_of_a_parameter(double: tuple[Path, Any]) -> None:
    path, plain = double
    mine, theirs = packed_modules(load(path))[0], experts_of(plain)[0]
    for index in (3, torch.tensor(5), [1, 1, 0], slice(2, 9, 3), torch.tensor([7, 2]), []):
        assert torch.equal(mine.down_proj[index], theirs.down_proj[index]), index
    assert mine.down_proj.shape == theirs.down_proj.shape and len(mine.down_proj) == 12


def test_only_chosen_experts_become_plain(
    double: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(double[0])
    asked: list[tuple[str, int]] = []
    own = FourBitParameter.expert

    def noting(self: FourBitParameter, expert: int) -> torch.Tensor:
        asked.append((f"{id(self._module)}.{self._name}", expert))
        return own(self, expert)

    monkeypatch.setattr(FourBitParameter, "expert", noting)
    with torch.no_grad():
        found = model(IDS[:1, :1], output_router_logits=True)
    chosen = [sorted(one.topk(3).indices[0].tolist()) for one in found.router_logits]
    per_layer = {key: [e for name, e in asked if name == key] for key, _ in asked}
    assert [*per_layer.values()] == [ids for ids in chosen for _ in range(2)]


@pytest.mark.parametrize("name", ["eager", "grouped_mm", "batched_mm"])
def test_implementations_of_transformers_run_packed(name: str, double: tuple[Path, Any]) -> None:
    model = load(double[0], experts_implementation=name)
    assert (logits(model) - logits(double[1])).abs().max() < 1e-5


def test_tensors_that_transformers_has_loaded(double: tuple[Path, Any]) -> None:
    """Not read from the files: what is for other devices than the CPU comes this way."""
    model = load(double[0], device_map="auto")
    assert (logits(model) - logits(double[1])).abs().max() < 1e-5


def test_an_implementation_of_somebody_else_is_asked(double: tuple[Path, Any]) -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    model = load(double[0])

    def nothing(module: Any, hidden: Any, ids: Any, weights: Any) -> Any:
        return torch.zeros_like(hidden)

    ALL_EXPERTS_FUNCTIONS["nothing"] = nothing
    try:
        model.set_experts_implementation("nothing")
        assert (logits(model) - logits(double[1])).abs().max() > 0.1
    finally:
        del ALL_EXPERTS_FUNCTIONS["nothing"]


def test_generate_and_the_body_alone(double: tuple[Path, Any]) -> None:
    path, plain = double
    model = load(path)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 256}
    assert torch.equal(model.generate(IDS, **options), plain.generate(IDS, **options))
    body = AutoModel.from_pretrained(path).eval()
    assert packed_modules(body)
    with torch.no_grad():
        difference = body(IDS).last_hidden_state - plain.model(IDS).last_hidden_state
    assert difference.abs().max() < 1e-5


def test_attention_in_four_bits_too(tmp_path: Path) -> None:
    names = re.compile(EXPERT.pattern + r"|self_attn\.[a-z]_proj\.weight$")
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source", hidden_size=64, head_dim=16)
    numbers = four_bit_copy(source, tmp_path / "packed", names=names)
    plain = load(plain_copy(source, tmp_path / "plain", numbers))
    model = load(tmp_path / "packed")
    linear = [n for n, m in model.named_modules() if type(m).__name__ == "Linear4bit"]
    assert sorted({name.rpartition(".")[2] for name in linear}) == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj"]
    )
    assert len(packed_modules(model)) == 3
    config = AutoConfig.from_pretrained(tmp_path / "packed")
    config.quantization_config["dequantize"] = True
    dense = load(tmp_path / "packed", config=config).state_dict()
    assert all(torch.equal(dense[name], value) for name, value in plain.state_dict().items())
    # bitsandbytes computes in bfloat16 where config.json says so.
    assert (logits(model) - logits(plain)).abs().max() < 0.3
    # bitsandbytes lays a weight out anew when it first runs on a CPU, and does not find back. It
    # does so on some processors only.
    weights = [m.weight for m in model.modules() if type(m).__name__ == "Linear4bit"]
    if any(getattr(one.quant_state, "packing_format_for_cpu", False) for one in weights):
        with pytest.raises(ValueError, match=r"q_proj.weight: .*Dequantise .* before it has run"):
            model.dequantize()
    model = load(tmp_path / "packed")
    model.dequantize()
    assert (logits(model) - logits(plain)).abs().max() < 1e-5


def test_plain_experts_beside_packed_ones(tmp_path: Path) -> None:
    names = re.compile(r"layers\.[23]\.mlp\.experts\.\d+\..+\.weight$")
    path, plain = made("qwen3_moe", tmp_path, names=names)
    model = load(path)
    assert len(packed_modules(model)) == 2 and len(experts_of(model)) == 3
    assert (logits(model) - logits(plain)).abs().max() < 1e-5


def test_a_checkpoint_without_experts_is_transformers_own(tmp_path: Path) -> None:
    names = re.compile(r"self_attn\.[a-z]_proj\.weight$")
    path, _ = made("qwen3_moe", tmp_path, names=names)
    model = load(path)
    assert not packed_modules(model)
    assert sum(type(m).__name__ == "Linear4bit" for m in model.modules()) == 16


def test_a_missing_expert_fails(double: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(double[0], tmp_path / "less")
    tensors = stored(tmp_path / "less")
    kept = {k: v for k, v in tensors.items() if "layers.2.mlp.experts.4.up_proj" not in k}
    save_file(kept, tmp_path / "less" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((RuntimeError, ValueError)):
        load(tmp_path / "less")


FOREIGN = """
import json, sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
path, ids, out = sys.argv[1], torch.tensor(json.loads(sys.argv[2])), sys.argv[3]
try:
    AutoModelForCausalLM.from_pretrained(path)
except Exception as problem:
    print(type(problem).__name__)
seen = {}
for name, folder in (("first", path), ("again", out)):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        seen[name] = model(ids).logits
    model.save_pretrained(out)
assert "moeprune" not in sys.modules
seen["packed"] = torch.tensor(sum(hasattr(m, "moeprune_four_bit") for m in model.modules()))
save_file(seen, out + "/seen.safetensors")
"""


def test_the_folder_brings_the_reader(double: tuple[Path, Any], tmp_path: Path) -> None:
    path = tmp_path / "folder"
    shutil.copytree(double[0], path)
    (path / MODELING_FILE).write_text(modeling_text(["nf4"]))
    config = json.loads((path / "config.json").read_text())
    config["auto_map"] = {
        "AutoModel": "modeling_moeprune.MoePruneModel",
        "AutoModelForCausalLM": "modeling_moeprune.MoePruneForCausalLM",
    }
    (path / "config.json").write_text(json.dumps(config))
    out = tmp_path / "again"
    # a process without moeprune
    done = run(["-c", FOREIGN, str(path), json.dumps(IDS.tolist()), str(out)])
    assert done.returncode == 0, done.stderr
    # Without trust transformers 5 says so, and does not go on with random experts.
    assert done.stdout.strip() == "RuntimeError"
    seen = load_file(out / "seen.safetensors")
    assert seen["packed"] == 3
    for key in ("first", "again"):
        assert (seen[key] - logits(double[1])).abs().max() < 1e-5
    # Where moeprune is imported, the folder needs no trust.
    assert moeprune.__version__ and (logits(load(path)) - logits(double[1])).abs().max() < 1e-5


def test_merged_experts_stay_packed_and_are_saved_closed(tmp_path: Path) -> None:
    """GPT-OSS: interleaved, transposed, with biases; only the folder's code merges its experts."""
    source = tiny_checkpoint("gpt_oss", tmp_path / "source")
    out = moeprune.export(source, output=tmp_path / "out", quantize="nf4")
    model = load(out, trust_remote_code=True)
    config = AutoConfig.from_pretrained(out)
    config.quantization_config["dequantize"] = True
    wanted = logits(load(out, trust_remote_code=True, config=config))
    assert len(packed_modules(model)) == 2 and (logits(model) - wanted).abs().max() < 1e-5
    model.save_pretrained(tmp_path / "again")
    assert same_tensors(out, tmp_path / "again")
    again = load(tmp_path / "again", trust_remote_code=True)
    assert packed_modules(again) and (logits(again) - wanted).abs().max() < 1e-5
    for folder in (out, tmp_path / "again"):  # not read with random experts
        with pytest.raises(ValueError, match=NOT_ALONE):
            AutoModelForCausalLM.from_pretrained(folder)
    assert own_code.NOT_ALONE == NOT_ALONE
    model.dequantize()
    model.save_pretrained(tmp_path / "dense")
    assert (logits(load(tmp_path / "dense")) - wanted).abs().max() < 1e-5
