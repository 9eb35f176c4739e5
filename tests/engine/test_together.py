"""Runs with several seeds, side by side: each is what it is alone."""

import jax
import numpy as np
import pytest

from plures import run
from plures.contract import worlds
from plures.engine import Settings, prepare, run_together
from plures.errors import Unsupported
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.methods.hypcluster import hypcluster

SEEDS = (0, 3)
SETTINGS = {"rounds": 4, "eval_every": 2, "executor": "vectorized"}


def runners(method, seeds=SEEDS, **more):
    seen, unseen = worlds.awkward()
    given = {**SETTINGS, **more}
    return [prepare(method, seen, unseen=unseen, settings=Settings(seed=seed, **given)) for seed in seeds]


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (ditto(worlds.model(), plan=worlds.PLAN), {"cohort": 3}),
        (hypcluster(worlds.model(), plan=worlds.PLAN, num_clusters=2, warm=1), {"rounds": 6}),
    ],
    ids=["private rows and a cohort", "a prelude and a closing round"],
)
def test_each_run_is_what_it_is_alone(method, more):
    seen, unseen = worlds.awkward()

    both = run_together(runners(method, **more))

    for seed, one in zip(SEEDS, both, strict=True):
        alone = run(method, seen, unseen=unseen, seed=seed, **{**SETTINGS, **more})
        for mine, other in zip(jax.tree.leaves(one.state), jax.tree.leaves(alone.state), strict=True):
            if not jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(mine, other, atol=1e-5)
        assert one.num_bytes == alone.num_bytes
        assert [(now, name) for now, name, _ in one.record.info] == [
            (now, name) for now, name, _ in alone.record.info
        ]
        for mine, other in zip(one.record.scores, alone.record.scores, strict=True):
            assert (mine.round, mine.kind, mine.split) == (other.round, other.kind, other.split)
            for name, values in mine.metrics.items():
                np.testing.assert_allclose(values, other.metrics[name], atol=1e-4)


def test_every_run_says_how_far_it_is():
    told = []
    method = fedavg(worlds.model(), plan=worlds.PLAN)
    seen, _ = worlds.awkward()
    some = [
        prepare(method, seen, settings=Settings(rounds=2, seed=seed, executor="vectorized"), progress=told.append)
        for seed in SEEDS
    ]

    run_together(some)

    assert [one.round for one in told] == [2, 2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([{"rounds": 2}, {"rounds": 3}], "differ in seeds and numbers alone"),
        ([{"executor": "one_by_one"}] * 2, "need a compiled executor"),
        ([{"checkpoint": "kept", "checkpoint_every": 1}] * 2, "no checkpoint but the last state"),
    ],
)
def test_what_cannot_be_played_side_by_side_is_refused(more, said):
    method = fedavg(worlds.model(), plan=worlds.PLAN)
    some = [runners(method, [seed], **one)[0] for seed, one in enumerate(more)]

    with pytest.raises(Unsupported, match=said):
        run_together(some)
