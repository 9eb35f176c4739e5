"""Dapper: exact minimizers for known balances, the balance chosen on held-out rows, whose rows the pool holds."""

from dataclasses import replace
from functools import cache
from itertools import chain, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import run, tree
from plures.data.federation import from_arrays
from plures.engine.clients import layout_of, on_device, view
from plures.errors import BadFile, BadValue, UnknownChoice, Unsupported
from plures.keys import permute
from plures.local import objective
from plures.methods.clustering.hypcluster import hypcluster
from plures.methods.ditto import ditto
from plures.methods.fedavg import fedavg
from plures.models.linear import density, least_squares, mean, softmax, squared_hinge
from plures.models.sequence import char_mlp
from plures.personalize.dapper import dapper
from plures.personalize.finetune import finetune
from plures.personalize.row_pools import OwnAndPool, public_rows
from plures.types import Plan, Rows, Weights
from plures.wrap.cross_validation import folds_of

KEY = jax.random.key(0)
SIZES = (30, 12, 7, 26)


@cache
def ragged(task):
    """Clients of unequal sizes whose laws differ; one valid and one test row each."""
    rng = np.random.default_rng(5)
    names = np.concatenate([[str(k)] * (size + 2) for k, size in enumerate(SIZES)])
    parts = np.concatenate([["train"] * size + ["valid", "test"] for size in SIZES])
    owner = names.astype(int)
    x = rng.normal(size=(len(owner), 2)).astype(np.float32)
    y = {
        "regression": x @ [1.0, -1.0] + owner * x[:, 0] + rng.normal(size=len(owner)),
        "mean": owner[:, None] * [1.0, 2.0] + rng.normal(size=(len(owner), 2)),
        "density": (rng.integers(0, 4, len(owner)) * rng.integers(0, 2, len(owner)) + owner) % 4,
    }[task]
    options = {"task": "density", "num_classes": 4} if task == "density" else {"task": "regression"}
    y = y.astype(np.int32 if task == "density" else np.float32)
    return from_arrays(x, y, names, split=parts, **options)


MODELS = {"regression": least_squares((2,)), "mean": mean((2,), 2), "density": density((2,), 4)}


def for_all(federation, function):
    """A function of (uid, data) for every client, compiled, its results stacked."""
    arrays, places = on_device(federation)
    layout = layout_of(federation)

    @jax.jit
    def all_of_them(places):
        return jax.vmap(lambda place: function(place.uid, view(layout, arrays, place)))(places)

    return all_of_them(places)


def asked(method, federation, *, base=None, weights=None):
    """The server after the closing round, from a given state of the base."""
    number = federation.num_clients
    server = method.start(KEY, number)
    server = server if base is None else server._replace(base=base)
    heard = jnp.ones(number) if weights is None else jnp.asarray(weights)

    def answer(uid, data):
        return method.train(jax.random.fold_in(KEY, uid), method.send(server, uid), (), data)[0]

    return jax.jit(method.merge)(server, for_all(federation, answer), heard, jnp.arange(number))


@cache
def keys_of(number):
    return jax.random.split(jax.random.key(9), number)


def served(method, server, federation):
    """What every client is served, stacked."""
    keys = keys_of(federation.num_clients)
    return for_all(federation, lambda uid, data: method.serve(keys[uid], method.offered(server, uid), (), data))


def own_rows(federation, client):
    return federation.rows_of(federation.names[client], "train")


def pooled(federation):
    rows = [own_rows(federation, client) for client in range(federation.num_clients)]
    return tuple(np.concatenate(part) for part in zip(*rows, strict=True))


def with_one(x):
    return np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(float)


def moments(x, y):
    z = with_one(x)
    return z.T @ z / len(z), z.T @ y / len(z)


def frequencies(y):
    return np.bincount(y, minlength=4) / len(y)


def exact(task, federation, client, lam):
    """The minimizer of lam L_k + (1 - lam) L_C in closed form."""
    mine, all_ = own_rows(federation, client), pooled(federation)
    if task == "mean":
        return lam * mine[1].mean(0) + (1 - lam) * all_[1].mean(0)
    if task == "density":
        return lam * frequencies(mine[1]) + (1 - lam) * frequencies(all_[1])
    (a, b), (pool_a, pool_b) = moments(*mine), moments(*all_)
    return np.linalg.solve(lam * a + (1 - lam) * pool_a, lam * b + (1 - lam) * pool_b)


def answer_of(task, params):
    """What the closed form is about, of stacked params."""
    if task == "mean":
        return params["point"]
    if task == "density":
        return jax.nn.softmax(params["logits"])
    return jnp.concatenate([params["head"]["kernel"], params["head"]["bias"][:, None]], axis=1)


LONG = Plan(batch=None, lr=0.4)
OPTIONS = {
    "statistics": {"source": "statistics"},
    # Every client gives all its rows, and the pool holds them all.
    "raw": {"source": "raw", "allow_raw_sharing": True, "shared_rows": max(SIZES), "pool_rows": 1000},
}


@pytest.mark.parametrize("source", ["statistics", "raw"])
@pytest.mark.parametrize(("task", "lr"), [("mean", 0.4), ("density", 2.0), ("regression", 0.4)])
def test_the_minimizer_of_both_losses_is_served(task, lr, source):
    federation = ragged(task)
    options = {**OPTIONS[source], "plan": Plan(batch=None, lr=lr), "epochs": 400, "lam": 0.3}
    if source == "raw":
        options["example"] = federation.example
    method = dapper(fedavg(MODELS[task]), **options)

    found = served(method, asked(method, federation), federation)

    wanted = np.stack([exact(task, federation, client, 0.3) for client in range(4)])
    np.testing.assert_allclose(answer_of(task, found.weights.params), wanted, atol=2e-5)


def test_all_rows_and_their_sums_are_the_same_pool():
    """After few steps too, where nothing has converged yet."""
    federation = ragged("regression")
    methods = [
        dapper(fedavg(MODELS["regression"]), plan=LONG, epochs=3, lam=0.6, example=federation.example, **options)
        for options in OPTIONS.values()
    ]

    summed, shown = (served(one, asked(one, federation), federation) for one in methods)

    for one, other in zip(jax.tree.leaves(summed), jax.tree.leaves(shown), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


BATCHES = Plan(batch=5, lr=0.1)
PUBLIC = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)


ONES = Weights({"head": {"kernel": jnp.ones(2), "bias": jnp.ones(())}})


@cache
def fine_tuned(plan):
    base = fedavg(MODELS["regression"], plan=plan)
    first = base.start(KEY, 4)._replace(weights=ONES)
    return served(finetune(base, epochs=2, select=False), first, ragged("regression"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"source": "generative"}, BATCHES),
        ({"source": "statistics"}, BATCHES),
        ({"source": "proxy", "proxy": PUBLIC}, BATCHES),
        ({**OPTIONS["raw"], "mixing": "paired"}, BATCHES),
        ({**OPTIONS["raw"], "mixing": "union"}, replace(BATCHES, batch=None)),
    ],
    ids=["generative", "statistics", "proxy", "paired", "union"],
)
def test_own_rows_alone_are_fine_tuning_bit_for_bit(options, plan):
    federation = ragged("regression")
    base = fedavg(MODELS["regression"], plan=plan)
    method = dapper(base, lam=1.0, epochs=2, example=federation.example, **options)
    first = base.start(KEY, 4)._replace(weights=ONES)
    server = asked(method, federation, base=first) if len(method.phases) > 1 else first

    found = served(method, server, federation)

    for one, other in zip(jax.tree.leaves(found.weights), jax.tree.leaves(fine_tuned(plan)), strict=True):
        np.testing.assert_array_equal(one, other)


def descent(z, y, soft, lam, start, *, steps, lr):
    """Full-batch steps on half the squared error to labels and to what the first model says."""
    w = start.copy()
    for _ in range(steps if len(z) else 0):
        w -= lr * z.T @ (lam * (z @ w - y) + (1 - lam) * (z @ w - soft)) / len(z)
    return w


def reference(x, y, key, lams, start, *, keep, steps, lr):
    """(lam, whether tuned, weights) by a loop over lams and folds, one after the other."""
    z, number = with_one(x), len(y)
    soft = z @ start
    key_own = jax.random.split(key)[1]
    order = np.asarray(permute(jax.random.fold_in(key_own, 1), jnp.arange(number), number))
    folds = [order[first:last] for first, last in pairwise(fold * number // 5 for fold in range(6))]
    losses = []
    for lam in lams:
        total = 0.0
        for held in folds:
            fit = np.setdiff1d(order, held)
            w = descent(z[fit], y[fit], soft[fit], lam, start, steps=steps, lr=lr)
            total += ((z[held] @ w - y[held]) ** 2).sum()
        losses.append(total)
    if keep and min(losses) >= ((soft - y) ** 2).sum():
        return 0.0, False, start
    lam = lams[int(np.argmin(losses))]
    return lam, True, descent(z, y, soft, lam, start, steps=steps, lr=lr)


@pytest.mark.parametrize("keep", [True, False])
def test_the_balance_is_that_of_a_loop_over_balances_and_folds(keep):
    federation, lams = ragged("regression"), (0.1, 0.25, 0.5, 0.75, 1.0)
    base = fedavg(MODELS["regression"], plan=LONG)
    start = np.array([1.0, -1.0, 0.0])  # what the first client's rows were drawn from
    server = base.start(KEY, 4)._replace(
        weights=Weights({"head": {"kernel": jnp.asarray(start[:2], jnp.float32), "bias": jnp.zeros(())}})
    )

    found = served(dapper(base, lams=lams, epochs=20, keep=keep), server, federation)

    wanted = [
        reference(*own_rows(federation, client), keys_of(4)[client], lams, start, keep=keep, steps=20, lr=0.4)
        for client in range(4)
    ]
    np.testing.assert_allclose(found.lam, [lam for lam, _, _ in wanted])
    assert len(set(found.lam.tolist())) > 1
    assert found.tuned.tolist() == [tuned for _, tuned, _ in wanted]
    assert found.tuned.all() != keep
    weights = answer_of("regression", found.weights.params)
    np.testing.assert_allclose(weights, np.stack([w for _, _, w in wanted]), atol=1e-5)


def one_client(y, *, capacity=None):
    """Rows of numbers, for the model that predicts a single point."""
    values = jnp.asarray([*y, 99.0], jnp.float32)  # what follows the client's rows belongs to nobody
    return Rows(jnp.zeros((len(values), 0)), values[:, None], 0, jnp.asarray(len(y)), capacity or len(y) + 2)


@pytest.mark.parametrize("count", [1, 6, 25])
def test_every_row_is_held_out_once_and_trained_on_otherwise(count):
    parts = folds_of(KEY, one_client(range(count), capacity=40), 5)

    held, fit = [], []
    for fold in range(5):
        for rows, into in ((parts.held(fold), held), (parts.fit(fold), fit)):
            batch = rows.all()
            into.append(sorted(np.asarray(batch.y[batch.mask]).ravel().tolist()))
    assert sorted(chain(*held)) == list(range(count))
    assert all(sorted(out + rest) == list(range(count)) for out, rest in zip(held, fit, strict=True))


def test_values_of_held_rows_go_back_to_their_rows():
    parts = folds_of(KEY, one_client(range(13)), 5)
    of_folds = jax.vmap(lambda fold: parts.held(fold).all().y[:, 0] * 10)(jnp.arange(5))

    values = parts.of_rows(of_folds)

    batch = replace(parts.rows, weight=values).all()
    assert batch.weight[batch.mask].tolist() == (10 * batch.y[batch.mask, 0]).tolist()


@pytest.mark.parametrize(("keep", "lam"), [(False, 0.2), (True, 0.0)])
def test_ties_go_to_the_smaller_balance_and_to_the_base(keep, lam):
    base = fedavg(MODELS["mean"], plan=LONG)

    found = served(dapper(base, lams=(0.7, 0.2, 0.9), epochs=0, keep=keep), base.start(KEY, 4), ragged("mean"))

    assert found.lam.tolist() == pytest.approx([lam] * 4)
    assert found.tuned.tolist() == [not keep] * 4


def test_a_balance_whose_training_breaks_down_is_not_chosen():
    """Steps of 3 blow the own rows' loss up beyond all numbers; the pool's are as long, but stay at its optimum."""
    federation = ragged("regression")
    base = fedavg(MODELS["regression"], plan=replace(LONG, lr=3.0))

    found = served(dapper(base, lams=(0.0, 1.0), epochs=400, keep=False), base.start(KEY, 4), federation)

    assert found.lam.tolist() == [0.0] * 4
    assert tree.all_finite(found.weights)


POINTS = from_arrays(
    np.zeros((11, 0), np.float32),
    np.array([0.0, 1.0, 2.0, 10.0, 12.0, 11.0, 1.5, 0.5, 2.5, 50.0, 51.0], np.float32),
    ["a", "a", "a", "b", "b", "b", "c", "c", "c", "d", "d"],
    task="regression",
    split=["train"] * 11,
)
CLUSTER = np.array([0, 1, 0, 1])  # who takes the model at 0, who the one at 10
LINE = mean((0,), 1)


def at_points(*points):
    """HypCluster with models at points of the line."""
    base = hypcluster(LINE, num_clusters=len(points), init="partition", plan=Plan(batch=None, lr=0.5))
    server = base.start(KEY, 4)
    weights = Weights({"point": jnp.asarray(points, jnp.float32)[:, None]})
    return base, server._replace(base=server.base._replace(weights=weights))


def targets(*clients):
    return np.concatenate([own_rows(POINTS, client)[1] for client in clients]).ravel()


def test_sums_are_those_of_the_clients_own_cluster():
    base, first = at_points(0.0, 10.0)
    method = dapper(base, source="statistics", lam=0.25, epochs=200)

    server = asked(method, POINTS, base=first)
    found = served(method, server, POINTS).weights.params["point"][:, 0]

    of_cluster = [targets(0, 2), targets(1, 3)]
    np.testing.assert_allclose(server.found["rows"], [len(y) for y in of_cluster])
    np.testing.assert_allclose(server.found["y"][:, 0], [y.sum() for y in of_cluster])
    np.testing.assert_allclose(server.found["yy"], [(y**2).sum() for y in of_cluster])
    wanted = [0.25 * targets(k).mean() + 0.75 * of_cluster[CLUSTER[k]].mean() for k in range(4)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_client_whose_answer_was_lost_is_in_no_sum():
    base, first = at_points(0.0, 10.0)
    method = dapper(base, source="statistics", lam=0.25)

    server = asked(method, POINTS, base=first, weights=[3.0, 0.0, 3.0, 2.0])

    assert server.found["rows"].tolist() == [6.0, 2.0]
    assert server.found["y"][:, 0].tolist() == [targets(0, 2).sum(), targets(3).sum()]


RAW = {"source": "raw", "allow_raw_sharing": True, "example": POINTS.example}


def rows_in(pools, cluster):
    return sorted(np.asarray(pools.y[cluster, : pools.size[cluster]]).ravel().tolist())


def test_a_pool_holds_rows_of_its_own_cluster_and_none_that_was_lost():
    base, first = at_points(0.0, 10.0)
    method = dapper(base, lam=0.5, shared_rows=5, **RAW)

    pools = asked(method, POINTS, base=first, weights=[3.0, 3.0, 3.0, 0.0]).found

    assert rows_in(pools, 0) == sorted(targets(0, 2).tolist())
    assert rows_in(pools, 1) == sorted(targets(1).tolist())


@pytest.mark.parametrize(
    ("options", "sizes"),
    [({"shared_rows": 2}, [4, 4]), ({"shared_rows": 5, "pool_rows": 4}, [4, 4]), ({"shared_rows": 1}, [2, 2])],
)
def test_a_pool_is_as_large_as_was_agreed(options, sizes):
    base, first = at_points(0.0, 10.0)
    method = dapper(base, lam=0.5, **options, **RAW)

    pools = asked(method, POINTS, base=first).found

    assert pools.size.tolist() == sizes
    for cluster, members in ((0, (0, 2)), (1, (1, 3))):
        assert set(rows_in(pools, cluster)) <= set(targets(*members).tolist())
        assert len(set(rows_in(pools, cluster))) == sizes[cluster]  # no row twice: all targets differ


def test_the_union_takes_a_number_of_pool_rows_for_every_own_row():
    """One step on all of it: the own mean and that of the pool's first ratio * m_k rows, by lam."""
    base, first = at_points(0.0, 10.0)
    plan = Plan(batch=1000, lr=0.5)
    method = dapper(base, lam=0.3, ratio=1, shared_rows=5, plan=plan, **RAW)

    server = asked(method, POINTS, base=first)
    found = served(method, server, POINTS).weights.params["point"][:, 0]

    for client in range(4):
        own, start = targets(client), 10.0 * CLUSTER[client]
        pool = np.asarray(server.found.y[CLUSTER[client]]).ravel()[: len(own)]
        slope = 0.3 * (start - own.mean()) + 0.7 * (start - pool.mean())
        np.testing.assert_allclose(found[client], start - 0.5 * slope, rtol=1e-5)


def test_the_loss_of_a_union_is_the_mixture_of_both_losses():
    own, pool = one_client([1.0, 2.0, 6.0], capacity=7), one_client([10.0, 20.0], capacity=5)
    weights = Weights({"point": jnp.array([4.0])})
    model = mean((0,), 1)
    model = replace(model, apply=lambda w, x: w.params["point"] + 0 * x.sum(-1, keepdims=True))
    model = replace(model, forward=lambda key, w, x, mask: (model.apply(w, x), ()))

    value, _ = objective(model)(KEY, weights, OwnAndPool(own, pool, jnp.asarray(0.2)).all())

    squares = [((np.asarray(y) - 4.0) ** 2).mean() / 2 for y in ([1.0, 2.0, 6.0], [10.0, 20.0])]
    assert float(value) == pytest.approx(0.2 * squares[0] + 0.8 * squares[1], rel=1e-5)


def test_public_inputs_are_labeled_by_the_first_model():
    """Least squares to own labels and, by 1 - lam, to the first model's predictions for public inputs."""
    federation = ragged("regression")
    base = fedavg(MODELS["regression"], plan=LONG)
    first = np.array([1.0, 2.0, -1.0])
    server = base.start(KEY, 4)._replace(
        weights=Weights({"head": {"kernel": jnp.array([1.0, 2.0]), "bias": jnp.array(-1.0)}})
    )

    found = served(dapper(base, source="proxy", proxy=PUBLIC, lam=0.4, epochs=400), server, federation)

    pool_a, pool_b = moments(PUBLIC, with_one(PUBLIC) @ first)
    for client in range(4):
        a, b = moments(*own_rows(federation, client))
        wanted = np.linalg.solve(0.4 * a + 0.6 * pool_a, 0.4 * b + 0.6 * pool_b)
        np.testing.assert_allclose(answer_of("regression", found.weights.params)[client], wanted, atol=2e-5)


def test_public_inputs_are_read_from_a_file(tmp_path):
    np.save(tmp_path / "public.npy", PUBLIC)
    federation = ragged("regression")
    base = fedavg(MODELS["regression"], plan=LONG)
    options = {"source": "proxy", "lam": 0.5, "epochs": 2}

    ours, theirs = (
        served(dapper(base, proxy=given, **options), base.start(KEY, 4), federation)
        for given in (str(tmp_path / "public.npy"), PUBLIC)
    )

    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_public_texts_stay_whole_numbers():
    public = public_rows(char_mlp((6,), 5), np.arange(24).reshape(4, 6) % 5, 3)

    assert (public.x.dtype, public.x.shape) == (jnp.int32, (3, 6))


def test_the_models_own_labels_anchor_a_density_at_the_model():
    """(1 - lam) KL(first || h) and lam times the log-loss: the minimizer mixes first and own frequencies."""
    federation = ragged("density")
    base = fedavg(MODELS["density"], plan=Plan(batch=None, lr=2.0))
    first = np.array([0.4, 0.3, 0.2, 0.1])
    server = base.start(KEY, 4)._replace(weights=Weights({"logits": jnp.log(jnp.asarray(first))}))

    found = served(dapper(base, lam=0.3, epochs=400), server, federation)

    wanted = [0.3 * frequencies(own_rows(federation, k)[1]) + 0.7 * first for k in range(4)]
    np.testing.assert_allclose(answer_of("density", found.weights.params), wanted, atol=2e-5)


def test_a_client_without_rows_keeps_the_base_model_and_every_client_has_its_balance():
    last = POINTS.start[3, 0]  # the rows of the last client are all for testing
    federation = replace(
        POINTS,
        count=np.array([[3, 0, 0], [3, 0, 0], [3, 0, 0], [0, 0, 2]]),
        start=np.concatenate([POINTS.start[:3], [[last, last, last]]]),
    )
    method = dapper(fedavg(LINE, plan=Plan(batch=None, lr=0.5)), lams=(0.25, 1.0), folds=2)

    table = run(method, federation, rounds=1).clients

    assert set(table["lam"].to_list()) <= {0.0, 0.25, 1.0}
    assert (table["lam"][3], table["tuned"][3]) == (0.0, 0.0)
    assert table["personal_test_loss"][3] == table["global_test_loss"][3]


BASE = fedavg(MODELS["regression"])


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: dapper(BASE, lam=1.5), BadValue, r"lam must be in \[0, 1\], got 1.5"),
        (lambda: dapper(BASE, lam=float("nan")), BadValue, r"lam must be in \[0, 1\], got nan"),
        (lambda: dapper(BASE, lams=(0.5, -0.1)), BadValue, r"lams must be in \[0, 1\], got \(0.5, -0.1\)"),
        (lambda: dapper(BASE, lams=()), BadValue, r"lams must be in \[0, 1\], got \(\)"),
        (lambda: dapper(BASE, folds=1), BadValue, "folds must be 2 or more, got 1"),
        (lambda: dapper(BASE, epochs=-1), BadValue, "epochs must be 0 or more, got -1"),
        (lambda: dapper(BASE, ratio=0), BadValue, "ratio must be 1 or more, got 0"),
        (lambda: dapper(BASE, pool_rows=0), BadValue, "pool_rows must be 1 or more, got 0"),
        (lambda: dapper(BASE, source="statistic"), UnknownChoice, "did you mean 'statistics'"),
        (lambda: dapper(BASE, mixing="pairs"), UnknownChoice, "did you mean 'paired'"),
        (lambda: dapper(BASE, source="raw", example=1), Unsupported, "say allow_raw_sharing=true if they agreed"),
        (lambda: dapper(BASE, source="raw", allow_raw_sharing=True), BadValue, "example must be the shapes of a row"),
        (lambda: dapper(fedavg(softmax((2,), 3)), source="statistics"), Unsupported, "least_squares, mean or density"),
        (lambda: dapper(fedavg(squared_hinge((2,)))), Unsupported, "margins, not probabilities"),
        (lambda: dapper(BASE, source="proxy"), BadValue, "proxy must be an array of public inputs or a .npy file"),
        (lambda: dapper(BASE, source="proxy", proxy="nowhere.npy"), BadFile, "could not be read from nowhere.npy"),
        (lambda: dapper(BASE, source="proxy", proxy=np.zeros((0, 2))), BadValue, "a row per public example"),
        (lambda: dapper(BASE, source="proxy", proxy=3.0), BadValue, "a row per public example"),
        (lambda: dapper(BASE, source="proxy", proxy=np.zeros((4, 5))), BadValue, r"inputs of this model"),
        (lambda: dapper(dapper(BASE)), Unsupported, "dapper needs a base that serves a plain model"),
        (lambda: dapper(ditto(MODELS["mean"]), source="statistics"), Unsupported, "a base without private state"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(build, error, said):
    with pytest.raises(error, match=said):
        build()


def test_consent_is_asked_for_in_one_line():
    with pytest.raises(Unsupported) as refusal:
        dapper(BASE, source="raw")

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"not an array"])
def test_a_file_that_holds_no_array_is_named(tmp_path, content):
    path = tmp_path / "public.npy"
    path.write_bytes(content)

    with pytest.raises(BadFile, match=f"could not be read from {path}"):
        dapper(BASE, source="proxy", proxy=str(path))
