"""One option for every layer within a budget of bytes: the problem, and its answer.

It is a multiple-choice knapsack. L layers; X options of a layer, which may differ between layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprune.core.stats import Array


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """What every option of every layer loses and takes.

    Attributes:
        loss: L arrays (X,) float64, finite, not negative: what the layer loses by an option.
        nbytes: L arrays (X,) int64, not negative: the bytes that it takes.
        budget: the most bytes that all layers may take together.
    """

    loss: tuple[Array, ...]
    nbytes: tuple[NDArray[np.int64], ...]
    budget: int

    def __post_init__(self) -> None:
        assert len(self.loss) == len(self.nbytes) > 0
        for loss_X, nbytes_X in zip(self.loss, self.nbytes, strict=True):
            assert loss_X.shape == nbytes_X.shape and loss_X.size
            assert np.isfinite(loss_X).all() and loss_X.min() >= 0 and nbytes_X.min() >= 0

    @property
    def least(self) -> int:
        """The fewest bytes that any choice takes."""
        return sum(int(nbytes_X.min()) for nbytes_X in self.nbytes)

    def loss_of(self, choice: tuple[int, ...]) -> float:
        """What a choice loses, added up from the first layer to the last."""
        each = (float(loss_X[x]) for loss_X, x in zip(self.loss, choice, strict=True))
        return sum(each, 0.0)

    def bytes_of(self, choice: tuple[int, ...]) -> int:
        """What a choice takes."""
        return sum(int(nbytes_X[x]) for nbytes_X, x in zip(self.nbytes, choice, strict=True))


@dataclass(frozen=True, slots=True)
class Mixed:
    """A choice for a :class:`Mixture`.

    Attributes:
        choice: (L,) the option of each layer.
        loss: what they lose.
        nbytes: what they take, at most the budget.
        bound: proven: no choice within the budget loses less. Equal to ``loss``: the choice is
            the best there is.
    """

    choice: tuple[int, ...]
    loss: float
    nbytes: int
    bound: float
