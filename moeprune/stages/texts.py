"""The texts of a calibration: named, checked, read, and judged by their length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.errors import DomainError, OutputError
from moeprune.stages.decode_words import DecodeWords

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus


def read_texts(
    sources: Mapping[str, str],
    *,
    config: Mapping[str, Any],
    length: int,
    shard: tuple[int, int],
    on_warning: Callable[[str], None] | None,
    loss: str | None = None,
    **how: Any,
) -> tuple[list[Corpus], int]:
    """Read every domain.

    Args:
        sources: name -> source.
        config: of the model: a document is never longer than it has positions for.
        length: tokens kept of a document.
        shard: ``(index, of)``.
        on_warning: told where documents are too short.
        loss: ``"completion"``: that of answers is taken, where rows say what these are;
            ``"all"``: of all tokens; None: none is.
        how: the other arguments of :func:`moeprune.observe.domains.read_corpus`.

    Returns:
        A corpus per domain, and the length that was used.

    Raises:
        MoePruneError: a domain or an option does not serve; or no token of a domain is a target.
    """
    from moeprune.observe.domains import read_corpus
    from moeprune.observe.short import length_warning

    length = min(length, positions_of(config) or length)
    answers = loss == "completion"
    corpora = []
    for name, source in sources.items():
        corpus = read_corpus(name, source, length=length, answers=answers, **how)
        if loss is not None and not corpus.num_targets:
            raise _no_loss(name, source, length, loss)
        corpora.append(corpus.take_shard(*shard))
    if on_warning is not None and (warning := length_warning(corpora, length)):
        on_warning(warning)
    return corpora, length


def named_sources(
    words: DecodeWords,
    *,
    domains: Mapping[str, str] | Sequence[str] | None,
    recipe: str | Path | None,
    samples: int | None,
) -> tuple[dict[str, str], int | None]:
    """Domain -> source, and documents of a domain; none where a file holds all of it.

    Args:
        words: of decode mode.
        domains: as calibrate is given them.
        recipe: a file of domains, in place of them.
        samples: documents of a domain; a recipe may say it instead.

    Raises:
        MoePruneError: the recipe or a domain does not serve.
    """
    from moeprune.observe.named import named_domains
    from moeprune.observe.recipe import read_recipe

    if recipe is not None:
        domains, samples = read_recipe(recipe, domains=domains, samples=samples)
    return {} if words.generations else named_domains(domains), samples


def check_not_read(output: Path, index: CheckpointIndex, sources: Iterable[str]) -> None:
    """Fail where the stats would take the place of the model or of a text.

    Raises:
        OutputError: they would.
    """
    from moeprune.observe.sources import source_path

    model = (*index.files, index.index_file, *sidecars_of(index, replaced=()).copied)
    inputs = [*(index.path / name for name in model if name), *map(source_path, sources)]
    if output.resolve() in {path.resolve() for path in inputs if path is not None}:
        raise OutputError(
            f"cannot write {output}: it is read here, and would be lost. Name another file."
        )


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Positions the model was made for, where its config states them."""
    for part in (config.get("text_config"), config):
        stated = part.get("max_position_embeddings") if isinstance(part, Mapping) else None
        if isinstance(stated, int) and stated > 0:  # -1 is a way to say that there is no limit
            return int(stated)
    return None


def _no_loss(name: str, source: str, length: int, loss: str) -> DomainError:
    what = f"domain {name!r} ({source}) has no"
    if loss == "all":
        return DomainError(f"{what} document of two tokens, so no loss. Give it longer text.")
    return DomainError(
        f"{what} answer within {length:,} tokens of a document, so no loss. Raise --length, or "
        "take the loss of all tokens: --loss all."
    )
