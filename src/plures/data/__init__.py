"""Federations: building them, loading them by name or path, partitioners, and worlds with known answers."""

from plures.data import partition, sets, worlds
from plures.data.disk import open_federation, save
from plures.data.federation import SPLITS, Federation, from_arrays
from plures.data.loading import DataSpec, load
from plures.data.tables import TableOptions, inspect_own, read_own
from plures.data.worlds import World
