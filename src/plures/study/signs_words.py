"""Advice in words: what was measured and what it means, the verdict, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plures.data.own.words import counted
from plures.study.signs_ways import BOUND

if TYPE_CHECKING:
    from plures.study.advice import Advice

FAMILY = {
    "global": "one model for all",
    "alone": "models trained alone",
    "shift": "one model of inputs that each client normalizes",
    "clusters": "one model per cluster",
    "personal": "own models pulled to a shared one",
}
STRENGTHS = ((0.02, "hardly differ"), (0.1, "differ a little"), (0.3, "differ clearly"), (1.01, "differ strongly"))
SAME, PARTLY = 0.8, 0.5
"""Clusters that are the same in all folds from here on, and other ones in every fold below."""


class Sign(NamedTuple):
    """One thing that was measured, and what it means."""

    name: str
    value: str
    meaning: str


def signs(advice: Advice) -> list[Sign]:
    """Everything that was measured, in the order of the table."""
    found = [
        _size(advice),
        _skew(advice, "label_skew", "labels" if advice.rows.task == "classification" else "targets"),
        _skew(advice, "feature_shift", "inputs of a class" if advice.rows.task == "classification" else "inputs"),
        _noise(advice),
        _normalizing(advice),
        _clusters(advice),
        _pull(advice),
        _alone(advice),
        _small(advice),
    ]
    return [sign for sign in found if sign is not None]


def sentences(advice: Advice) -> list[str]:
    """The verdict: whether personalization can pay, which family and why, how sure; and what linear models may miss."""
    return [_payment(advice), _reason(advice), _surety(advice), *_aside(advice)]


def _size(advice: Advice) -> Sign:
    counts, numbers = advice.rows.counts, advice.rows.x.shape[1]
    median = float(np.median(counts))
    enough = "many" if median >= 10 * numbers else "enough to begin with" if median >= 2 * numbers else "few"
    low, high = int(counts.min()), int(counts.max())
    span = f"{low}" if low == high else f"{low} to {high}"
    return Sign(
        "size",
        f"{counted(advice.rows.num, 'client')}, {span} rows",
        f"{enough} for models of {counted(numbers, 'number')}",
    )


def _skew(advice: Advice, name: str, what: str) -> Sign | None:
    value = advice.skews[name]
    if value is None:
        return None
    word = next(word for limit, word in STRENGTHS if value < limit)
    return Sign(name.replace("_", " "), f"{value:.2f}", f"{what} {word} between clients")


def _noise(advice: Advice) -> Sign:
    costs = advice.costs
    if costs is None:
        return Sign("noise, differences", "unknown", "no client has rows enough to tell them apart")
    noise, differences = costs["noise"], costs["differences"]
    if differences > 2 * noise:
        meaning = "differences weigh more"
    elif noise > 2 * differences:
        meaning = "noise weighs more"
    else:
        meaning = "both weigh about the same"
    return Sign("noise, differences", f"{noise:.3f}, {differences:.3f}", meaning)


def _normalizing(advice: Advice) -> Sign | None:
    if "shift" not in advice.ways:
        return None
    gain = advice.saved("global", "shift")
    does = "better" if gain.low > 0 else "worse" if gain.high < 0 else "no better"
    return Sign("normalized inputs", _gain(advice, "shift"), f"one model does {does} with them")


def _clusters(advice: Advice) -> Sign:
    found = advice.found
    if found is None:
        return Sign("clusters", "unknown", f"{counted(advice.rows.num, 'client')} are too few")
    again = (
        "the same" if found.stability >= SAME else "partly the same" if found.stability >= PARTLY else "other ones"
    )
    sizes = np.sort(np.bincount(found.label, minlength=found.k))[::-1]
    return Sign(
        f"{found.k} clusters",
        _gain(advice, "clusters"),
        f"of {', '.join(str(size) for size in sizes)} clients, {again} in every fold ({found.stability:.2f})",
    )


def _pull(advice: Advice) -> Sign:
    pulls = advice.ways["personal"].overall
    if "shift" not in advice.ways:
        meaning = f"pulled as by {pulls.intercept:g} rows"
    elif pulls.slopes >= BOUND:
        meaning = "best with own offsets and common slopes"
    elif pulls.intercept < pulls.slopes:
        meaning = f"pulled as by {pulls.slopes:g} rows, offsets nearly free"
    else:
        meaning = f"pulled as by {pulls.slopes:g} rows"
    return Sign("own models", _gain(advice, "personal"), meaning)


def _alone(advice: Advice) -> Sign:
    gain = advice.saved("global", "alone")
    does = "better" if gain.low > 0 else "worse" if gain.high < 0 else "no better"
    return Sign("models alone", _gain(advice, "alone"), f"clients do {does} alone")


def _small(advice: Advice) -> Sign:
    small = int((~advice.told).sum())
    return Sign("too small to tell", f"{small} of {advice.rows.num}", "clients whose rows do not tell if they gain")


def _gain(advice: Advice, name: str) -> str:
    gain = advice.saved("global", name)
    return f"{100 * gain.mean:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.1f} %"


def _of(advice: Advice, before: str, after: str) -> str:
    """What is saved of an error, with its interval."""
    gain = advice.saved(before, after)
    return f"{_percent(gain.mean)} ({_percent(gain.low)} to {_percent(gain.high)}) of the error of {FAMILY[before]}"


def _verb(name: str) -> str:
    return f"{FAMILY[name]} {'saves' if FAMILY[name].startswith('one ') else 'save'}"


def _payment(advice: Advice) -> str:
    if advice.pays == "no":
        most = max(advice.saved("global", name).high for name in advice.able if name != "global")
        return (
            "Personalization is unlikely to pay: on rows held out, no family is likely to save more than "
            f"{_percent(max(most, 0.0))} of the error of one model for all."
        )
    other = advice.family if advice.family != "global" else advice.rivals[0]
    start = "Personalization can pay" if advice.pays == "yes" else "It is unclear whether personalization pays"
    return f"{start}: on rows held out, {_verb(other)} {_of(advice, 'global', other)}."


def _reason(advice: Advice) -> str:
    start = "The family that fits is" if advice.rival is None else "The family that fits best is"
    return f"{start} {advice.family} ({FAMILY[advice.family]}): {WHY[advice.family](advice)}."


def _why_global(advice: Advice) -> str:
    return "what differs between clients is too little, or their rows are too few, for a richer family to do better"


def _why_alone(advice: Advice) -> str:
    return f"clients' models differ, and each has rows enough for its own; a pull to a shared one saves {_of(advice, 'alone', 'personal')}"


def _why_shift(advice: Advice) -> str:
    return (
        "inputs look different from client to client, but once each client normalizes its own they mean the same to all; "
        f"own models would save {_of(advice, 'shift', 'personal')}"
    )


def _why_clusters(advice: Advice) -> str:
    k = advice.found.k if advice.found is not None else 0
    return f"clients fall into {k} clusters, found again in every fold, that save {_of(advice, 'personal', 'clusters')}"


def _why_personal(advice: Advice) -> str:
    skew = advice.skews["label_skew"] or 0.0
    mixed = (
        "their labels are mixed differently, and " if skew >= 0.1 and advice.rows.task == "classification" else ""
    )
    return f"{mixed}clients' models differ, but not so much that the others are of no use: they save {_of(advice, 'alone', 'personal')}"


WHY = {
    "global": _why_global,
    "alone": _why_alone,
    "shift": _why_shift,
    "clusters": _why_clusters,
    "personal": _why_personal,
}


def _surety(advice: Advice) -> str:
    if advice.rival is None:
        return "How sure: clear, as far as linear models see: 95 % intervals speak against every other family."
    simple, rich = sorted(advice.wants, key=list(FAMILY).index)
    others = f"Not ruled out either: {', '.join(advice.rivals[1:])}. " if len(advice.rivals) > 1 else ""
    return (
        f"How sure: unclear, it may as well be {advice.rival} ({FAMILY[advice.rival]}); {_verb(rich)} {_of(advice, simple, rich)}. "
        f"{others}The study below decides between the two."
    )


def _aside(advice: Advice) -> list[str]:
    """Where inputs differ a lot and normalizing helps, networks may gain more by it than linear models do."""
    if "shift" not in advice.ways or "shift" in advice.wants or advice.rows.task != "classification":
        return []
    if (advice.skews["feature_shift"] or 0.0) < STRENGTHS[2][0] or advice.saved("global", "shift").low <= 0:
        return []
    return [
        "Inputs differ strongly, and normalizing them helps one model: a network that normalizes inside may gain more. "
        "Add a study with --model mlp_norm -m fedavg -m fedbn -m lgmix."
    ]
