"""References that are not federated, beside a study: computed once for its data, one table with what it is of in its header."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from plures.data import Federation
from plures.errors import Unsupported
from plures.study.disk import layout
from plures.study.references import References, data_mark, references_of, trivial_of
from plures.types import Model


def keep_references(
    folder: Path,
    seen: Federation,
    unseen: Federation | None,
    model: Model,
    say: Callable[[str, str], None] = lambda text, style: None,
) -> References:
    """The references in a study's folder; they are computed and said where there are none yet of these data."""
    known = read_references(folder)
    if known is not None and known.data == data_mark(seen, unseen, model):
        return known
    found = references_of(seen, unseen, model)
    save_references(folder, found)
    for line in said(found):
        say(line, "dim")
    return found


def trivial_references(
    seen: Federation, unseen: Federation | None, model: Model, folder: Path | None = None
) -> References | None:
    """The trivial predictor alone, which takes no time: useless runs are judged by it. None for a task that has none.

    It is kept in the study's folder, so that the study says the same when it is opened again.
    """
    try:
        found = References(trivial_of(seen, unseen, model), model.score, model.higher_is_better, {}, {})
    except (Unsupported, ValueError):
        return None
    if folder is not None:
        save_references(folder, found)
    return found


def said(references: References) -> list[str]:
    """What references get, what they took, and what was left out, a line each.

    >>> import polars as pl
    >>> table = pl.DataFrame({"reference": ["trivial"], "seen": [True], "test_score": [0.25]})
    >>> said(References(table, "rmse", False, {"boosting alone": "there are no inputs"}, {"trivial": 0.01}))
    ['references: mean test rmse trivial 0.25 (0.0 s)', 'no boosting alone: there are no inputs']
    """
    means = ", ".join(f"{name} {mean:.3g}" for name, mean in references.means.items())
    seconds = sum(references.seconds.values())
    first = f"references: mean test {references.metric} {means} ({seconds:.1f} s)"
    return [first, *(f"no {name}: {why}" for name, why in references.left_out.items())]


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
