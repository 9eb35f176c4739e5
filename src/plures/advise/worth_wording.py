"""Whether to federate, in words: the answer, what it rests on, and what test rows say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plures.advise.families import ENDS
from plures.study.statistics import Interval
from plures.wording import counted

if TYPE_CHECKING:
    from plures.advise.worth import Worth

FEW = 10
"""With fewer clients an interval over clients is rough."""


def sentences_of(worth: Worth) -> list[str]:
    """The answer, its reason, the unit of lam, and what test rows say of it and of every client."""
    return [_answer(worth), _reason(worth), _unit(worth), _test_rows(worth), _who(worth)]


def _answer(worth: Worth) -> str:
    means, lam = worth.predicted_means, worth.degree.lam
    if worth.doubt is not None:
        return f"{_head(worth)}; {_against(worth, worth.doubt)}"
    if worth.verdict == "yes":
        return (
            f"{_head(worth)}; predicted excess loss {means['auto']:.3g}, {_percent(1 - means['auto'] / means['alone'])} "
            f"less than alone and {_percent(1 - means['auto'] / means['global'])} less than with one model for all"
        )
    other = {"alone": "global", "global": "alone"}[worth.verdict]
    return (
        f"{_head(worth)}; predicted excess loss {means[worth.verdict]:.3g} ({ENDS[other]} {means[other]:.3g}), and a model "
        f"each with lam = {lam:.3g} is predicted to save {_percent(1 - means['auto'] / means[worth.verdict])} of it"
    )


def _head(worth: Worth) -> str:
    """The answer in short, in words of the verdict."""
    if worth.verdict == "yes":
        return f"yes: federate, and keep a model each with lam = {worth.lams[worth.way][0]:.3g}"
    return {"alone": "no: train alone", "global": "one model for all is about as good as it gets"}[worth.verdict]


def _against(worth: Worth, gap: Interval) -> str:
    return (
        f"this is by valid rows, which speak clearly against lam = {worth.degree.lam:.3g} from training rows: {gap.mean:+.3g} "
        f"({gap.low:+.3g} to {gap.high:+.3g}) of loss against {ENDS[worth.rival]}, so clients do not differ, or their rows "
        f"are not noisy, as assumed{_rough(worth)}"
    )


def _rough(worth: Worth) -> str:
    return "" if len(worth.rows.names) >= FEW else f", as far as {len(worth.rows.names)} clients can tell"


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"


def _reason(worth: Worth) -> str:
    degree, means = worth.degree, worth.predicted_means
    return (
        f"{'why' if worth.doubt is None else 'predicted'}: clients' own noise costs {means['alone']:.3g} of loss alone, their "
        f"differences cost {means['global']:.3g} with one model; lam = {degree.lam:.3g}, and if models scatter alike in every "
        f"direction with 95 % probability between {degree.low:.3g} and {degree.high:.3g} "
        f"({counted(round(degree.freedom), 'number')} of evidence)"
    )


def _unit(worth: Worth) -> str:
    if worth.rows.as_given:
        return "lam is for columns on one scale, as these are: `fedclup` with a linear model can take it"
    axes = "principal axes of " if worth.options.axes else ""
    return f"lam is for {axes}columns on one scale; these are not as they come, so let `fedclup` find its own (lam=auto)"


def _test_rows(worth: Worth) -> str:
    way = "valid" if worth.way == "valid" else "auto"
    gap = worth.against(way)
    verdict = "within noise" if not gap.excludes_zero else "a clear gain" if gap.mean < 0 else "a clear loss"
    agree = "and by test rows"
    if worth.rival != worth.rival_by_test:
        other = worth.against(way, worth.rival_by_test)
        agree = f"but by test rows it is {ENDS[worth.rival_by_test]}: {other.mean:+.3g}, {other.low:+.3g} to {other.high:+.3g}"
    return (
        f"on test rows lam = {worth.lams[way][0]:.3g} is at {gap.mean:+.3g} of loss against {ENDS[worth.rival]}, 95 % interval "
        f"{gap.low:+.3g} to {gap.high:+.3g}: {verdict}{_rough(worth)} ({ENDS[worth.rival]} is the better of the two by valid rows, {agree})"
    )


def _who(worth: Worth) -> str:
    table, said = worth.clients_table, []
    for other in ENDS:
        gains, ahead = table[f"gain_over_{other}"], table[f"predicted_gain_over_{other}"]
        said.append(
            f"{int((gains > 0).sum())} of {table.height} gain over {other} ({int((ahead > 0).sum())} predicted)"
        )
    return f"who, with lam = {worth.degree.lam:.3g}: " + ", ".join(said)
