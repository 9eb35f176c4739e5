"""References beside a study: one table, with what it is of in its header."""

from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl

from plures.study.disk import layout
from plures.study.references import References


def save_references(folder: Path, references: References) -> None:
    """Write the table of references as a whole or not at all."""
    about = {
        "metric": references.metric,
        "higher_is_better": references.higher_is_better,
        "left_out": dict(references.left_out),
        "seconds": dict(references.seconds),
        "data": references.data,
    }
    buffer = io.BytesIO()
    references.table.write_parquet(buffer, metadata={layout.HEADER: json.dumps(about)})
    layout.write_bytes(folder / layout.REFERENCES, buffer.getvalue())


def read_references(folder: Path) -> References | None:
    """The references beside a study; None where there are none, as in older folders, or they cannot be read."""
    file = folder / layout.REFERENCES
    try:
        about = json.loads(pl.read_parquet_metadata(file)[layout.HEADER])
        return References(pl.read_parquet(file), **about)
    except (OSError, ValueError, TypeError, LookupError, pl.exceptions.PolarsError):
        return None
