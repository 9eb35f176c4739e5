"""Digits that look different: MNIST, MNIST-M and USPS, a domain each, as 28x28 images with three channels.

* MNIST: the grey value in all three channels.
* MNIST-M: 32x32 in color. Its middle 28x28 is where the MNIST digit lies, pixel for pixel; the rim is cut off.
* USPS: 16x16, stretched to 28x28 (bilinear between pixel centers), grey in all three channels.

MNIST-M shows MNIST digits over photographs. Those it shows are left out of the MNIST domain, so no digit is in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from plures import registry
from plures.data.federation import Federation, from_arrays
from plures.data.files import DataFile, locate, read_npz
from plures.data.sets.mnist_writers import SOURCE as MNIST
from plures.data.splits import SHARES, sizes_of, stratified
from plures.errors import BadValue
from plures.keys import Purpose, derive, root
from plures.types import Key

MNIST_M = DataFile(
    file="mnist_m_subset.npz",
    sha256="87b7a05ec6875bbd48ea5456d02b28ffe195777dfbe632e47003f278ee76bd04",
    what="5,084 MNIST-M digits with their places in MNIST",
    origin="MNIST-M of Ganin et al. (arXiv 1505.07818)",
)
USPS = DataFile(
    file="usps.npz",
    sha256="95e790f272f9ff97b293f6960cbae5a4632b24788dc64725d33a6fed681fab9f",
    what="9,298 USPS digits",
    origin="the USPS digits of Hull (1994)",
)
KEYS = ("x_train", "y_train", "x_test", "y_test")
PLACES = ("mnist_index_train", "mnist_index_test")
SIDE = 28
FEWEST = 5


@registry.dataset(name="digit-domains", title="Digits in three domains", paper="arXiv:2102.07623 (FedBN)")
def digit_domains(
    *, rows: int = 2000, clients_per_domain: int = 1, data_dir: str | None = None, seed: int = 0
) -> Federation:
    """Digits of MNIST, MNIST-M and USPS as 28x28x3 images: ``rows`` of each domain, dealt over its clients.

    A fifth of the rows are test rows, drawn from the file's own test rows; the others come from its training rows.

    Args:
        rows: Rows of each domain, test rows included; at most what the smallest domain has.
        clients_per_domain: Among how many clients the rows of a domain are dealt, equally.
        data_dir: Folder in which the file lies; None takes that of the environment variable PLURES_DATA.
        seed: Seed of which rows are taken, who gets them and which of them validate.
    """
    domains = load_domains(data_dir)
    check_rows(rows, clients_per_domain, domains)
    names = {domain.name: client_names(domain.name, clients_per_domain) for domain in domains}
    key = derive(root(seed), Purpose.DATA)
    hands = [
        deal(jax.random.fold_in(key, number), domain, rows, names[domain.name])
        for number, domain in enumerate(domains)
    ]
    x, y, client, codes = (np.concatenate(column) for column in zip(*hands, strict=True))
    number_of = {str(client): number for number, domain in enumerate(domains) for client in names[domain.name]}
    return from_arrays(
        x, y, client, num_classes=10, split=codes, group=number_of, domain=number_of, title="digit-domains"
    )


class Domain(NamedTuple):
    """A domain's training and test rows as its file gives them, and how its images become 28x28x3."""

    name: str
    stored: dict[str, NDArray[Any]]
    look: Callable[[NDArray[Any]], NDArray[Any]]

    def draw(self, key: Key, part: str, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """So many rows of a part in random order: images and labels."""
        x, y = (self.stored[f"{letter}_{part}"] for letter in "xy")
        chosen = np.asarray(jax.random.permutation(key, len(y)))[:number]
        return x[chosen], y[chosen]


def load_domains(data_dir: str | None) -> tuple[Domain, ...]:
    """MNIST without the digits of MNIST-M, MNIST-M, USPS."""
    mnist = read_npz(locate(MNIST, data_dir), KEYS)
    mnist_m = read_npz(locate(MNIST_M, data_dir), KEYS + PLACES)
    usps = read_npz(locate(USPS, data_dir), KEYS)
    left = {key: np.delete(mnist[key], mnist_m[PLACES["test" in key]], axis=0) for key in KEYS}
    return Domain("mnist", left, grey), Domain("mnist-m", mnist_m, middle), Domain("usps", usps, stretch)


def check_rows(rows: int, clients_per_domain: int, domains: tuple[Domain, ...]) -> None:
    """Refuse more rows than the smallest domain has, or too few for the clients."""
    parts = (("y_train", 1 - SHARES[2]), ("y_test", SHARES[2]))
    most = min(int(len(domain.stored[part]) / share) for domain in domains for part, share in parts)
    if not FEWEST <= rows <= most:
        raise BadValue("rows", rows, f"between {FEWEST} and {most}, what the smallest domain has")
    if not 1 <= clients_per_domain <= rows // FEWEST:
        raise BadValue("clients_per_domain", clients_per_domain, f"between 1 and {rows // FEWEST} for {rows} rows")


def client_names(domain: str, number: int) -> NDArray[Any]:
    """The domain's name, numbered where there are several clients: usps-0, usps-1, ..."""
    width = len(str(number - 1))
    return np.array([domain] if number == 1 else [f"{domain}-{k:0{width}d}" for k in range(number)])


def deal(key: Key, domain: Domain, rows: int, clients: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """``rows`` of a domain, drawn at random and dealt in turn to its clients: images, labels, clients and splits."""
    keys = jax.random.split(key, 3)
    train, valid, test = (int(size) for size in sizes_of(np.array(rows), SHARES))
    (x, y), (x_test, y_test) = domain.draw(keys[0], "train", train + valid), domain.draw(keys[1], "test", test)
    owner = np.arange(train + valid) % len(clients)
    inner = (train / (train + valid), valid / (train + valid), 0.0)
    codes = stratified(keys[2], owner, y, inner)
    return (
        domain.look(np.concatenate([x, x_test])),
        np.concatenate([y, y_test]).astype(np.int32),
        clients[np.concatenate([owner, np.arange(test) % len(clients)])],
        np.concatenate([codes, np.full(test, 2)]),
    )


def grey(images: NDArray[Any]) -> NDArray[Any]:
    """Bytes of one channel as numbers in [0, 1] in three."""
    return np.repeat((images / np.float32(255))[..., None], 3, axis=3)


def middle(images: NDArray[Any]) -> NDArray[Any]:
    """The middle 28x28 of larger color images of bytes, as numbers in [0, 1]."""
    rim = (images.shape[1] - SIDE) // 2
    return images[:, rim : rim + SIDE, rim : rim + SIDE] / np.float32(255)


def stretch(images: NDArray[Any]) -> NDArray[Any]:
    """Grey images in [0, 1] stretched to 28x28, in three channels."""
    from scipy.ndimage import zoom

    factor = SIDE / images.shape[1]
    large = zoom(images, (1, factor, factor), order=1, mode="nearest", grid_mode=True)
    return np.repeat(large[..., None], 3, axis=3).astype(np.float32)
