"""FedCLUP on real clients: is the automatic degree as good as the better of training alone and one model for all?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from papers.common.reproduce import Row, at_most
from plures.advise import Worth, WorthOptions, estimate_worth
from plures.advise.worth import WAYS
from plures.data import load
from plures.errors import BadFile


@dataclass(frozen=True)
class Real:
    """A federation of real clients, and how its linear models are trained."""

    name: str
    how: WorthOptions = field(default_factory=WorthOptions)


SETS = {
    "small": (Real("school", WorthOptions(num_lams=13)), Real("heart", WorthOptions(num_lams=13))),
    "full": (Real("school"), Real("heart")),
}


def play_sets(sets: Sequence[Real], out: Path, tell: Callable[[str], None]) -> list[Row]:
    """The rows of every set whose data are there, with a table of clients and a picture each."""
    from plures.advise.advice_figures import worth_figure
    from plures.report.figures import save_figures

    found: list[Row] = []
    for one in sets:
        try:
            worth = estimate_worth(load(one.name), one.how)
        except BadFile as error:
            tell(f"{one.name}: left out, {error}")
            continue
        worth.clients_table.write_csv(out / f"{one.name}.csv", float_precision=5)
        save_figures({one.name: worth_figure(worth)}, out)
        for line in worth.sentences:
            tell(f"{one.name}: {line}")
        found += rows(one.name, worth)
    return found


def rows(name: str, worth: Worth) -> list[Row]:
    """Losses of every way, and how the two automatic choices stand against the better end, which test rows name."""
    found = [
        Row(f"{name}-{way.replace(' ', '-')}", f"mean test loss, {name}, {way}", float(worth.test[way].mean()))
        for way in WAYS
    ]
    for way in ("auto", "valid"):
        gap = worth.against(way, worth.rival_by_test)
        what = (
            f"lower end of the 95 % interval of the loss of {way} above that of the better end ({worth.rival_by_test}), "
            f"{name}, mean {gap.mean:+.4g}"
        )
        found.append(at_most(f"{name}-{way}-against-better-end", what, gap.low, 0.0))
    gains = worth.clients_table["gain_over_alone"]
    share = float((gains > 0).mean())  # type: ignore[arg-type]
    found.append(
        Row(f"{name}-gain", f"share of clients that auto serves better than training alone, {name}", share)
    )
    found.append(Row(f"{name}-lam", f"automatic lambda, {name}", worth.degree.lam))
    return found
