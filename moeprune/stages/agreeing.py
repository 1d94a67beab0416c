"""How far the variants of an evaluation select the experts that another model selects.

Both models read the same texts, each its own hidden states. The other one is loaded first, and what
it selects is kept in a file; then it leaves the memory.

C documents, L MoE layers, P runs of a layer in a pass, S tokens of a text, K experts chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import StoppedError, UnsupportedModelError
from moeprune.stages.agreement_texts import AgreementText
from moeprune.stages.eval_variants import Variant, applied
from moeprune.stages.kept_selections import KeptSelections, kept_selections
from moeprune.stages.measuring import Stop
from moeprune.stages.numbering import Beside, Numbered
from moeprune.stages.together import Work

if TYPE_CHECKING:
    from moeprune.evaluate.selection import SelectionCounts

STAGE = "selection"
Ids = NDArray[np.int64]


@dataclass(kw_only=True)
class Agreeing:
    """A comparison that is under way in one process.

    Attributes:
        beside: the two models.
        texts: what both read.
        work: of this process, which reads its share of them.
        variants: how many are compared.
        stop: asked after each text.
        on_progress: told of the tokens read.
    """

    beside: Beside
    texts: tuple[AgreementText, ...]
    work: Work
    variants: int
    stop: Stop
    on_progress: OnProgress
    _own: list[AgreementText] = field(init=False)
    _done: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        (share,) = self.work.shares([len(self.texts)])
        self._own = [text for number, text in enumerate(self.texts) if share.holds(number)]

    def first(self, kept: KeptSelections, **how: Any) -> None:
        """Keep what the other model selects; afterwards it is not in memory any more.

        Args:
            kept: empty.
            **how: it is loaded; see :meth:`AskedModel.load`.

        Raises:
            StoppedError: ``stop`` said so.
            MoePruneError: the model cannot be loaded, or listened to.
        """
        from moeprune.observe.memory import give_back

        other = self.beside.theirs
        live = other.asked.load(**how)
        for text, ids_L in self._heard(live, other, other.asked.name):
            kept.write([ids_PSK[:, text.first :] for ids_PSK in ids_L])
        del live
        give_back()

    def of(self, variant: Variant, live: Any, kept: KeptSelections) -> dict[str, Any]:
        """How far a variant of the loaded model selects the same, as ``run.json`` holds it.

        Args:
            variant: of the model.
            live: the model.
            kept: what the other one selected.

        Raises:
            StoppedError: ``stop`` said so.
            UnsupportedModelError: the model cannot be listened to, or ran a layer more often.
        """
        mine, theirs = self.beside.mine, self.beside.theirs
        places = {one: place for place, one in enumerate(self._documents)}
        counts: SelectionCounts | None = None
        ranks: list[int] = []  # of both models, row by row
        kept.rewind()
        with applied(variant, live, mine.asked):
            for text, ids_L in self._heard(live, mine, variant.name):
                pairs = list(zip(ids_L, kept.read(text.tokens), strict=True))
                ranks = [ids.shape[2] for both in pairs for ids in both]
                counts = counts or self._empty(ranks)
                for row, (own_PSK, other_PSK) in enumerate(pairs):
                    own_TK = _by_token(mine.of_origin(own_PSK[:, text.first :], row))
                    other_TK = _by_token(theirs.of_origin(other_PSK, row))
                    if len(own_TK) != len(other_TK):
                        raise UnsupportedModelError(
                            f"layer {mine.layout.layer_ids[row]} ran on {len(own_TK)} tokens of a "
                            f"text in one model and on {len(other_TK)} in the other; their "
                            "selections cannot be paired."
                        )
                    # An expert that fills up a layer is nobody's, not even the other's.
                    other_TK = np.where(other_TK < 0, -2, other_TK)
                    counts.add(places[text.document], row, own_TK, other_TK)
        ranks, counts = self._of_all(ranks, counts)
        domains = {text.document: text.domain for text in self.texts}
        rows = [
            {"layer": layer, **({"set": name} if name else {})} for layer, name in mine.layout.rows
        ]
        return {
            "with": {"name": theirs.asked.name, "fingerprint": theirs.asked.fingerprint},
            "k": [max(ranks[0::2]), max(ranks[1::2])],
            **counts.to_json(domains_C=list(map(domains.__getitem__, self._documents)), rows=rows),
        }

    @property
    def _documents(self) -> list[str]:
        return list(dict.fromkeys(text.document for text in self.texts))

    def _empty(self, ranks: Sequence[int]) -> SelectionCounts:
        from moeprune.evaluate.selection import SelectionCounts

        both = zip(ranks[0::2], ranks[1::2], strict=True)
        return SelectionCounts.empty(len(self._documents), list(map(min, both)))

    def _of_all(
        self, ranks: list[int], counts: SelectionCounts | None
    ) -> tuple[list[int], SelectionCounts]:
        """The counts of all processes, of which some may have had no text."""
        from moeprune.evaluate.selection import SelectionCounts

        told = self.work.crew.gathered(np.array(ranks, np.int64))
        ranks = next([int(rank) for rank in each] for each in told if each.size)
        counts = counts or self._empty(ranks)
        summed = self.work.crew.added(counts.arrays, maxima=frozenset())
        return ranks, SelectionCounts(**summed, ranks_L=counts.ranks_L)

    def _heard(
        self, live: Any, model: Numbered, name: str
    ) -> Iterator[tuple[AgreementText, list[Ids]]]:
        """Each text of this process, and (P, S, K) ids of each row."""
        from moeprune.observe.layers import moe_layers
        from moeprune.observe.load import decoder_of
        from moeprune.observe.placed import input_device
        from moeprune.routing.selection import selections

        running = selections(
            live,
            decoder_of(live),
            moe_layers(live, model.layout),
            [text.ids for text in self._own],
            gating=model.layout.gating,
            kind=model.layout.observer,
            device=input_device(live),
        )
        total = sum(text.tokens for text in self.texts) * (1 + self.variants)
        with closing(running) as found:
            for text, ids_L in zip(self._own, found, strict=True):
                yield text, ids_L
                self._done += text.tokens
                self.on_progress(Progress(STAGE, self._done, total, "tokens", name))
                if self.stop():
                    raise StoppedError(
                        f"stopped while {name} read the texts of --agreement-with; nothing of that "
                        "is kept: the same command begins there again."
                    )


def agreements(
    beside: Beside,
    texts: tuple[AgreementText, ...],
    variants: Sequence[Variant],
    begin: Callable[[], tuple[Any, Any]],
    *,
    work: Work,
    folder: Path | None,
    stop: Stop,
    on_progress: OnProgress,
    **how: Any,
) -> tuple[tuple[Any, Any], list[dict[str, Any]]]:
    """Let the other model read, then load the model and let each of its variants read.

    Args:
        beside: the two models.
        texts: what they read.
        variants: of the model.
        begin: gives the model, and what was seen of it before it is asked.
        work: of this process.
        folder: where a file may lie meanwhile; None: where temporary files do.
        stop: asked after each text.
        on_progress: told of the tokens read.
        **how: the other model is loaded; see :meth:`AskedModel.load`.

    Returns:
        What ``begin`` gave, and of each variant what ``run.json`` says.
    """
    running = Agreeing(
        beside=beside,
        texts=texts,
        work=work,
        variants=len(variants),
        stop=stop,
        on_progress=on_progress,
    )
    layout = beside.theirs.layout
    with kept_selections(
        folder, [count + layout.idle_experts for count in layout.num_experts]
    ) as kept:
        running.first(kept, **how)
        begun = begin()
        return begun, [running.of(variant, begun[0], kept) for variant in variants]


def _by_token(ids_PSK: Ids) -> Ids:
    return ids_PSK.reshape(-1, ids_PSK.shape[2])
