"""Which for whom: every client's own choice between global, cluster, personal and lone models, with evidence.

A client leaves the global model only for a clear gain on its valid rows (``choice`` says how). With fewer than two of them
nothing can be clear: it takes the option that is best for the population, that of the least mean valid loss over clients.

Test rows decide nothing. They say afterwards what the decisions are worth, beside taking the population's best for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from plures.advise.advice import Advice
from plures.advise.choice import ROUNDING, Candidate, RowLosses, choose, paired_gain, population_best
from plures.advise.families import DECISIONS, ModelFamily
from plures.advise.preparation import distinct_rows, standard_targets
from plures.data import Federation
from plures.engine import AttackSummary, Run, Runner, Settings
from plures.engine.attackers import attackers_of, check_attackers
from plures.errors import BadData, BadValue, UnknownChoice
from plures.method import Method
from plures.study.bounds import joining_words
from plures.study.comparison import ALONE, honest_of
from plures.study.disk import layout
from plures.study.disk.results import about_attackers
from plures.study.grid import StudyProgress, build_methods, check_given, honest_rows, run_one, teller
from plures.study.statistics import Interval, bootstrap
from plures.types import Model, Plan

COMMON = ("fedavg", "fedprox", "scaffold", "agnostic")
DECIDED = "client by client"


@dataclass(frozen=True, eq=False)
class Decisions(Advice):
    """The result: ``clients`` has a row per client, ``evidence`` a row per policy and what it is held against.

    ``reference`` is the global method everyone starts from, ``best`` the population's best option. Under attack, attackers
    have rows too, and everything else is about the honest clients.
    """

    QUESTION = "what should every client take?"
    COMMAND = "plures decide"
    LOOKS = "your models and your plan, where every client chose by its own valid rows"

    clients: pl.DataFrame
    evidence: pl.DataFrame
    families: Mapping[str, str]
    reference: str
    best: str
    attackers: AttackSummary | None = None
    notes: tuple[str, ...] = ()
    federation: Federation | None = None

    @property
    def honest(self) -> pl.DataFrame:
        """The rows of honest clients."""
        return honest_of(self.clients)

    @property
    def counts(self) -> dict[str, int]:
        """How many clients decide for each family, most first."""
        sizes = Counter(sorted(self.honest["family"], key=DECISIONS.index))
        return dict(sizes.most_common())

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
    def verdict(self) -> str:
        """What most clients decide for."""
        return next(iter(self.counts))

    @property
    def family(self) -> ModelFamily:
        """The same, as a family."""
        return ModelFamily(self.verdict)

    @property
    def possible(self) -> tuple[str, ...]:
        """What some clients decide for, and where no clear gain is left, the one for all."""
        return tuple(self.counts)

    @property
    def sentences(self) -> list[str]:
        """What the decisions are worth on test rows, to seen and unseen clients."""
        first = (pl.col("policy") == DECIDED) & (pl.col("against") == "global")
        told = self.evidence.filter(first | (pl.col("seen") & (pl.col("against") != "alone")))
        return [_sentence(row) for row in told.iter_rows(named=True)]

    @property
    def remarks(self) -> list[str]:
        """Who attacked, and what became of rows and targets."""
        return [*([] if self.attackers is None else [self.attackers.said]), *self.notes]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Clients: what each decides for, how clear that is, its gains and losses."""
        return {"decisions": self.clients}

    @property
    def facts(self) -> dict[str, Any]:
        """The decisions by method, and all of the evidence."""
        return {
            "summary": self.summary,
            "reference": self.reference,
            "best_for_all": self.best,
            "families": dict(self.families),
            "decisions": self.by_method.to_dicts(),
            "evidence": self.evidence.to_dicts(),
            **({} if self.attackers is None else {"attack": about_attackers(self.attackers)}),
        }

    def save(self, folder: str | Path) -> list[Path]:
        """The decisions in two forms, and the summary."""
        files, file = super().save(folder), Path(folder) / layout.DECISIONS
        self.clients.write_parquet(file)
        return [*files, file]


def decide(
    runs: Mapping[str, Run | Sequence[Run]], *, errors: float = 1.0, families: Mapping[str, str] | None = None
) -> Decisions:
    """The decisions that finished runs give; several runs of a method differ in their seeds.

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
    options = [candidate_of(name, lists[name], named[name]) for name in named]
    attackers = attackers_of(whole.settings.channels, whole.num_seen)
    found = decide_between(options, roster_of(whole), errors=errors, attackers=attackers)
    return replace(found, federation=whole.seen)


def _same_clients(one: Runner, whole: Runner) -> bool:
    """Whether both trained on the same data, with the same attackers; the one may lack all unseen clients."""
    unseen = one.everyone.num_clients == one.num_seen or one.everyone.fingerprint == whole.everyone.fingerprint
    attackers = np.array_equal(np.flatnonzero(one.attackers), np.flatnonzero(whole.attackers))
    return one.seen.fingerprint == whole.seen.fingerprint and unseen and attackers


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
) -> Decisions:
    """Train every method with every seed on standard targets and decide; the other arguments are those of ``compare``."""
    _check_errors(errors)
    federation, given = distinct_rows(federation), federation
    unseen = None if unseen is None else standard_targets(distinct_rows(unseen), federation)
    federation = standard_targets(federation)
    notes = federation.notes[len(given.notes) :]
    limits = Settings.of({"rounds": rounds, **settings})
    check_given(methods, seeds, federation, limits)
    check_rows(*federation.count[honest_rows(federation, limits), 1:].T)
    built = dict(methods) if isinstance(methods, Mapping) else build_methods(methods, federation, model, plan, norm)
    for name, method in built.items():
        check_attackers(method, limits, federation.num_clients, label=name)
    named, options, roster = families_of(built), [], None
    for index, (name, family) in enumerate(named.items()):
        runs = []
        for number, seed in enumerate(seeds, index * len(seeds)):
            tell = teller(progress, name, seed, number, len(built) * len(seeds))
            runs.append(run_one(name, built[name], federation, unseen, replace(limits, seed=seed), tell))
        options.append(candidate_of(name, runs, family))
        roster = roster_of(runs[0].runner) if roster is None else roster
    assert roster is not None
    attackers = attackers_of(limits.channels, federation.num_clients)
    found = decide_between(options, roster, errors=errors, attackers=attackers)
    return replace(found, notes=notes, federation=given)


def families_of(methods: Mapping[str, Method], said: Mapping[str, str] | None = None) -> dict[str, str]:
    """The family of each method by its label, simplest first; refuses what leaves nothing to decide."""
    said = said or {}
    for name, family in said.items():
        if family not in DECISIONS:
            raise UnknownChoice("family", family, [*DECISIONS])
        if name not in methods:
            raise UnknownChoice("method in families", name, methods)
    found = {name: said.get(name, _family(name, method)) for name, method in methods.items()}
    given = ", ".join(f"{name} ({family})" for name, family in found.items())
    if "global" not in found.values():
        raise BadValue("methods", given, f"a list with a global one to start from, such as {COMMON[0]}")
    if len(set(found.values())) < 2:
        raise BadValue("methods", given, f"of two families or more, such as {COMMON[0]} and {ALONE}")
    return dict(sorted(found.items(), key=lambda one: DECISIONS.index(one[1])))


def _family(name: str, method: Method) -> str:
    """A personalizer in the name personalizes; clients that choose among models cluster; the rest goes by name."""
    base = name.split(":")[0].strip()
    if "|" in name:
        return ModelFamily.PERSONAL.value
    if method.views.assign is not None:
        return ModelFamily.CLUSTERS.value
    known = {**dict.fromkeys(COMMON, ModelFamily.GLOBAL), ALONE: ModelFamily.ALONE}
    return known.get(base, ModelFamily.PERSONAL).value


def candidate_of(name: str, runs: Sequence[Run], family: str) -> Candidate:
    """A method's losses, from its runs."""
    tables = [run.losses() for run in runs]
    valid, test = (
        [np.stack(seeds) for seeds in zip(*(table[split] for table in tables), strict=True)]
        for split in ("valid", "test")
    )
    return Candidate(name, family, valid, test)


def roster_of(runner: Runner) -> pl.DataFrame:
    """Who the clients are, in the order of uids, and what theory says to each of them."""
    everyone = runner.everyone
    return pl.DataFrame(
        {
            "uid": everyone.uid,
            "name": list(everyone.names),
            "seen": everyone.uid < runner.num_seen,
            **({"attacker": runner.attackers} if runner.attackers.any() else {}),
            "train_rows": everyone.count[:, 0],
            "valid_rows": everyone.count[:, 1],
            "test_rows": everyone.count[:, 2],
            "bound": joining_words(runner.method.model, everyone, runner.num_seen),
        },
        schema_overrides={"bound": pl.String},
    )


def decide_between(
    options: Sequence[Candidate],
    roster: pl.DataFrame,
    *,
    errors: float = 1.0,
    attackers: AttackSummary | None = None,
) -> Decisions:
    """The decisions for the clients of a roster; the first option is the global reference, then simplest first."""
    reference, number, honest = options[0], roster.height, honest_of(roster)
    check_rows(honest["valid_rows"].to_numpy(), honest["test_rows"].to_numpy())
    if not all(reference.serves(uid) for uid in honest["uid"]):
        cure = "use a smaller step size" if attackers is None else "use a smaller step size or a robust aggregator"
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
    return Decisions(clients, evidence, families, reference.name, best.name, attackers)


def _check_errors(errors: float) -> None:
    if not 0 <= errors < math.inf:
        raise BadValue("errors", errors, "a number of standard errors, 0 or more")


def check_rows(valid_rows: NDArray[np.integer], test_rows: NDArray[np.integer]) -> None:
    """Refuse data that leave nothing to decide by, or nothing to show for it."""
    if not (valid_rows >= 2).any():
        raise BadData("no client has two valid rows to decide by; split the data with a larger valid share")
    if not test_rows.any():
        raise BadData("no client has test rows to show what decisions are worth; split the data with a test share")


def _columns(
    options: Sequence[Candidate], chosen: Sequence[Candidate], enough: Sequence[bool], alone: Candidate | None
) -> pl.DataFrame:
    """What every client decided, how clear that was, its gains and the losses of all options."""
    reference = options[0]
    clear = ["no clear gain" if option is reference else "clear" for option in chosen]
    found: dict[str, Any] = {
        "family": [option.family for option in chosen],
        "method": [option.name for option in chosen],
        "evidence": [word if known else "none" for word, known in zip(clear, enough, strict=True)],
    }
    against = {"valid_gain": (reference, "valid"), "test_gain": (reference, "test")}
    if alone is not None:
        against["test_gain_over_alone"] = (alone, "test")
    for name, (before, split) in against.items():
        gains = [paired_gain(before.losses(split, uid), one.losses(split, uid)) for uid, one in enumerate(chosen)]
        found |= {name: [gain.mean for gain in gains], f"{name}_error": [gain.error for gain in gains]}
    for split in ("valid", "test"):
        for option in options:
            means = [float(option.mean_losses(split, uid).mean()) for uid in range(len(chosen))]
            found[f"{split}_loss_{option.name}"] = means
    return pl.DataFrame(found).fill_nan(None)


def _evidence(
    policies: Mapping[str, Sequence[Candidate]], reference: Candidate, alone: Candidate | None, honest: pl.DataFrame
) -> pl.DataFrame:
    """Every policy against global and alone, and the decisions against the other policy, on test rows."""
    (decided, chosen), (everyone, population) = policies.items()
    held = {"global": [reference] * len(chosen), **({} if alone is None else {"alone": [alone] * len(chosen)})}
    pairs = [(policy, against, after, held[against]) for policy, after in policies.items() for against in held]
    pairs.append((decided, everyone, chosen, list(population)))
    rows = []
    for seen in (True, False):
        uids = honest.filter(pl.col("seen") == seen)["uid"].to_list()
        for policy, against, after, before in pairs if uids else ():
            then, now = (
                np.array([option[uid].mean_losses("test", uid) for uid in uids]).T for option in (before, after)
            )
            rows.append({"policy": policy, "against": against, "seen": seen, **_measure(then, now)})
    return pl.DataFrame(rows).fill_nan(None)


def _measure(before: RowLosses, after: RowLosses) -> dict[str, Any]:
    """Mean gain over clients of (seeds, clients) losses with its interval, the share of clients hurt, and a verdict."""
    with np.errstate(invalid="ignore"):  # a loss may be infinite
        table = before - after
        gains = table.mean(axis=0)
    known, interval = ~np.isnan(gains), bootstrap(table)
    hurt = gains[known] < -ROUNDING * np.abs(before.mean(axis=0)[known])
    return {
        "num_clients": int(known.sum()),
        **asdict(interval),
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
    if row["policy"] == DECIDED:
        start = start[0].upper() + start[1:]
    if row["verdict"] not in ("better", "worse", "within noise"):
        return f"{start}against {row['against']}: {row['verdict']}."
    falls = row["mean"] >= 0
    low, high = (row["low"], row["high"]) if falls else (-row["high"], -row["low"])
    low, high = (round(end, 3) + 0.0 for end in (low, high))  # never -0.000
    said = f"{'lowers' if falls else 'raises'} the test loss by {abs(row['mean']):.3f} [{low:.3f}, {high:.3f}]"
    noise = ", within noise" if row["verdict"] == "within noise" else ""
    return f"{start}{said} against {row['against']}{noise}; {100 * row['hurt']:.0f} % of clients are hurt."
