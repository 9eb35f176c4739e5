"""Errors: one line that says what is wrong, what was given and what would do."""

import pytest

from plures.errors import (
    BadData,
    BadFile,
    BadValue,
    ClientFailure,
    PluresError,
    UnknownChoice,
    Unsupported,
    UserError,
)


def test_unknown_choice_suggests_the_nearest_name():
    error = UnknownChoice("method", "fedporx", ["fedprox", "ditto", "apfl"])

    assert str(error) == "no method is called 'fedporx'; did you mean 'fedprox'? Known: apfl, ditto, fedprox"


def test_unknown_choice_does_not_guess_from_afar():
    error = UnknownChoice("method", "xyz", ["fedprox", "ditto"])

    assert str(error) == "no method is called 'xyz'. Known: ditto, fedprox"


def test_unknown_choice_among_nothing_says_so():
    assert str(UnknownChoice("option of guard", "lam", [])) == "no option of guard is called 'lam'. Known: none"


@pytest.mark.parametrize(("given", "shown"), [(0.7, "0.7"), ("many", "'many'"), (None, "None")])
def test_bad_value_shows_what_was_given(given, shown):
    assert str(BadValue("share", given, "a number in [0, 0.5)")) == (
        f"share must be a number in [0, 0.5), got {shown}"
    )


@pytest.mark.parametrize("kind", [UnknownChoice, BadValue, BadData, BadFile, Unsupported])
def test_mistakes_of_the_user_are_user_errors(kind):
    assert issubclass(kind, UserError)


def test_a_failing_client_is_not_the_users_mistake():
    assert issubclass(ClientFailure, PluresError)
    assert not issubclass(ClientFailure, UserError)
