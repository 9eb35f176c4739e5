"""Data files that are not part of the project: tests that need one are skipped where it is not."""

import pytest

from plures import data
from plures.data.files import locate
from plures.data.sets import cifar10, digit_domains, har, heart, mnist_writers, school, shakespeare
from plures.errors import BadFile


@pytest.fixture(scope="session")
def needs():
    """A function that gives a source's path, or skips the test with the message a user would see."""

    def path_of(source):
        try:
            return locate(source)
        except BadFile as error:
            reason = str(error)
        pytest.skip(reason)

    return path_of


@pytest.fixture(scope="session")
def sources():
    """The files of each data set."""
    return {
        "mnist-writers": [mnist_writers.SOURCE],
        "har": [har.SOURCE],
        "heart": [heart.SOURCE],
        "school": [school.SOURCE],
        "shakespeare": [shakespeare.SOURCE],
        "digit-domains": [mnist_writers.SOURCE, digit_domains.MNIST_M, digit_domains.USPS],
        "cifar10": [cifar10.SOURCE],
    }


@pytest.fixture(scope="module")
def loaded(needs, sources):
    """A function that loads a data set by name, with the same options only once."""
    known = {}

    def load(name, **options):
        for source in sources[name]:
            needs(source)
        asked = (name, *sorted(options.items()))
        if asked not in known:
            known[asked] = data.load(name, **options)
        return known[asked]

    return load
