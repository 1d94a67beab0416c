"""Every method names files that exist."""

import pytest

from moeprune import allocators, criteria, plugins
from moeprune.core.methods import METHODS, method
from moeprune.errors import UsageError


@pytest.mark.parametrize("name", METHODS)
def test_methods_name_real_plugins(name):
    found = method(name)
    assert found.criterion in plugins.names(criteria)
    assert found.allocator in plugins.names(allocators)
    assert found.allocation == "uniform"


def test_the_presets():
    made = {name: (found.criterion, found.allocator) for name, found in METHODS.items()}
    assert made == {
        "reap": ("reap", "rank"),
        "rm-uniform": ("mass", "rank"),
        "mesa": ("mass", "mesa"),
        "random": ("random", "rank"),
    }


def test_another_criterion():
    assert method("reap", criterion="frequency").criterion == "frequency"
    assert method("mesa", criterion="mass") == method("mesa")
    with pytest.raises(UsageError, match="--criterion reap does not go with --method mesa"):
        method("mesa", criterion="reap")
    with pytest.raises(UsageError, match="Did you mean 'mesa'"):
        method("meza")
