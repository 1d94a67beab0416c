"""Equal scores: two runs of an unsorted top-k may choose different ones of them."""

import pytest
import torch

from moeprune.routing.rule import reroute


def unsorted(logits_TE: torch.Tensor):  # type: ignore[no-untyped-def]
    scores_TE = logits_TE.sigmoid()

    def run(k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights_TK, ids_TK = scores_TE.topk(k, sorted=False)
        return logits_TE, weights_TK / weights_TK.sum(-1, keepdim=True), ids_TK

    return run


@pytest.mark.parametrize(("k1", "k2"), [(2, 3), (2, 4), (1, 3), (4, 16), (4, 2), (16, 4), (3, 3)])
@pytest.mark.parametrize("levels", [1, 2, 6, 1000])
def test_weights_are_those_of_the_scores_chosen(k1: int, k2: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(k1)
    logits_TE = torch.randint(levels, (500, 128), generator=generator) / levels
    _, weights, ids = reroute(unsorted(logits_TE), k1=k1, k2=k2, renormalises=True, in_order=False)
    scores_TE = logits_TE.sigmoid().double()
    wanted = scores_TE.gather(-1, ids) / scores_TE.topk(k2)[0].sum(-1, keepdim=True)
    assert (weights - wanted).abs().max() < 1e-6
    assert (
        scores_TE.gather(-1, ids).sort(-1).values == scores_TE.topk(k1)[0].sort(-1).values
    ).all()
    assert all(len(set(row)) == k1 for row in ids.tolist())
