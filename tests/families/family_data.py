"""The families under test: one file of ``configs/`` each, and the tiny checkpoint it describes.

A file states

* ``model_type``, ``model_class``: which config and which model of transformers;
* ``config``: keyword arguments of the config, small enough to run in a moment;
* ``router``: what the family's router does with its scores (see ``router_reference.py``);
* ``entry``: of the list in ``tests/architectures/facts.json``, where the file's name is another;
* ``routed_sum``: the module of the block that receives the sum of the experts' outputs, where the
  block's own output is not that sum plus something (a projection or a norm follows);
* ``logits``: the module of the router that gives its logits, where the router returns others;
* ``pairs``: the shared bias of experts that receive (token, expert) pairs;
* ``canvas``: true: the model denoises canvases of ``canvas_length`` tokens after a prompt;
* ``text_model``: the part with a forward pass over text, where the model itself has none;
* ``fast``: true: also in the default run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import add_tokenizer, fill

HERE = Path(__file__).parent
FACTS = HERE.parent / "architectures" / "facts.json"


@dataclass(frozen=True, kw_only=True)
class FamilyData:
    name: str
    model_type: str
    model_class: str
    config: dict[str, Any]
    router: dict[str, Any]
    entry: str = ""
    text_model: str = ""
    logits: str = ""
    pairs: str = ""
    routed_sum: str = ""
    canvas: bool = False
    fast: bool = False


def family_data(name: str) -> FamilyData:
    body = json.loads((HERE / "configs" / f"{name}.json").read_text(encoding="utf-8"))
    return FamilyData(**{"name": name, "entry": name, **body})


def family_files() -> list[str]:
    return sorted(path.stem for path in (HERE / "configs").glob("*.json"))


def all_entries() -> list[str]:
    return [fact["entry"] for fact in json.loads(FACTS.read_text(encoding="utf-8"))]


def params() -> list[Any]:
    """Every family under the marker ``families``; the fast ones a second time without it."""
    every = [pytest.param(name, marks=pytest.mark.families, id=name) for name in family_files()]
    fast = [
        pytest.param(name, id=f"{name}-fast") for name in family_files() if family_data(name).fast
    ]
    return fast + every


def random_model(data: FamilyData) -> Any:
    """The model of the family with seeded weights, in float32."""
    import transformers

    config = transformers.AutoConfig.for_model(data.model_type, **data.config)
    model = getattr(transformers, data.model_class)(config).float().eval()
    fill(model)
    # The same as fill() does to routers under the names that most families use.
    generator = torch.Generator().manual_seed(1)
    for name, tensor in sorted(model.state_dict().items()):
        if name.endswith("tid2eid"):  # different experts for a token
            experts = config.get_text_config().n_routed_experts
            rows = [torch.randperm(experts, generator=generator) for _ in tensor]
            tensor.copy_(torch.stack(rows)[:, : tensor.shape[1]])
        elif re.search(r"\brouter\.(gate|layer|wg|classifier)\.weight$", name):
            tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator))
        elif re.search(r"\brouter_mlp\.\w+\.weight$", name) and tensor.dim() == 2:
            tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator))
            if name.endswith("out_proj.weight"):
                tensor[-1] *= 4
        elif name.endswith("router.proj.weight"):  # of a normalised input, divided by its width
            tensor.copy_(3 * torch.randn(tensor.shape, generator=generator))
        elif name.endswith(("residual_scale", "hidden_states_scale", "router.scale")):
            tensor.add_(1)  # factors around 1; a tied one gets it for each of its names
        elif name.endswith("balancing_biases"):  # loading sets the last to −1; some tokens skip
            tensor.sub_(0.8)[-1] = -1
    return model


def write_checkpoint(data: FamilyData, path: Path) -> Path:
    """A checkpoint as transformers saves it, with the byte tokenizer."""
    random_model(data).save_pretrained(path)
    return add_tokenizer(path)


def load(data: FamilyData, path: Path) -> tuple[Any, dict[str, Any]]:
    """The checkpoint as anyone would load it, with eager experts; and the loading report."""
    import transformers

    model, report = getattr(transformers, data.model_class).from_pretrained(
        path, experts_implementation="eager", output_loading_info=True
    )
    return model.eval(), report


@torch.no_grad()
def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits of a text; what the model draws by itself is the same each time."""
    torch.manual_seed(0)
    found: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    return found


def text_model(data: FamilyData, model: Any) -> Any:
    return getattr(model, data.text_model) if data.text_model else model
