"""Whether to federate, in words: the answer, what it rests on, and what test rows say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plures.advise.advice import disagreement
from plures.advise.families import ENDS
from plures.study.statistics import Interval
from plures.wording import counted

if TYPE_CHECKING:
    from plures.advise.worth import Worth

FEW = 10
"""With fewer clients an interval over clients is rough."""
UNEQUAL = 2.0
"""Noises (as standard deviations) are told where the largest is so many times the least."""


def sentences_of(worth: Worth) -> list[str]:
    """The answer, its reason, the unit of lam, what does not fit, what test rows say of it and of every client."""
    told = [_answer(worth), _reason(worth), _unit(worth), *_misfits(worth), _test_rows(worth), _who(worth)]
    return [*told, *_served(worth)]


def _answer(worth: Worth) -> str:
    means = worth.predicted_means
    if worth.verdict == "clusters":
        gap = worth.against("clusters", worth.auto)
        return (
            f"{_head(worth)}; on test rows this is at {_gap(gap)} of loss against own models near one shared model"
        )
    if worth.doubt is not None:
        return f"{_head(worth)}; {_against(worth, worth.doubt)}"
    if worth.verdict == "yes":
        best = means[worth.auto]
        return (
            f"{_head(worth)}; predicted excess loss {best:.3g}, {_percent(1 - best / means['alone'])} less than alone "
            f"and {_percent(1 - best / means['global'])} less than with one model for all"
        )
    other = {"alone": "global", "global": "alone"}[worth.verdict]
    return (
        f"{_head(worth)}; predicted excess loss {means[worth.verdict]:.3g} ({ENDS[other]} {means[other]:.3g}), and a model "
        f"each with {strength_of(worth)} is predicted to save {_percent(1 - means[worth.auto] / means[worth.verdict])} of it"
    )


def _head(worth: Worth) -> str:
    """The answer in short, in words of the verdict."""
    if worth.verdict == "yes":
        return f"yes: federate, and keep a model each with {strength_of(worth, worth.way)}"
    if worth.verdict == "clusters":
        assert worth.families is not None
        assert worth.families.clusters is not None
        return f"yes, but in groups: one model for each of {worth.families.clusters.k} clusters of clients"
    return {"alone": "no: train alone", "global": "one model for all is about as good as it gets"}[worth.verdict]


def strength_of(worth: Worth, way: str | None = None) -> str:
    """lam in words: one number, or from the least to the largest."""
    lams = worth.lams[way or worth.auto]
    low, high = float(lams.min()), float(lams.max())
    return f"lam = {low:.3g}" if high <= 1.01 * low else f"lam from {low:.3g} to {high:.3g}, each its own"


def _against(worth: Worth, gap: Interval) -> str:
    return (
        f"this is by valid rows, which speak clearly against {strength_of(worth)} from training rows: {_gap(gap)} of loss "
        f"against {ENDS[worth.rival]}, so clients do not differ, or their rows are not noisy, as assumed{_rough(worth)}"
    )


def _gap(gap: Interval) -> str:
    return f"{gap.mean:+.3g} ({gap.low:+.3g} to {gap.high:+.3g})"


def _rough(worth: Worth) -> str:
    return "" if len(worth.rows.names) >= FEW else f", as far as {len(worth.rows.names)} clients can tell"


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"


def _reason(worth: Worth) -> str:
    degree, means = worth.degree, worth.predicted_means
    return (
        f"{'why' if worth.doubt is None else 'predicted'}: clients' own noise costs {means['alone']:.3g} of loss alone, their "
        f"differences cost {means['global']:.3g} with one model; lam = {degree.lam:.3g}, and if models scatter {_scatter(worth)} "
        f"with 95 % probability between {degree.low:.3g} and {degree.high:.3g} "
        f"({counted(round(degree.freedom), 'number')} of evidence)"
    )


def _scatter(worth: Worth) -> str:
    scale = worth.degree.scale
    if worth.degree.is_alike:
        return "alike in every direction"
    if len(scale) > 1 and (scale[:-1] == scale[0]).all():
        more, less = ("intercepts", "slopes") if scale[-1] >= scale[0] else ("slopes", "intercepts")
        return f"as found, {more} {float(scale.max() / scale.min()):.3g} times as far as {less},"
    return f"as found, from column to column up to {float(scale.max() / scale.min()):.3g} times as far,"


def _unit(worth: Worth) -> str:
    if not worth.degree.is_alike:
        return (
            "lam is for the columns that differ most between clients, others are held more: no method has such strengths, so "
            "with `fedclup` (lam=auto, or lam=own) expect less"
        )
    if worth.rows.as_given:
        return "lam is for columns on one scale, as these are: `fedclup` with a linear model can take it"
    axes = "principal axes of " if worth.options.axes else ""
    return f"lam is for {axes}columns on one scale; these are not as they come, so let `fedclup` find its own (lam=auto)"


def _misfits(worth: Worth) -> list[str]:
    """What one noise, one shared model and one scatter for all would not fit, and what would."""
    found, noise = [], np.sqrt(np.broadcast_to(worth.degree.dispersion, worth.clients.num))
    if noise.max() > UNEQUAL * noise.min():
        found.append(
            f"clients are not equally noisy (deviations of {noise.min():.3g} to {noise.max():.3g}): one lam for all would "
            "hold the precise ones too near to the others; `fedclup:lam=own` goes by rows alone, `fedclup:lam=valid` asks "
            "every client"
        )
    if worth.outliers:
        named = ", ".join(worth.outliers)
        found.append(
            f"unlike all others, and found so in every fold: {named}; left out of what is said of the others here. Where such "
            "clients take part, give `aggregate=median` to a method (`fedavg:aggregate=median`)"
        )
    if worth.verdict == "clusters":
        found.append(
            "one shared model would lie between the groups: take a clustering method, `hypcluster_auto` or `ifca`"
        )
    elif worth.families is not None and (said := disagreement(worth, worth.families)):
        found.append(said)
    return found


def _test_rows(worth: Worth) -> str:
    way = worth.way if worth.way not in ENDS else worth.auto
    gap = worth.against(way)
    verdict = "within noise" if not gap.excludes_zero else "a clear gain" if gap.mean < 0 else "a clear loss"
    agree = "and by test rows"
    if worth.rival != worth.rival_by_test:
        other = worth.against(way, worth.rival_by_test)
        agree = f"but by test rows it is {ENDS[worth.rival_by_test]}: {other.mean:+.3g}, {other.low:+.3g} to {other.high:+.3g}"
    what = "one model per cluster" if way == "clusters" else strength_of(worth, way)
    return (
        f"on test rows {what} is at {gap.mean:+.3g} of loss against {ENDS[worth.rival]}, 95 % interval "
        f"{gap.low:+.3g} to {gap.high:+.3g}: {verdict}{_rough(worth)} ({ENDS[worth.rival]} is the better of the two by valid rows, {agree})"
    )


def _who(worth: Worth) -> str:
    table, said = worth.clients_table, []
    for other in ENDS:
        gains, ahead = table[f"gain_over_{other}"], table[f"predicted_gain_over_{other}"]
        said.append(
            f"{int((gains > 0).sum())} of {table.height} gain over {ENDS[other]} ({int((ahead > 0).sum())} predicted)"
        )
    return f"who, with {strength_of(worth)}: " + ", ".join(said)


def _served(worth: Worth) -> list[str]:
    """What clients that no estimate has seen get."""
    served, said = worth.served, []
    for why in dict.fromkeys(served.why):
        own = np.array([one == why for one in served.why])
        names = ", ".join(name for name, mine in zip(served.names, own, strict=True) if mine)
        losses = ", ".join(f"{name} {served.test[way][own].mean():.3g}" for way, name in SERVED.items())
        said.append(f"in no estimate ({why}): {names}; test loss there: {losses}")
    return said


SERVED = {
    "alone": "alone",
    "global": "with the others' one model",
    "auto": "with own rows near the others' shared model",
}
