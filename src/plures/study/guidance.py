"""Which for whom: every client's own choice between global, cluster, personal and lone models, with evidence.

A client leaves the global model only for a clear gain on its valid rows (``choosing`` says how). With fewer than two of them
nothing can be clear: it takes the option that is best for the population, that of the least mean valid loss over clients.

Test rows decide nothing. They say afterwards what the decisions are worth, beside taking the population's best for all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from plures.data import Federation
from plures.engine import Run, Runner, Settings, Threat
from plures.engine.liars import check_liars, threat_of
from plures.errors import BadData, BadValue, UnknownChoice
from plures.study.choosing import FAMILIES, ROUNDING, Gain, Option, Rows, choose, paired, population_best
from plures.study.compare import (
    StudyProgress,
    built_methods,
    check_given,
    honest_rows,
    run_one,
    teller,
)
from plures.study.comparison import ALONE, honest_of
from plures.study.folder import about_threat
from plures.study.joining import joining_words
from plures.study.statistics import Interval, bootstrap
from plures.types import Method, Model, Plan

COMMON = ("fedavg", "fedprox", "scaffold", "agnostic")
DECIDED = "client by client"


def default_options(federation: Federation) -> tuple[str, ...]:
    """What clients decide between unless methods are named: none that has looked at a client's valid rows before."""
    few = f",up_to={federation.num_clients}" if federation.num_clients < 4 else ""
    return ("fedavg", f"hypcluster_auto:per_client=no{few}", "fedavg|dapper", "fedavg|mapper", ALONE)


@dataclass(frozen=True)
class Guidance:
    """The result: ``clients`` has a row per client, ``evidence`` a row per policy and what it is held against.

    ``reference`` is the global method everyone starts from, ``best`` the population's best option. Under attack, liars
    have rows too, and everything else is about the honest clients.
    """

    clients: pl.DataFrame
    evidence: pl.DataFrame
    families: Mapping[str, str]
    reference: str
    best: str
    threat: Threat | None = None

    @property
    def honest(self) -> pl.DataFrame:
        """The rows of clients that do not lie."""
        return honest_of(self.clients)

    @property
    def counts(self) -> dict[str, int]:
        """How many clients decide for each family, most first."""
        found = self.honest["family"].to_list()
        sizes = {family: found.count(family) for family in FAMILIES}
        return {family: sizes[family] for family in sorted(FAMILIES, key=lambda one: -sizes[one]) if sizes[family]}

    @property
    def by_method(self) -> pl.DataFrame:
        """A row per option that someone took: how many clients, their mean gains, the share of them hurt."""
        hurt = pl.col("test_gain") < -ROUNDING * pl.col(f"test_loss_{self.reference}").abs()
        found = self.honest.group_by("family", "method").agg(
            pl.len().alias("clients"),
            (~pl.col("seen")).sum().alias("unseen"),
            pl.col("valid_gain").mean(),
            pl.col("test_gain").mean(),
            hurt.mean().alias("hurt"),
        )
        return found.sort("clients", "method", descending=[True, False])

    @property
    def summary(self) -> str:
        """The result in a few sentences; what lies within noise is called that."""
        (most, number), *others = self.counts.items()
        parts = [f"{number} of {self.honest.height} clients: {most}", *(f"{n}: {name}" for name, n in others)]
        return " ".join([", ".join(parts) + ".", *self.sentences])

    @property
    def sentences(self) -> list[str]:
        """What the decisions are worth on test rows, to seen and unseen clients."""
        found = []
        for row in self.evidence.iter_rows(named=True):
            first = (row["policy"], row["against"]) == (DECIDED, "global")
            if first or (row["seen"] and row["against"] != "alone"):
                found.append(_sentence(row))
        return found


def decide(
    runs: Mapping[str, Run | Sequence[Run]], *, errors: float = 1.0, families: Mapping[str, str] | None = None
) -> Guidance:
    """The guidance that finished runs give; several runs of a method differ in their seeds.

    ``errors`` is how many standard errors a gain on valid rows must exceed. Families follow from the names of methods;
    ``families`` says otherwise. The first global one is the reference.
    """
    _check_errors(errors)
    lists = {name: [one] if isinstance(one, Run) else list(one) for name, one in runs.items()}
    numbers = {name: len(one) for name, one in lists.items()}
    if 0 in numbers.values() or len(set(numbers.values())) > 1:
        raise BadValue("runs", numbers, "at least one for each method, and equally many")
    named = families_of({name: one[0].runner.method for name, one in lists.items()}, families)
    every = [run for one in lists.values() for run in one]
    whole = lists[next(iter(named))][0].runner
    if not all(_same_clients(run.runner, whole) for run in every):
        raise BadData("these runs are of different data; decide between runs with the same seen and unseen clients")
    return decide_between(
        [option_of(name, lists[name], named[name]) for name in named],
        roster_of(whole),
        errors=errors,
        threat=whole.threat,
    )


def _same_clients(one: Runner, whole: Runner) -> bool:
    """Whether both trained on the same data, with the same liars; the one may lack all unseen clients."""
    unseen = one.everyone.num_clients == one.num_seen or one.everyone.fingerprint == whole.everyone.fingerprint
    lies = np.array_equal(np.flatnonzero(one.byzantine), np.flatnonzero(whole.byzantine))
    return one.seen.fingerprint == whole.seen.fingerprint and unseen and lies


def guide(
    methods: Sequence[str] | Mapping[str, Method],
    federation: Federation,
    *,
    rounds: int,
    unseen: Federation | None = None,
    model: str | Model | None = None,
    plan: Plan = Plan(),
    norm: str = "share",
    seeds: Sequence[int] = (0,),
    errors: float = 1.0,
    progress: Callable[[StudyProgress], None] | None = None,
    **settings: Any,
) -> Guidance:
    """Train every method with every seed and decide; the other arguments are those of ``compare``."""
    _check_errors(errors)
    limits = Settings.of({"rounds": rounds, **settings})
    check_given(methods, seeds, federation, limits)
    check_rows(*federation.count[honest_rows(federation, limits), 1:].T)
    built = dict(methods) if isinstance(methods, Mapping) else built_methods(methods, federation, model, plan, norm)
    for name, method in built.items():
        check_liars(method, limits, federation.num_clients, label=name)
    named, options, roster = families_of(built), [], None
    for place, (name, family) in enumerate(named.items()):
        runs = []
        for turn, seed in enumerate(seeds):
            tell = teller(progress, name, seed, place * len(seeds) + turn, len(built) * len(seeds))
            runs.append(run_one(name, built[name], federation, unseen, replace(limits, seed=seed), tell))
        options.append(option_of(name, runs, family))
        roster = roster_of(runs[0].runner) if roster is None else roster
    assert roster is not None
    threat = threat_of(limits.channels, federation.num_clients)
    return decide_between(options, roster, errors=errors, threat=threat)


def families_of(methods: Mapping[str, Method], said: Mapping[str, str] | None = None) -> dict[str, str]:
    """The family of each method by its label, simplest first; refuses what leaves nothing to decide."""
    said = said or {}
    for name, family in said.items():
        if family not in FAMILIES:
            raise UnknownChoice("family", family, FAMILIES)
        if name not in methods:
            raise UnknownChoice("method in families", name, methods)
    found = {name: said.get(name, _family(name, method)) for name, method in methods.items()}
    given = ", ".join(f"{name} ({family})" for name, family in found.items())
    if "global" not in found.values():
        raise BadValue("methods", given, f"a list with a global one to start from, such as {COMMON[0]}")
    if len(set(found.values())) < 2:
        raise BadValue("methods", given, f"of two families or more, such as {COMMON[0]} and {ALONE}")
    return dict(sorted(found.items(), key=lambda one: FAMILIES.index(one[1])))


def _family(name: str, method: Method) -> str:
    """A personalizer in the name personalizes; clients that choose among models cluster; the rest goes by name."""
    base = name.split(":")[0].strip()
    if "|" in name:
        return "personalize"
    if method.assign is not None:
        return "cluster"
    return "alone" if base == ALONE else "global" if base in COMMON else "personalize"


def option_of(name: str, runs: Sequence[Run], family: str) -> Option:
    """A method's losses, from its runs."""
    tables = [run.losses() for run in runs]
    valid, test = (
        [np.stack(seeds) for seeds in zip(*(table[split] for table in tables), strict=True)]
        for split in ("valid", "test")
    )
    return Option(name, family, valid, test)


def roster_of(runner: Runner) -> pl.DataFrame:
    """Who the clients are, in the order of uids, and what theory says to each of them."""
    everyone = runner.everyone
    return pl.DataFrame(
        {
            "uid": everyone.uid,
            "name": list(everyone.names),
            "seen": everyone.uid < runner.num_seen,
            **({"byzantine": runner.byzantine} if runner.byzantine.any() else {}),
            "train_rows": everyone.count[:, 0],
            "valid_rows": everyone.count[:, 1],
            "test_rows": everyone.count[:, 2],
            "bound": joining_words(runner.method.model, everyone, runner.num_seen),
        },
        schema_overrides={"bound": pl.String},
    )


def decide_between(
    options: Sequence[Option], roster: pl.DataFrame, *, errors: float = 1.0, threat: Threat | None = None
) -> Guidance:
    """The guidance for the clients of a roster; the first option is the global reference, then simplest first."""
    reference, number, honest = options[0], roster.height, honest_of(roster)
    check_rows(honest["valid_rows"].to_numpy(), honest["test_rows"].to_numpy())
    if not all(reference.serves(uid) for uid in honest["uid"]):
        cure = "use a smaller step size" if threat is None else "use a smaller step size or a robust aggregator"
        raise BadData(f"{reference.name} diverged: some client's loss is no number; {cure}")
    best = population_best(options, honest.filter("seen")["uid"])
    population = [best if best.serves(uid) else reference for uid in range(number)]
    enough = [reference.valid[uid].shape[1] >= 2 for uid in range(number)]
    chosen = [choose(options, uid, errors=errors) if enough[uid] else population[uid] for uid in range(number)]
    alone = next((option for option in options if option.family == "alone"), None)
    clients = pl.concat([roster, _columns(options, chosen, enough, alone)], how="horizontal")
    policies = {DECIDED: chosen, f"{best.name} for all": population}
    evidence = _evidence(policies, reference, alone, honest)
    families = {option.name: option.family for option in options}
    return Guidance(clients, evidence, families, reference.name, best.name, threat)


def _check_errors(errors: float) -> None:
    if not 0 <= errors < math.inf:
        raise BadValue("errors", errors, "a number of standard errors, 0 or more")


def check_rows(valid_rows: NDArray[np.integer], test_rows: NDArray[np.integer]) -> None:
    """Refuse data that leave nothing to decide by, or nothing to show for it."""
    if not (valid_rows >= 2).any():
        raise BadData("no client has two valid rows to decide by; split the data with a larger valid share")
    if not test_rows.any():
        raise BadData("no client has test rows to show what decisions are worth; split the data with a test share")


def save_guidance(out: Path, result: Guidance) -> None:
    """The decisions as tables, and the rest as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    result.clients.write_csv(out / "decisions.csv")
    result.clients.write_parquet(out / "decisions.parquet")
    about = {
        "summary": result.summary,
        "reference": result.reference,
        "best_for_all": result.best,
        "families": dict(result.families),
        "decisions": result.by_method.to_dicts(),
        "evidence": result.evidence.to_dicts(),
        **({} if result.threat is None else {"attack": about_threat(result.threat)}),
    }
    (out / "summary.json").write_text(json.dumps(about, indent=2))


def _columns(
    options: Sequence[Option], chosen: Sequence[Option], enough: Sequence[bool], alone: Option | None
) -> pl.DataFrame:
    """What every client decided, how clear that was, its gains and the losses of all options."""
    reference, uids = options[0], range(len(chosen))
    moved = ["no clear gain" if option is reference else "clear" for option in chosen]
    found: dict[str, Any] = {
        "family": [option.family for option in chosen],
        "method": [option.name for option in chosen],
        "evidence": [word if known else "none" for word, known in zip(moved, enough, strict=True)],
    }
    gains = {"valid_gain": [paired(reference.valid[uid], chosen[uid].valid[uid]) for uid in uids]}
    gains["test_gain"] = [_test_gain(reference, chosen[uid], uid) for uid in uids]
    if alone is not None:
        gains["test_gain_over_alone"] = [_test_gain(alone, chosen[uid], uid) for uid in uids]
    for name, values in gains.items():
        found[name] = [gain.mean for gain in values]
        found[f"{name}_error"] = [gain.error for gain in values]
    for option in options:
        found[f"valid_loss_{option.name}"] = [_mean(option.valid, uid) for uid in uids]
    for option in options:
        found[f"test_loss_{option.name}"] = [_mean(option.test, uid) for uid in uids]
    return pl.DataFrame(found).fill_nan(None)


def _mean(losses: Sequence[Rows], uid: int) -> float:
    return float(losses[uid].mean()) if uid < len(losses) and losses[uid].size else math.nan


def _test_gain(before: Option, after: Option, uid: int) -> Gain:
    able = uid < len(before.test) and uid < len(after.test)
    return paired(before.test[uid], after.test[uid]) if able else Gain(math.nan, math.nan)


def _evidence(
    policies: Mapping[str, Sequence[Option]], reference: Option, alone: Option | None, honest: pl.DataFrame
) -> pl.DataFrame:
    """Every policy against global and alone, and the decisions against the other policy, on test rows."""
    (decided, chosen), (everyone, population) = policies.items()
    held: dict[str, Sequence[Option]] = {"global": [reference] * len(chosen)}
    if alone is not None:
        held["alone"] = [alone] * len(chosen)
    pairs = [(policy, against, policies[policy], held[against]) for policy in policies for against in held]
    pairs.append((decided, everyone, chosen, population))
    rows = []
    for part in (True, False):
        uids = honest.filter(pl.col("seen") == part)["uid"].to_list()
        for policy, against, after, before in pairs if len(uids) else ():
            table = np.array([_falls(before[uid], after[uid], uid) for uid in uids]).T
            row = {"policy": policy, "against": against, "seen": part}
            rows.append({**row, **_told(table, [before[uid].test_loss(uid).mean() for uid in uids])})
    return pl.DataFrame(rows).fill_nan(None)


def _falls(before: Option, after: Option, uid: int) -> Rows:
    """(seeds,) fall of a client's mean test loss."""
    with np.errstate(invalid="ignore"):  # a loss may be infinite
        return before.test_loss(uid) - after.test_loss(uid)


def _told(table: NDArray[np.floating], before: Sequence[float]) -> dict[str, Any]:
    """Mean gain over clients with its interval, the share of clients hurt, and a verdict in words."""
    gains = table.mean(axis=0)
    known = ~np.isnan(gains)
    interval = bootstrap(table)
    hurt = gains[known] < -ROUNDING * np.abs(np.asarray(before)[known])
    return {
        "num_clients": int(known.sum()),
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "hurt": float(hurt.mean()) if known.any() else math.nan,
        "verdict": _verdict(interval, gains[known]),
    }


def _verdict(interval: Interval, gains: NDArray[np.floating]) -> str:
    if np.isinf(gains).any():
        return "a loss without bound"
    if len(gains) < 2:
        return "too few clients to tell"
    if not gains.any():
        return "no change"
    return ("better" if interval.mean > 0 else "worse") if interval.excludes_zero else "within noise"


def _sentence(row: Mapping[str, Any]) -> str:
    """One row of the evidence as a sentence."""
    whose = "" if row["seen"] else f"on the {row['num_clients']} unseen clients "
    who = f"deciding {DECIDED}" if row["policy"] == DECIDED else row["policy"]
    start = f"{whose}{who} "
    start = start[0].upper() + start[1:] if row["policy"] == DECIDED else start
    if row["verdict"] not in ("better", "worse", "within noise"):
        return f"{start}against {row['against']}: {row['verdict']}."
    falls = row["mean"] >= 0
    low, high = (row["low"], row["high"]) if falls else (-row["high"], -row["low"])
    low, high = (round(end, 3) + 0.0 for end in (low, high))  # never -0.000
    said = f"{'lowers' if falls else 'raises'} the test loss by {abs(row['mean']):.3f} [{low:.3f}, {high:.3f}]"
    noise = ", within noise" if row["verdict"] == "within noise" else ""
    return f"{start}{said} against {row['against']}{noise}; {100 * row['hurt']:.0f} % of clients are hurt."
