"""Every method names files that exist, and takes a criterion or a signal, or neither."""

import itertools

import pytest

from moeprune import allocators, criteria, plugins
from moeprune.core.methods import CRITERION, METHODS, POOLINGS, SIGNAL, method
from moeprune.errors import UsageError


@pytest.mark.parametrize("name", METHODS)
def test_methods_name_real_plugins(name):
    found = method(name)
    assert found.criterion in plugins.names(criteria)
    assert found.allocator in plugins.names(allocators)
    own = {"evoesap": "evolved", "best": "by target"}
    assert found.allocation == own.get(name, "uniform")
    assert found.pooling in POOLINGS
    assert found.option in (CRITERION, SIGNAL, "")
    assert found.about and "\n" not in found.about


def test_every_allocator_has_a_method():
    assert {found.allocator for found in METHODS.values()} == set(plugins.names(allocators))


@pytest.mark.parametrize(
    ("name", "criterion", "allocator", "pooling", "option"),
    [
        ("reap", "reap", "rank", "sums", "criterion"),
        ("rm-uniform", "mass", "rank", "sums", "criterion"),
        ("domain-reap", "reap", "rank", "domains", "criterion"),
        ("evoesap", "reap", "evoesap", "sums", "criterion"),
        ("mesa", "mass", "mesa", "rows", "signal"),
        ("mesa-exact", "mass", "mesa-exact", "rows", "signal"),
        ("best", "fisher-cf", "minimax", "shares", "signal"),
        ("random", "random", "rank", "sums", ""),
    ],
)
def test_the_presets(name, criterion, allocator, pooling, option):
    found = method(name)
    assert (found.criterion, found.allocator) == (criterion, allocator)
    assert (found.pooling, found.option) == (pooling, option)


@pytest.mark.parametrize(("name", "option"), list(itertools.product(METHODS, (CRITERION, SIGNAL))))
def test_each_option_goes_where_it_belongs(name, option):
    if METHODS[name].option == option:
        found = method(name, **{option: "msan"})
        assert found.criterion == "msan"
        assert found.allocator == METHODS[name].allocator
        return
    with pytest.raises(UsageError, match=f"--{option} msan does not go with --method {name}") as e:
        method(name, **{option: "msan"})
    for other, found in METHODS.items():
        listed = str(e.value).rpartition(": ")[2].rstrip(".").split(", ")
        assert (other in listed) == (found.option == option)
    assert "\n" not in str(e.value)


def test_refusals():
    with pytest.raises(UsageError, match="which goes by mass or another --signal"):
        method("mesa", criterion="reap")
    with pytest.raises(UsageError, match="--signal random says nothing"):
        method("mesa", signal="random")
    with pytest.raises(UsageError, match="does not go with --method mesa"):
        method("mesa", criterion="reap", signal="reap")
    with pytest.raises(UsageError, match="Did you mean 'mesa'"):
        method("meza")
