"""Bring your own: a table with a client column, or a folder with a file per client, becomes a federation."""

from plures.data.tables.examination import Column, TableSummary
from plures.data.tables.options import TableOptions
from plures.data.tables.reader import inspect_own, read_own
