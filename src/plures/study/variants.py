"""Several studies from one file, read back together: which method serves in all of them, and which in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from plures.errors import BadFile
from plures.study.disk import layout
from plures.study.disk.results import SavedStudy, read_results
from plures.study.recommendation import Choice, Recommendation, recommend
from plures.wording import counted, joined


@dataclass(frozen=True)
class Variants:
    """The studies that can be read, by label, in the order of the file; ``missing`` says what cannot be shown."""

    folder: Path
    studies: Mapping[str, SavedStudy]
    varied: Mapping[str, Mapping[str, Any]]
    missing: tuple[str, ...] = ()

    @cached_property
    def answers(self) -> dict[str, Recommendation]:
        """What to take in each of them."""
        return {label: recommend(one.result) for label, one in self.studies.items()}

    @cached_property
    def candidates(self) -> dict[str, list[str]]:
        """The methods that are as good as the best one, in each of them."""
        choices = {label: Choice(one.result) for label, one in self.studies.items()}
        return {label: one.candidates if one.sound else [] for label, one in choices.items()}

    @cached_property
    def methods(self) -> list[str]:
        """The methods of all of them, as given."""
        return list(dict.fromkeys(name for one in self.studies.values() for name in one.result.methods))

    @cached_property
    def table(self) -> pl.DataFrame:
        """A row per (variant, method): its row of the leaderboard, and whether it is a candidate and the advice there."""
        name = pl.col("method")
        parts = [
            one.result.leaderboard.select(
                pl.lit(label).alias("variant"),
                pl.lit(one.result.metric).alias("metric"),
                pl.all(),
                name.is_in(self.candidates[label]).alias("candidate"),
                (name == self.answers[label].advice).alias("advice"),
            )
            for label, one in self.studies.items()
        ]
        return pl.concat(parts, how="diagonal_relaxed")

    @cached_property
    def everywhere(self) -> str:
        """The method that is as good as the best one in all of the studies, and recommended in most; empty if there is none."""
        first, *others = self.candidates.values()
        common = [name for name in first if all(name in one for one in others)]
        times = {name: len(self._by_advice.get(name, ())) for name in common}
        return max(common, key=times.__getitem__, default="")

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """What to take, in two or three sentences."""
        if not any(one.advice for one in self.answers.values()):
            return "No method can be advised in any of these studies.", "Look at each of them for the reason."
        if len(self.studies) == 1:
            return next(iter(self.answers.values())).sentences
        total = counted(len(self.studies), "variant")
        if not self.everywhere:
            common = [set(one.result.methods) for one in self.studies.values()]
            first = "No method is as good as the best in" if set.intersection(*common) else "No method was run in"
            each = [f"{name} in {_some(labels)}" for name, labels in self._by_advice.items() if name]
            none = f"; there is none to take in {_some(self._by_advice[''])}" if "" in self._by_advice else ""
            return f"{first} all {total}.", f"Take {'; '.join(each)}{none}."
        first = f"Use {self.everywhere}: it is as good as the best in all {total}."
        others = {name: labels for name, labels in self._by_advice.items() if name != self.everywhere}
        each = [f"{counted(len(labels), 'variant')} would advise {name}" for name, labels in others.items()]
        alone = f"looked at alone, {joined(each)}" if others else "each of them recommends it"
        return first, f"{self._range(self.everywhere)}; {alone}."

    @cached_property
    def _by_advice(self) -> dict[str, list[str]]:
        """The variants that each advice is for, the most frequent first."""
        labels: dict[str, list[str]] = {}
        for label, one in self.answers.items():
            labels.setdefault(one.advice, []).append(label)
        return dict(sorted(labels.items(), key=lambda one: -len(one[1])))

    def _range(self, method: str) -> str:
        """Between which means a method ends, and where."""
        rows = self.table.filter(pl.col("method") == method, pl.col("mean").is_not_null()).sort("mean")
        if rows["metric"].n_unique() > 1 or rows.height < 2:
            return "Its scores are in the table"
        digits = max(one.result.digits for one in self.studies.values())
        low, high = (rows.row(place, named=True) for place in (0, -1))
        ends = [f"{row['mean']:.{digits}f} ({row['variant']})" for row in (low, high)]
        return f"Its mean test {low['metric']} is {ends[0]} to {ends[1]}"


def _some(labels: Sequence[str], most: int = 3) -> str:
    """Some labels, which may have commas of their own.

    >>> _some(["a, b", "a, c"]), _some(list("abcd"))
    ('a, b / a, c', 'a / b / c and 1 more')
    """
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return " / ".join(labels[:most]) + more


def write_index(folder: Path, variants: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Keep the (label, folder, what is varied) of all studies beside them."""
    rows = [{"label": label, "folder": name, "varied": dict(varied)} for label, name, varied in variants]
    layout.write_json(folder / layout.VARIANTS, {"variants": rows})


def is_varied(folder: str | Path) -> bool:
    """Whether a folder holds several studies from one file."""
    return (Path(folder) / layout.VARIANTS).exists()


def read_index(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """{label: (folder, what is varied)} of all studies."""
    return layout.read_as(
        lambda found: {str(row["label"]): (str(row["folder"]), dict(row["varied"])) for row in found["variants"]},
        folder / layout.VARIANTS,
        advice="; each of the studies beside it can still be read",
    )


def open_variants(folder: str | Path) -> Variants:
    """The studies in a folder that a file with ``[vary]`` made; those that cannot be read are said to be missing."""
    folder = Path(folder)
    studies, missing = dict[str, SavedStudy](), list[str]()
    index = read_index(folder)
    for label, (name, _) in index.items():
        if not (folder / name).is_dir():
            missing.append(f"{label}: not started; go on with: plures resume {folder}")
            continue
        try:
            studies[label] = read_results(folder / name)
        except BadFile as error:
            missing.append(f"{label}: {error}")
        else:
            missing += [f"{label}: {line}" for line in studies[label].missing]
    if not studies:
        raise BadFile(f"{folder} holds no finished run; go on with: plures resume {folder}")
    return Variants(folder, studies, {label: varied for label, (_, varied) in index.items()}, tuple(missing))
