"""The registry: names to factories, whose keyword arguments are their options."""

import pytest

from plures.errors import BadValue, UnknownChoice
from plures.registry import Limit, Registry


def apple(base, *, size: int = 3, color: str = "red"):
    """A round fruit.

    More about it.
    """
    return base, size, color


@pytest.fixture
def fruits():
    registry = Registry("fruit")
    registry.register(title="Apple")(apple)
    return registry


def test_a_factory_is_found_under_its_own_name(fruits):
    assert fruits["apple"].factory is apple


def test_registering_returns_the_factory_unchanged():
    assert Registry("fruit").register(title="Apple")(apple) is apple


def test_a_given_name_wins_over_the_function_name():
    registry = Registry("fruit")

    registry.register(title="Apple", name="golden-apple")(apple)

    assert list(registry) == ["golden-apple"]


def test_an_entry_keeps_what_was_declared():
    registry, limit = Registry("fruit"), Limit("no size: nothing", {"size": 0})

    registry.register(title="Apple", paper="arXiv:1", tags=("sweet", "round"), limits=[limit])(apple)

    entry = registry["apple"]
    assert (entry.title, entry.paper, entry.tags, entry.limits) == (
        "Apple",
        "arXiv:1",
        frozenset({"sweet", "round"}),
        (limit,),
    )


def test_names_come_in_order():
    registry = Registry("fruit")
    for name in ("pear", "apple", "quince"):
        registry.register(title=name, name=name)(apple)

    assert list(registry) == ["apple", "pear", "quince"]


def test_length_and_membership_follow_the_entries(fruits):
    assert (len(fruits), "apple" in fruits, "pear" in fruits) == (1, True, False)


def test_an_unknown_name_is_refused_with_the_nearest_one(fruits):
    with pytest.raises(UnknownChoice) as refusal:
        fruits["aple"]

    assert str(refusal.value) == "no fruit is called 'aple'; did you mean 'apple'? Known: apple"


def test_a_taken_name_is_refused(fruits):
    with pytest.raises(BadValue) as refusal:
        fruits.register(title="Other", name="apple")(lambda: None)

    assert str(refusal.value) == "name must be a fruit name that is not taken, got 'apple'"


def test_the_same_factory_may_register_again(fruits):
    fruits.register(title="Apple, again")(apple)

    assert fruits["apple"].title == "Apple, again"


def test_options_are_the_keyword_only_arguments(fruits):
    assert {name: one.default for name, one in fruits["apple"].options.items()} == {"size": 3, "color": "red"}


def test_summary_is_the_first_line_of_the_docstring(fruits):
    assert fruits["apple"].summary == "A round fruit."


def test_a_factory_without_docstring_has_an_empty_summary():
    registry = Registry("fruit")

    registry.register(title="Plain", name="plain")(lambda: None)

    assert registry["plain"].summary == ""


def test_known_options_pass_the_check(fruits):
    assert fruits["apple"].check_options({"size": 1, "color": "green"}) is None


@pytest.mark.parametrize("given", ["colour", "base"])
def test_an_option_the_factory_lacks_is_refused(fruits, given):
    with pytest.raises(UnknownChoice, match=rf"^no option of apple is called '{given}'.* Known: color, size$"):
        fruits["apple"].check_options({given: 1})
