"""Bring your own: a table with a client column, or a folder with a file per client, becomes a federation."""

from __future__ import annotations

from plures.data.own.build import inspect_own, read_own
from plures.data.own.options import TableOptions
from plures.data.own.summary import Column, Summary

__all__ = ["Column", "Summary", "TableOptions", "inspect_own", "read_own"]
