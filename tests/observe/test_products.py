"""Products with experts' weights: the same numbers as torch's own, however many rows are run."""

from __future__ import annotations

import pytest
import torch

from moeprune.observe import products
from moeprune.observe.dispatch import weighted_sum
from moeprune.observe.products import SPARE_ROWS, linear, round_rows


@pytest.mark.parametrize("rows", [1, 3, 17, 200])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_linear_is_a_product(
    rows: int, transposed: bool, biased: bool, dtype: torch.dtype, grad: bool
) -> None:
    torch.manual_seed(rows)
    values = torch.randn(rows, 48, dtype=dtype)[:, ::2]  # not contiguous, as what a gate gives
    weight = torch.randn(24, 20, dtype=dtype).T if transposed else torch.randn(20, 24, dtype=dtype)
    bias = torch.randn(20, dtype=dtype) if biased else None
    weight.requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        found = linear(values, weight, bias)
    assert found.dtype == dtype and found.requires_grad == grad
    want = values.double() @ weight.double().T + (0 if bias is None else bias.double())
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(found.double(), want, atol=near, rtol=near)


@pytest.mark.parametrize("rows", [1, 17, 200])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_linear_has_the_gradient_of_its_rows(
    rows: int, transposed: bool, biased: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(24, 20, dtype=dtype).T if transposed else torch.randn(20, 24).to(dtype)
    bias = torch.randn(20, dtype=dtype) if biased else None
    values = torch.randn(rows, 24, dtype=dtype, requires_grad=True)
    given = torch.randn(20, rows, dtype=dtype).T  # not contiguous
    with torch.no_grad():
        plain = linear(values, weight, bias)
    found = linear(values, weight, bias)
    assert torch.equal(found, plain)
    found.backward(given)
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    want = given.double() @ weight.double()
    torch.testing.assert_close(values.grad.double(), want, atol=near, rtol=near)
    # Several at once, as experts on rows of one tensor.
    values.grad = None
    sum(linear(values * n, weight, bias).sum() for n in (1.0, 2.0)).backward()
    want = 3 * weight.double().sum(dim=0).expand(rows, -1)
    torch.testing.assert_close(values.grad.double(), want, atol=3 * near, rtol=near)


@pytest.mark.parametrize("there", [False, True], ids=["other", "oneDNN"])
def test_few_numbers_of_rows(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_onednn", lambda: object() if there else None)
    numbers = range(1, 8193)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        like = torch.empty(0, dtype=dtype)
        rounded = [round_rows(rows, like) for rows in numbers]
        if dtype == torch.float32 and not there:
            assert rounded == list(numbers)
            continue
        assert len(set(rounded)) < 400  # of two sizes, fewer than oneDNN keeps
        for rows, more in zip(numbers, rounded, strict=True):
            assert 0 <= more - rows <= min(SPARE_ROWS, rows / 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 40, 333])
def test_weighted_sum_of_rounded_rows(
    tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every expert's rows alone; what it gives for rows beyond them is seen nowhere."""
    monkeypatch.setattr(products, "_onednn", lambda: object())  # rounds wherever it runs
    torch.manual_seed(tokens)
    hidden_TH = torch.randn(tokens, 6).to(dtype)
    weight_EHH = torch.randn(5, 6, 6).to(dtype)
    ids_TK = torch.rand(tokens, 5).topk(3).indices
    weights_TK = torch.rand(tokens, 3)
    ids_TK[ids_TK == 2] = 4 if tokens == 1 else 2  # an expert without a token
    given: list[int] = []

    def run(expert: int, rows_NH: torch.Tensor) -> torch.Tensor:
        given.append(len(rows_NH))
        return rows_NH @ weight_EHH[expert].T

    total_TH, norms_TK = weighted_sum(
        run, hidden_TH, ids_TK, weights_TK, num_experts=5, kind="experts"
    )
    assert total_TH.dtype == dtype and norms_TK.shape == (tokens, 3)
    outputs_TKH = torch.einsum("tkoh,th->tko", weight_EHH[ids_TK].double(), hidden_TH.double())
    want_TH = (outputs_TKH * weights_TK[..., None].double()).sum(dim=1)
    near = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(total_TH.double(), want_TH, atol=near, rtol=near)
    torch.testing.assert_close(norms_TK.double(), outputs_TKH.norm(dim=-1), atol=near, rtol=near)
    assert (sum(given) > 3 * tokens) == (tokens == 333)
