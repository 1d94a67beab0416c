"""Weights of a unit from the files into the model, by transformers' own conversion, and out again.

Stored tensors are converted in portions, so that beside the unit itself little more than the
largest stack of experts is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from moeprune.errors import CheckpointError
from moeprune.observe.load import check_complete
from moeprune.observe.quantised import one_dtype
from moeprune.observe.quiet import foreign_errors, quiet
from moeprune.observe.streamed.memory import give_back
from moeprune.observe.streamed.names import Group, grouped, ties
from moeprune.observe.streamed.skeleton import Skeleton
from moeprune.observe.streamed.stored import Stored
from moeprune.observe.streamed.units import Unit

_PORTION = 64 << 20  # bytes converted at once, unless one tensor of the model takes more


class Weights:
    """The weights of a model in its files.

    Args:
        built: the model without weights.
        stored: name -> where each tensor of the checkpoint lies.

    Attributes:
        bytes_read: so far.

    Raises:
        CheckpointError: the model has no place for an expert tensor or a scale.
    """

    def __init__(self, built: Skeleton, stored: Mapping[str, Stored]) -> None:
        self.bytes_read = 0
        self._built, self._stored = built, stored
        state = built.root.state_dict(keep_vars=True)
        self._absent = dict(state)
        # A model says that it lies where its first parameter does.
        first = next(iter(dict(built.model.named_parameters()).values()))
        for name, tensor in state.items():
            if tensor is first:
                self._absent[name] = self._hollow(first)
                self._set(name, self._absent[name])
        self._by_target = {
            name: group for group in grouped(built, stored) for name in group.targets
        }
        self._tied = ties(built.root)

    def check(self, unit: Unit) -> None:
        """Check, without reading a number, that a unit's weights are in the files.

        Raises:
            CheckpointError: one is missing, or is stored in another shape.
        """
        missing, mismatched = set(), set()
        for name in unit.tensors:
            group = self._by_target.get(self._source(name))
            if group is None:
                missing.add(name)
            elif not self._built.plain and group.alone:
                stored, wanted = self._stored[group.keys[0]].shape, self._absent[name].shape
                if tuple(stored) != tuple(wanted):
                    mismatched.add((name, tuple(stored), tuple(wanted)))
        report = {"missing_keys": missing, "mismatched_keys": mismatched, "unexpected_keys": ()}
        check_complete(self._built.path, self._built.root, report)

    def load(self, unit: Unit) -> None:
        """Read a unit's weights.

        Raises:
            CheckpointError: a file cannot be read, or a weight is missing or of another shape.
        """
        sources = {name: self._source(name) for name in unit.tensors}
        wanted = self._groups_of(unit)
        mismatched: set[Any] = set()
        with quiet():
            for portion in self._portions(wanted):
                mismatched |= self._convert(portion)
        self._move_tied(sources)
        for name in unit.tensors:
            self._get(name).requires_grad_(False)  # or their gradients would be computed too
        missing = {name for name in unit.tensors if self._is_absent(name)}
        for group in wanted:  # what a group gives beside what was asked for
            for name in set(group.targets) - set(unit.tensors):
                self._set(name, self._absent[name])
        wrong = {name for name, *_ in mismatched}
        report = {
            "missing_keys": missing - wrong,
            "mismatched_keys": mismatched,
            "unexpected_keys": (),
        }
        check_complete(self._built.path, self._built.root, report)
        if self._built.plain:
            one_dtype(self._built.model)

    def free(self, unit: Unit) -> None:
        """Forget a unit's weights."""
        for name in unit.tensors:
            self._set(name, self._absent[name])
        give_back()

    def bytes_of(self, unit: Unit) -> tuple[int, int]:
        """Bytes of a unit: in memory, in the files."""
        made = (self._absent[name] for name in unit.tensors)
        return (
            sum(tensor.numel() * tensor.element_size() for tensor in made),
            sum(self._read_bytes(group) for group in self._groups_of(unit)),
        )

    def transient_of(self, unit: Unit) -> int:
        """Most bytes in memory while a unit is being loaded, itself included."""
        most = loaded = 0
        for group in self._groups_of(unit):
            read = self._read_bytes(group)
            made = self._made_bytes(group)
            # Stacked, and then the stacks put side by side.
            due = 2 * made
            if self._built.plain and read != made:
                # Codes stay until all are numbers; of codes smaller than a byte, readers make
                # indices into a table (measured: 8 bytes a value).
                values = self._values(group)
                due = read + (made + 9 * values if values > read else made * 5 // 2)
            most = max(most, loaded + due)
            loaded += made
        return max(most, loaded) + 2 * _PORTION

    def _groups_of(self, unit: Unit) -> list[Group]:
        """What a unit is made of, the largest first: the rest is not yet there beside it."""
        found = {
            id(group): group
            for name in unit.tensors
            if (group := self._by_target.get(self._source(name))) is not None
        }
        return sorted(found.values(), key=lambda group: (-self._made_bytes(group), group.targets))

    def _read_bytes(self, group: Group) -> int:
        return sum(self._stored[key].nbytes for key in group.keys)

    def _made_bytes(self, group: Group) -> int:
        made = [self._absent[name] for name in group.targets if name in self._absent]
        return sum(tensor.numel() * tensor.element_size() for tensor in made)

    def _values(self, group: Group) -> int:
        made = [self._absent[name] for name in group.targets if name in self._absent]
        return sum(tensor.numel() for tensor in made)

    def _portions(self, groups: Sequence[Group]) -> Iterator[list[str]]:
        keys: list[str] = []
        size = 0
        for group in groups:
            more = self._read_bytes(group)
            if keys and size + more > _PORTION:
                yield keys
                keys, size = [], 0
            keys.extend(group.keys)
            size += more
        if keys:
            yield keys

    def _convert(self, keys: Sequence[str]) -> set[Any]:
        """Tensors of the model from stored ones; those whose shape is another."""
        from transformers.core_model_loading import convert_and_load_state_dict_in_model

        path = self._built.path
        with foreign_errors(
            f"{path}: transformers cannot load {keys[0]}",
            "Check that the files are complete.",
            error=CheckpointError,
            also=(ArithmeticError, AssertionError),
        ):
            info, _ = convert_and_load_state_dict_in_model(
                model=self._built.root,
                state_dict={key: self._stored[key] for key in keys},
                load_config=replace(
                    self._built.load_config, device_map={"": str(self._built.device)}
                ),
            )
        self.bytes_read += sum(self._stored[key].nbytes for key in keys)
        for name, problem in sorted(info.conversion_errors.items()):
            raise CheckpointError(
                f"{path}: transformers cannot convert {name} "
                f"({str(problem).strip().splitlines()[-1]}). Check that the files are complete."
            )
        found: set[Any] = info.mismatched_keys
        return found

    def _source(self, name: str) -> str:
        """The name whose stored tensors a tensor of the model is made of."""
        if name in self._by_target:
            return name
        return next((other for other in self._tied.get(name, ()) if other in self._by_target), name)

    def _move_tied(self, sources: Mapping[str, str]) -> None:
        for name, source in sources.items():
            if name != source and not self._is_absent(source):
                self._set(name, self._get(source))
        for name, source in sources.items():
            if name != source and source not in sources:
                self._set(source, self._absent[source])

    def _get(self, name: str) -> Any:
        owner, _, last = name.rpartition(".")
        return getattr(self._built.root.get_submodule(owner), last)

    def _set(self, name: str, tensor: Any) -> None:
        owner, _, last = name.rpartition(".")
        setattr(self._built.root.get_submodule(owner), last, tensor)

    def _is_absent(self, name: str) -> bool:
        return self._get(name) is self._absent[name]

    def _hollow(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """A parameter of that shape on the device; who computes with it gets NaN."""
        one = torch.full((1,), torch.nan, dtype=parameter.dtype, device=self._built.device)
        return torch.nn.Parameter(one.expand(parameter.shape), requires_grad=False)
