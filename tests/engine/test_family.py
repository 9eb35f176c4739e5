"""Methods that differ in numbers alone: one program for all of them, and each is what it is alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures.contract import worlds
from plures.engine import Family, Settings, evaluate, prepare
from plures.engine.rounds import play
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.ditto import ditto

MODEL = worlds.model()


def near(numbers):
    """Ditto by its step size and its pull."""
    return ditto(MODEL, plan=replace(worlds.PLAN, lr=numbers["lr"]), lam=numbers["lam"])


def clustered(numbers):
    """A method with a prelude, by its step size."""
    return hypcluster(MODEL, plan=replace(worlds.PLAN, lr=numbers["lr"]), num_clusters=2, warm=1)


NEAR = ({"lr": 0.05, "lam": 0.2}, {"lr": 0.2, "lam": 3.0})


def members(make, numbers, family=None, **more):
    """Runners of members of a family; without one, each by itself."""
    seen, unseen = worlds.awkward()
    given = {"rounds": 4, "eval_every": 2, "executor": "vectorized", **more}
    return [
        prepare(
            make(one),
            seen,
            unseen=unseen,
            settings=Settings(**given),
            family=family,
            numbers={name: jnp.float32(value) for name, value in one.items()} if family else (),
        )
        for one in numbers
    ]


def assert_equal(mine, other):
    for one, two in zip(jax.tree.leaves(mine.state), jax.tree.leaves(other.state), strict=True):
        if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, two, atol=1e-5)
    for one, two in zip(mine.record.scores, other.record.scores, strict=True):
        assert (one.round, one.kind, one.split) == (two.round, two.kind, two.split)
        for name, values in one.metrics.items():
            np.testing.assert_allclose(values, two.metrics[name], atol=1e-4)


@pytest.mark.parametrize(
    ("make", "numbers", "more"),
    [(near, NEAR, {"cohort": 3}), (clustered, ({"lr": 0.05}, {"lr": 0.2}), {"rounds": 5})],
    ids=["private rows and a cohort", "a prelude"],
)
def test_each_member_is_what_it_is_alone_and_the_second_needs_no_program(make, numbers, more):
    family = Family(make, make(numbers[0]))
    first, second = members(make, numbers, family, **more)

    mine = [first.run()]
    programs = play._cache_size(), evaluate._compiled._cache_size()
    mine.append(second.run())

    assert (play._cache_size(), evaluate._compiled._cache_size()) == programs
    for one, alone in zip(mine, members(make, numbers, **more), strict=True):
        assert_equal(one, alone.run())


def test_on_the_host_every_member_is_itself():
    """One by one nothing is traced with numbers: a member is told its own."""
    family = Family(lambda numbers: pytest.fail("traced"), near(NEAR[0]))
    (mine,) = members(near, NEAR[1:], family, executor="one_by_one", rounds=1)
    (alone,) = members(near, NEAR[1:], executor="one_by_one", rounds=1)

    assert_equal(mine.run(), alone.run())
