"""Do something once another package's module has been imported, without importing it now.

transformers finds no plug-ins: what reads the checkpoints that moeprune writes must be registered
with it. ``import moeprune`` may not wait for transformers and torch, which not every command needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(module: str, then: Callable[[], None]) -> None:
    """Call ``then`` when ``module`` has run; now, if it has.

    Args:
        module: full name.
        then: what to do; an error in it is an error of whoever imports the module.
    """
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if loaded is not None and not getattr(spec, "_initializing", False):
        then()
    elif loaded is None:
        sys.meta_path.insert(0, _Watch(module, then))


class _Watch(MetaPathFinder):
    """Finds one module by the finders after this one, until it has run.

    Not only imports ask: ``importlib.util.find_spec`` says whether a module is there, and an import
    may fail and be tried again.
    """

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module, self._then = module, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that goes on after it."""
        finders = list(sys.meta_path)
        if fullname != self._module or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Then(spec.loader, self._has_run)
                return spec
        return None

    def _has_run(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


class _Then(Loader):
    """A module's own loader, and what follows it."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        """Whatever else the module's own loader can tell: its source, its file."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module by its own loader, which is all that others see of this."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()
