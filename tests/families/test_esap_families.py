"""ESAP of every family: equal to the slow way, and the same whether layers are left out or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from esap_setup import Subject
from family_data import family_data, family_files, write_checkpoint

from moeprune.errors import UnsupportedModelError

# Routers, layers and states of every kind: Mamba between attention, layers that are nothing but
# experts, tuples between layers, two expert sets a layer, idle experts, a table of experts.
QUICK = ("jamba", "nemotron_h", "zaya", "jetmoe", "longcat_flash", "inkling2_text")
QUICK += ("inkling2_loop_text",)
# Layers read states of layers before the last one, or run several times a pass.
WHOLE = {
    "inkling2": "layers of this family share more than hidden states",
    "inkling2_text": "layers of this family share more than hidden states",
    "inkling2_loop": "layer 2 runs more than once a pass",
    "inkling2_loop_text": "layer 2 runs more than once a pass",
}
# A model that denoises gives no logits of the next token, and has two stacks of layers.
REFUSED = {"diffusion_gemma": "lie in 2 stacks of layers .* Use a method that plans from the stats"}


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, id=f"{name}-fast") for name in QUICK),
        *(pytest.param(name, id=name, marks=pytest.mark.families) for name in family_files()),
    ],
)
def test_esap_of_the_family(name: str, tmp_path: Path) -> None:
    subject = Subject(write_checkpoint(family_data(name), tmp_path / "m"))
    if name in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
            subject.esap(top_p=1.0)
        return
    esap, plain = subject.esap(top_p=1.0), subject.esap(top_p=1.0, reuse=False)
    assert esap.report.reuse == (name not in WHOLE), esap.report.reason
    assert esap.report.reason.endswith(WHOLE.get(name, ""))
    assert bool(esap.report.reason) == (not esap.report.reuse or not esap.report.in_parts)
    last_changed = (*subject.genome(1)[:-1], 0)
    genomes = [subject.genome(1), last_changed, subject.genome(0, 1)]
    for counts in genomes:
        assert esap.score(counts) == plain.score(counts)
        assert esap.score(counts) == pytest.approx(subject.slow(counts), abs=1e-6)
    assert plain.layer_forwards == plain.layer_forwards_naive
    assert (esap.layer_forwards < esap.layer_forwards_naive) == esap.report.reuse
