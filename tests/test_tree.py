"""Arithmetic on trees: leaf by leaf, blind to clients of weight 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plures import tree

LEFT = {"a": jnp.array([1.0, 2.0]), "b": (jnp.array(3.0),)}
RIGHT = {"a": jnp.array([10.0, -20.0]), "b": (jnp.array(0.5),)}


def assert_trees_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_add_is_leaf_by_leaf():
    found = tree.add(LEFT, RIGHT)

    assert_trees_equal(found, {"a": np.array([11.0, -18.0]), "b": (np.array(3.5),)})


def test_subtract_is_left_minus_right():
    found = tree.subtract(LEFT, RIGHT)

    assert_trees_equal(found, {"a": np.array([-9.0, 22.0]), "b": (np.array(2.5),)})


def test_scale_multiplies_every_leaf():
    found = tree.scale(-2.0, LEFT)

    assert_trees_equal(found, {"a": np.array([-2.0, -4.0]), "b": (np.array(-6.0),)})


def test_scale_keeps_the_dtype_of_each_leaf():
    halves = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(2, jnp.float32)}

    found = tree.scale(jnp.float32(0.5), halves)

    assert {name: leaf.dtype for name, leaf in found.items()} == {"half": jnp.bfloat16, "single": jnp.float32}


def test_step_goes_along_the_direction():
    found = tree.step(LEFT, 0.5, RIGHT)

    assert_trees_equal(found, {"a": np.array([6.0, -8.0]), "b": (np.array(3.25),)})


def test_zeros_like_has_the_same_shapes():
    found = tree.zeros_like(LEFT)

    assert_trees_equal(found, {"a": np.zeros(2), "b": (np.zeros(()),)})


@pytest.mark.parametrize(("condition", "expected"), [(True, LEFT), (False, RIGHT)])
def test_choose_takes_one_tree_whole(condition, expected):
    found = tree.choose(jnp.asarray(condition), LEFT, RIGHT)

    assert_trees_equal(found, expected)


def test_dot_sums_over_all_leaves():
    found = tree.dot(LEFT, RIGHT)

    assert float(found) == 1 * 10 + 2 * -20 + 3 * 0.5


def test_dot_of_empty_trees_is_zero():
    assert float(tree.dot((), ())) == 0.0


def test_squared_norm_is_the_sum_of_squares():
    assert float(tree.squared_norm(LEFT)) == 1 + 4 + 9


def test_weighted_mean_weighs_by_share():
    stacked = {"a": jnp.array([[1.0, 2.0], [5.0, 6.0]]), "b": jnp.array([0.0, 4.0])}

    found = tree.weighted_mean(stacked, jnp.array([3.0, 1.0]))

    assert_trees_equal(found, {"a": np.array([2.0, 3.0]), "b": np.array(1.0)})


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_weighted_mean_ignores_what_a_client_of_weight_zero_holds(poison):
    stacked = jnp.array([[1.0], [poison], [3.0]])

    found = tree.weighted_mean(stacked, jnp.array([1.0, 0.0, 1.0]))

    assert found.tolist() == [2.0]


def test_weighted_mean_is_zero_where_no_client_counts():
    found = tree.weighted_mean(jnp.array([[7.0], [9.0]]), jnp.zeros(2))

    assert found.tolist() == [0.0]


def test_weighted_mean_of_integers_is_not_zero():
    found = tree.weighted_mean(jnp.array([[2], [4]]), jnp.ones(2))

    assert float(found[0]) == 3.0


def test_at_picks_one_client():
    stacked = {"a": jnp.array([[1.0], [2.0]]), "b": jnp.array([3.0, 4.0])}

    assert_trees_equal(tree.at(stacked, 1), {"a": np.array([2.0]), "b": np.array(4.0)})


def test_put_replaces_only_the_given_rows():
    stacked = {"a": jnp.array([1.0, 2.0, 3.0])}

    found = tree.put(stacked, jnp.array([2, 0]), {"a": jnp.array([30.0, 10.0])})

    assert_trees_equal(found, {"a": np.array([10.0, 2.0, 30.0])})


def test_stack_and_at_are_inverse():
    stacked = tree.stack([LEFT, RIGHT])

    assert_trees_equal(tree.at(stacked, 1), RIGHT)


def test_num_bytes_counts_every_number_in_its_own_width():
    leaves = {"float": jnp.zeros((3, 2)), "half": jnp.zeros(5, jnp.bfloat16), "flag": jnp.zeros((), bool)}

    assert tree.num_bytes(leaves) == 3 * 2 * 4 + 5 * 2 + 1


def test_num_bytes_of_a_key_is_that_of_its_words():
    keys = jax.random.split(jax.random.key(0), 3)

    assert tree.num_bytes(keys) == jax.random.key_data(keys).nbytes


def test_num_bytes_needs_shapes_only():
    shapes = jax.eval_shape(lambda: {"a": jnp.zeros((4, 4)), "key": jax.random.key(0)})

    assert tree.num_bytes(shapes) == 4 * 4 * 4 + 8


def test_paths_follow_the_order_of_leaves():
    nested = {"head": {"kernel": 1, "bias": 2}, "body": [3, 4]}

    found = dict(zip(tree.paths(nested), jax.tree.leaves(nested), strict=True))

    assert found == {"body/0": 3, "body/1": 4, "head/bias": 2, "head/kernel": 1}


def test_matches_takes_any_of_the_patterns():
    nested = {"dense_0": {"bias": 0, "kernel": 0}, "head": {"bias": 0}, "norm": 0}

    found = tree.matches(nested, ["head/*", "*/kernel"])

    assert dict(zip(tree.paths(nested), found, strict=True)) == {
        "dense_0/bias": False,
        "dense_0/kernel": True,
        "head/bias": True,
        "norm": False,
    }


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ([jnp.ones(2), jnp.ones((), jnp.int32)], True),
        ([jnp.ones(2), jnp.array([0.0, jnp.nan])], False),
        ([jnp.array([jnp.inf]), jnp.ones(2)], False),
        ([jnp.arange(3), jax.random.key(0)], True),
        ([], True),
    ],
)
def test_all_finite_looks_at_every_float(leaves, expected):
    assert bool(tree.all_finite(leaves)) is expected


def test_describe_names_path_type_and_shape():
    found = tree.describe({"head": {"bias": jnp.zeros(2)}, "step": jnp.zeros((), jnp.int32)})

    assert found == "head/bias:float32[2], step:int32[]"


@pytest.mark.parametrize(("given", "expected"), [((), "nothing"), (jnp.zeros((2, 3)), ".:float32[2, 3]")])
def test_describe_has_words_for_nothing_and_for_a_bare_array(given, expected):
    assert tree.describe(given) == expected
