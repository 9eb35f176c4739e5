"""What every question about a federation is answered with: a verdict, the words for it, and the evidence.

``advise``, ``worth``, ``decide``, ``fuse`` and ``tradeoff`` give different kinds of it, which are printed, drawn and written alike.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from plures.advise.families import FAMILIES, ModelFamily
from plures.data import Federation
from plures.study.disk import layout
from plures.study.statistics import Interval, bootstrap


class Advice(ABC):
    """An answer from data with its evidence; the tables of the evidence are named by their files."""

    QUESTION: ClassVar[str]
    COMMAND: ClassVar[str]
    LOOKS: ClassVar[str]
    """What the answer rests on, said where two answers differ."""
    SUMMARY: ClassVar[str] = layout.SUMMARY

    federation: Federation | None = None
    """The clients that it is about, where ``plures advise`` may say something else of them."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The answer in a word or two."""

    @property
    @abstractmethod
    def sentences(self) -> list[str]:
        """The answer in words: what it is, what it rests on, how sure it is."""

    @property
    @abstractmethod
    def family(self) -> ModelFamily:
        """The family of models that it speaks for."""

    @property
    def possible(self) -> tuple[str, ...]:
        """The families that it does not rule out."""
        return (self.family,)

    @property
    def remarks(self) -> list[str]:
        """What else a reader must know: who is left out, what was not looked at."""
        return []

    @property
    @abstractmethod
    def tables(self) -> dict[str, pl.DataFrame]:
        """The evidence: clients or values, a row each."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The result in plain values."""

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values, as in the summary's file."""
        return {"question": self.QUESTION, "verdict": self.verdict, "said": self.sentences, **self.facts}

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The pictures of the evidence, by their files."""
        from plures.advise.advice_figures import (
            advice_figures,  # matplotlib: loaded late, so that commands start fast
        )

        return advice_figures(self)

    @cached_property
    def otherwise(self) -> str | None:
        """That ``plures advise`` says something else of the same clients, and why; None if it does not, or has nothing to say."""
        from plures.advise.family_advice import try_advise  # which is advice itself

        other = None if self.federation is None else try_advise(self.federation)
        return None if other is None else disagreement(self, other)

    def save(self, folder: str | Path) -> list[Path]:
        """Every table, the summary and the pictures, as files: all that the command leaves of it."""
        from plures.report.figures import save_figures

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{name}.csv" for name in self.tables]
        for file, table in zip(files, self.tables.values(), strict=True):
            table.write_csv(file)
        (folder / self.SUMMARY).write_text(json.dumps(self.to_dict(), indent=2) + "\n")
        return [*files, folder / self.SUMMARY, *save_figures(self.figures, folder)]


def disagreement(mine: Advice, other: Advice) -> str | None:
    """That two answers for the same clients differ, and why; None where they agree or do not rule each other out."""
    if mine.family in other.possible or other.family in mine.possible:
        return None
    return (
        f"`{other.COMMAND}` says otherwise: {other.family} ({FAMILIES[other.family]}), and this says {mine.family} "
        f"({FAMILIES[mine.family]}). There it is {other.LOOKS}; here it is {mine.LOOKS}. A study with methods of both tells"
    )


def bounds(interval: Interval) -> list[float]:
    """A mean and the ends of its interval, as a list."""
    return [interval.mean, interval.low, interval.high]


def mean_interval(values: np.ndarray) -> Interval:
    """The mean over clients with its interval, of which the bounds are NaN for one client: it cannot be resampled."""
    found = bootstrap(values)
    several = np.isfinite(np.atleast_2d(values)).any(axis=0).sum() > 1
    return found if several else replace(found, low=float("nan"), high=float("nan"))


def has_bounds(gap: Interval) -> bool:
    """Whether a gap has an interval."""
    return bool(np.isfinite(gap.low))


def is_noise(gap: Interval) -> bool:
    """Whether a gap may be none; a gap without an interval says nothing."""
    return has_bounds(gap) and not gap.excludes_zero
