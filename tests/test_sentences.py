"""Every option of everything that is registered has its sentence, in one form, where its factory is."""

import inspect
import typing
from dataclasses import fields, is_dataclass

import pytest

import plures  # noqa: F401  (registers everything)
from plures import registry
from plures.aggregate import AGGREGATORS
from plures.aggregate.radius import RADII
from plures.data import TableOptions
from plures.docstrings import argument_sentences, prose
from plures.engine import Settings
from plures.types import Plan

ALL = [
    registry.METHODS,
    registry.PERSONALIZERS,
    registry.MODELS,
    registry.DATASETS,
    registry.PARTITIONERS,
    registry.CHANNELS,
    registry.WORLDS,
    AGGREGATORS,
    RADII,
]
every_registry = pytest.mark.parametrize("entries", ALL, ids=lambda one: one.kind)


@every_registry
def test_every_option_has_a_sentence(entries):
    missing = {
        f"{entry.name}:{option}" for entry in entries.values() for option in entry.options.keys() - entry.sentences
    }

    assert len(entries)
    assert not missing, f"add to the section Args of their factories: {', '.join(sorted(missing))}"


@every_registry
def test_every_sentence_is_one(entries):
    badly = {
        f"{entry.name}:{option}: {sentence}"
        for entry in entries.values()
        for option, sentence in entry.sentences.items()
        if not sentence.endswith(".") or sentence[0].islower()
    }

    assert not badly, "a sentence begins with a capital letter and ends with a full stop"


def all_described():
    """Every factory, and every value whose fields are options, with the names that it may explain."""
    for entries in ALL:
        for entry in entries.values():
            yield entry.factory, {*inspect.signature(entry.factory).parameters, *entry.options}
            for hint in typing.get_type_hints(entry.factory).values():
                if is_dataclass(hint):
                    yield hint, {one.name for one in fields(hint)}


def test_nothing_is_explained_that_is_not_there():
    strays = {
        f"{described.__module__}.{described.__name__}: {name}"
        for described, known in all_described()
        for name in argument_sentences(described).keys() - known
    }

    assert not strays


@pytest.mark.parametrize("value", [Plan, Settings, TableOptions])
def test_every_field_of_a_value_that_users_fill_in_has_a_sentence(value):
    assert argument_sentences(value).keys() == {one.name for one in fields(value)}


def described(*, size: int = 3, color: str = "red"):
    """A round fruit.

    It grows on trees.

    Args:
        size: How large it is, in centimeters:
            0 is a seed.

        color: Its color.

    It is eaten raw.
    """


def test_a_sentence_goes_on_in_lines_that_are_indented_further():
    assert argument_sentences(described) == {
        "size": "How large it is, in centimeters: 0 is a seed.",
        "color": "Its color.",
    }


def test_what_is_said_beside_the_arguments_stays():
    assert prose(described) == "It grows on trees.\n\nIt is eaten raw."


def test_a_docstring_without_arguments_is_all_prose():
    def fruit():
        """A fruit.

        More.
        """

    assert argument_sentences(fruit) == {}
    assert prose(fruit) == "More."


def test_a_line_that_explains_no_argument_is_refused():
    def fruit(*, size):
        """A fruit.

        Args:
            the size of it
        """

    with pytest.raises(ValueError, match="fruit: 'the size of it'"):
        argument_sentences(fruit)
