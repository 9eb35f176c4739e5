"""Advice on families in words: what was measured and what it means, the verdict, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plures.advise.families import FAMILIES
from plures.advise.linear_families import BOUND
from plures.wording import counted

if TYPE_CHECKING:
    from plures.advise.family_advice import FamilyAdvice

STRENGTHS = ((0.02, "hardly differ"), (0.1, "differ a little"), (0.3, "differ clearly"), (1.01, "differ strongly"))
SAME, PARTLY = 0.8, 0.5
"""Clusters that are the same in all folds from here on, and other ones in every fold below."""


class Sign(NamedTuple):
    """One thing that was measured, and what it means."""

    name: str
    value: str
    meaning: str


def signs_of(advice: FamilyAdvice) -> list[Sign]:
    """Everything that was measured, in the order of the table."""
    classes = advice.rows.task == "classification"
    found = [
        _size(advice),
        _skew(advice, "label_skew", "labels" if classes else "targets"),
        _skew(advice, "feature_shift", "inputs of a class" if classes else "inputs"),
        _noise(advice),
        _compare(advice, "shift", "normalized inputs", "one model does {} with them"),
        _clusters(advice),
        _personal(advice),
        _compare(advice, "alone", "models alone", "clients do {} alone"),
        _small(advice),
    ]
    return [sign for sign in found if sign is not None]


def sentences_of(advice: FamilyAdvice) -> list[str]:
    """The verdict: whether personalization can pay, which family and why, how sure; and what linear models may miss."""
    return [_payment(advice), _reason(advice), _surety(advice), *_aside(advice)]


def _size(advice: FamilyAdvice) -> Sign:
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


def _skew(advice: FamilyAdvice, name: str, what: str) -> Sign | None:
    value = advice.skews[name]
    if value is None:
        return None
    word = next(word for limit, word in STRENGTHS if value < limit)
    return Sign(name.replace("_", " "), f"{value:.2f}", f"{what} {word} between clients")


def _noise(advice: FamilyAdvice) -> Sign:
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


def _compare(advice: FamilyAdvice, family: str, name: str, meaning: str) -> Sign | None:
    """Whether a family does better than one model for all."""
    if family not in advice.scores:
        return None
    gain = advice.saving("global", family)
    does = "better" if gain.low > 0 else "worse" if gain.high < 0 else "no better"
    return Sign(name, _gain(advice, family), meaning.format(does))


def _clusters(advice: FamilyAdvice) -> Sign:
    found = advice.clusters
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


def _personal(advice: FamilyAdvice) -> Sign:
    weights = advice.scores["personal"].overall
    if "shift" not in advice.scores:
        meaning = f"near the shared one as by {weights.intercept:g} rows"
    elif weights.coefficients >= BOUND:
        meaning = "best with own offsets and common coefficients"
    else:
        free = ", offsets nearly free" if weights.intercept < weights.coefficients else ""
        meaning = f"near the shared one as by {weights.coefficients:g} rows{free}"
    return Sign("own models", _gain(advice, "personal"), meaning)


def _small(advice: FamilyAdvice) -> Sign:
    small = int((~advice.certain).sum())
    return Sign("too small to tell", f"{small} of {advice.rows.num}", "clients whose rows do not tell if they gain")


def _gain(advice: FamilyAdvice, name: str) -> str:
    gain = advice.saving("global", name)
    return f"{100 * gain.mean:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.1f} %"


def _of(advice: FamilyAdvice, before: str, after: str) -> str:
    """What is saved of an error, with its interval."""
    gain = advice.saving(before, after)
    return (
        f"{_percent(gain.mean)} ({_percent(gain.low)} to {_percent(gain.high)}) of the error of {FAMILIES[before]}"
    )


def _verb(name: str) -> str:
    return f"{FAMILIES[name]} {'saves' if FAMILIES[name].startswith('one ') else 'save'}"


def _payment(advice: FamilyAdvice) -> str:
    if advice.pays == "no":
        most = max(advice.saving("global", name).high for name in advice.able if name != "global")
        return (
            "Personalization is unlikely to pay: on rows held out, no family is likely to save more than "
            f"{_percent(max(most, 0.0))} of the error of one model for all."
        )
    other = advice.family if advice.family != "global" else advice.rivals[0]
    start = "Personalization can pay" if advice.pays == "yes" else "It is unclear whether personalization pays"
    return f"{start}: on rows held out, {_verb(other)} {_of(advice, 'global', other)}."


def _reason(advice: FamilyAdvice) -> str:
    start = "The family that fits is" if advice.rival is None else "The family that fits best is"
    return f"{start} {advice.family} ({FAMILIES[advice.family]}): {_why(advice)}."


def _why(advice: FamilyAdvice) -> str:
    """Why the family that was chosen fits."""
    if advice.family == "global":
        return "what differs between clients is too little, or their rows are too few, for a richer family to do better"
    if advice.family == "alone":
        return (
            "clients' models differ, and each has rows enough for its own; a proximal term to a shared one saves "
            f"{_of(advice, 'alone', 'personal')}"
        )
    if advice.family == "shift":
        return (
            "inputs look different from client to client, but once each client normalizes its own they mean the same to all; "
            f"own models would save {_of(advice, 'shift', 'personal')}"
        )
    if advice.family == "clusters":
        k = advice.clusters.k if advice.clusters is not None else 0
        saved = _of(advice, "personal", "clusters")
        return f"clients fall into {k} clusters, found again in every fold, that save {saved}"
    mixed = advice.rows.task == "classification" and (advice.skews["label_skew"] or 0.0) >= 0.1
    return (
        f"{'their labels are mixed differently, and ' if mixed else ''}clients' models differ, but not so much that the others "
        f"are of no use: they save {_of(advice, 'alone', 'personal')}"
    )


def _surety(advice: FamilyAdvice) -> str:
    if advice.rival is None:
        return "How sure: clear, as far as linear models see: 95 % intervals speak against every other family."
    simple, rich = sorted(advice.wants, key=list(FAMILIES).index)
    others = f"Not ruled out either: {', '.join(advice.rivals[1:])}. " if len(advice.rivals) > 1 else ""
    return (
        f"How sure: unclear, it may as well be {advice.rival} ({FAMILIES[advice.rival]}); {_verb(rich)} {_of(advice, simple, rich)}. "
        f"{others}The study below decides between the two."
    )


def _aside(advice: FamilyAdvice) -> list[str]:
    """Where inputs differ a lot and normalizing helps, networks may gain more by it than linear models do."""
    if "shift" not in advice.scores or "shift" in advice.wants or advice.rows.task != "classification":
        return []
    if (advice.skews["feature_shift"] or 0.0) < STRENGTHS[2][0] or advice.saving("global", "shift").low <= 0:
        return []
    return [
        "Inputs differ strongly, and normalizing them helps one model: a network that normalizes inside may gain more. "
        "Add a study with --model mlp_norm -m fedavg -m fedbn -m lgmix."
    ]
