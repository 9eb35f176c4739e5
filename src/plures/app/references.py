"""References that are not federated, beside a study in a folder: computed once for its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plures.data import Federation
from plures.errors import Unsupported
from plures.study.disk.references import read_references, save_references
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
