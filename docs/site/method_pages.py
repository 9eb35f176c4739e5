"""Pages about methods and personalizers in Markdown, made from what is known of them (see ``cards``)."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from shlex import quote
from typing import Any, NamedTuple

from cards import CLOSING, MESSAGES, Card

from plures.registry import METHODS, Entry, Limit
from plures.report.options import Option, formula_of, line_kind, more_of, needed, option_rows
from plures.wording import counted

PAPERS = {
    r"arXiv[: ](\d{4}\.\d{4,5})": "https://arxiv.org/abs/",
    r"OpenReview[: ](\w+)": "https://openreview.net/forum?id=",
}
TAGS = {
    "baseline": "a reference to compare with, not a method to deploy",
    "oracle": "reads the planted groups, as no other method may",
    "parts": "needs a model with named parts, such as a body and a head",
    "norm": "has a policy of its own for normalization layers",
}
FAMILIES = {
    "One model for all": "Everyone is served the same model.",
    "Clusters": "A client shares a model with those that are like it; nobody says who these are.",
    "Parts and layers": "The method knows the parts of a model: a head, a body, normalization layers.",
    "A model for each": "Personal models that are tied to each other, mixed with a common one, or adapted from it.",
    "For reference": "What others are compared with.",
    "Personalizers": "They wrap a method and give a method: `fedavg|finetune`.",
}
WORLDS = {
    "one_client": "with a single client",
    "one_group": "where all clients are of one planted group",
    "own_groups": "where every client is a planted group of its own",
}


class Example(NamedTuple):
    """How a tiny model is made in a page's program."""

    module: str
    name: str
    call: str


TINY = {
    "": Example("plures.models.linear", "softmax", "softmax((8,), 3)"),
    "parts": Example("plures.models.mlp", "mlp", "mlp((8,), 3, hidden=(4,))"),
    "norm": Example("plures.models.mlp_norm", "mlp_norm", "mlp_norm((8,), 3, hidden=(4,))"),
}


def as_markdown(text: str) -> str:
    """A docstring with its sentences as paragraphs and its formulas as they stand.

    >>> print(as_markdown("A ``w_k`` and p_k.\\n\\n    x  =  a * b"))
    A `w_k` and p\\_k.
    <BLANKLINE>
    ```text
    x  =  a * b
    ```
    """
    parts = list[str]()
    for kind, some in groupby(inspect.cleandoc(text).splitlines(), line_kind):
        if kind == "words":
            parts.append(_sentences(" ".join(some)))
        elif kind == "formula":
            block = textwrap.dedent("\n".join(some)).replace("``", "")
            parts.append(f"```text\n{block}\n```")
    return "\n\n".join(parts).replace("\n```\n\n```text\n", "\n\n")


def _sentences(text: str) -> str:
    """Words in which nothing is taken for markup but code; papers are links."""
    pieces = text.split("``")
    said = [
        f"`{piece}`" if place % 2 else linked(re.sub(r"([\\*_\[\]])", r"\\\1", piece).replace("<", "&lt;"))
        for place, piece in enumerate(pieces)
    ]
    return "".join(said)


def linked(text: str) -> str:
    """A text whose papers lead to their pages.

    >>> linked("arXiv:2012.04221")
    '[arXiv:2012.04221](https://arxiv.org/abs/2012.04221)'
    """
    for pattern, address in PAPERS.items():
        text = re.sub(pattern, rf"[\g<0>]({address}\1)", text)
    return text


def page(card: Card, *, read_on: Sequence[tuple[str, str]] = ()) -> str:
    """The page of an entry; ``read_on`` are (title, link) of pages that speak of it."""
    entry = card.entry
    parts = [
        f"# {entry.title}",
        _sentences((inspect.getdoc(entry.factory) or "").partition("\n")[0]),
        _listed(_facts(card)),
        f"## What it does\n\n{as_markdown(formula_of(entry))}",
        f"## Options\n\n{_options(entry)}",
        f"## Use\n\n{_use(card)}",
        f"## Traffic\n\n{_traffic(card)}",
    ]
    if entry.limits:
        parts.append(f"## Limits\n\n{_limits(card)}")
    if read_on:
        parts.append("## Read on\n\n" + _listed([f"[{title}]({link})" for title, link in read_on]))
    return "\n\n".join(parts) + "\n"


def _facts(card: Card) -> list[str]:
    entry = card.entry
    kind = "personalizer" if card.base else "method"
    around = " (around a base that does)" if card.base else ""
    found = [f"**Name:** `{entry.name}`, a {kind}; listed under [{card.family}](index.md#{_anchor(card.family)})"]
    if entry.paper:
        found.append(f"**Paper:** {linked(entry.paper)}")
    if entry.degree:
        found.append(f"**Degree of collaboration:** `{entry.degree}`; `plures tradeoff` sweeps it")
    found += [f"**Tag** `{tag}`: {TAGS.get(tag, 'see its file')}" for tag in sorted(entry.tags)]
    found.append(f"**Newcomers:** clients never seen in training are served too{around}")
    if card.training.full_cohort:
        found.append("**Cohort:** everyone takes part in every round")
    before = [f"{counted(card.rounds_before, 'round')} before training"] if card.rounds_before else []
    after = ["a closing round"] if card.legs[-1].said == CLOSING else []
    if before or after:
        found.append(f"**Also in `rounds`:** {' and '.join(before + after)}")
    return found


def _options(entry: Entry) -> str:
    more = more_of(entry)
    table = option_table(option_rows(entry))
    return f"{table}\n\n{as_markdown(more)}" if more else table


def option_table(options: Sequence[Option]) -> str:
    """Options with their type, default and sentence."""
    if not options:
        return "It has none."
    rows = [
        f"| `{one.name}` | {one.kind} | {_cell(one.default)} | {_sentences(one.sentence)} |".replace("\\|", "|")
        for one in options
    ]
    return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text if text.startswith("(") else f"`{text}`"


def _use(card: Card) -> str:
    others = [name for name in ("local_only", "fedavg") if name != card.entry.name]
    with_norm = " --model mlp_norm" if "norm" in card.entry.tags else ""
    lines = [f"plures compare {' '.join(f'-m {name}' for name in others)} -m {quote(card.label)}{with_norm}"]
    if card.entry.degree:
        lines.append(f"plures tradeoff -m {quote(card.label)}{with_norm}")
    return "```sh\n" + "\n".join(lines) + f"\n```\n\nFrom Python:\n\n```python\n{program(card)}```"


def program(card: Card) -> str:
    """A program that builds the method for a tiny model."""
    entry, tags = card.entry, card.entry.tags
    model = TINY["norm" if "norm" in tags else "parts" if "parts" in tags else ""]
    imports = {(entry.factory.__module__, entry.factory.__name__), (model.module, model.name)}
    inner = "model"
    if card.base:
        base = METHODS[card.base].factory
        imports.add((base.__module__, base.__name__))
        inner = f"{base.__name__}(model)"
    options = "".join(f", {name}=2" for name in needed(entry))
    lines = [f"from {module} import {name}" for module, name in sorted(imports)]
    return "\n".join(
        [*lines, "", f"model = {model.call}", f"method = {entry.factory.__name__}({inner}{options})", ""]
    )


def _traffic(card: Card) -> str:
    around = f" around `{card.base}`" if card.base else ""
    turns = "" if card.method.traits.exchanges == 1 else " A round has several turns."
    said = f"Per client and turn, in sizes of the model: `{card.model}`{around} on the digits with {card.num_clients} clients.{turns}"
    head = [f"| | {' | '.join(MESSAGES)} |", "|---|" + "---|" * len(MESSAGES)]
    rows = [f"| {leg.said} | {' | '.join(f'{size:.2f}' for size in leg.sizes.values())} |" for leg in card.legs]
    meaning = "; ".join(f"*{name}*: {meaning}" for name, meaning in MESSAGES.items())
    return "\n".join([said, "", *head, *rows, "", f"{meaning[0].upper()}{meaning[1:]}."])


def _limits(card: Card) -> str:
    lines = [_limit(limit, card) for limit in card.entry.limits]
    return f"Settings at which it must equal another. The contract suite checks each of them.\n\n{_listed(lines)}"


def _limit(limit: Limit, card: Card) -> str:
    base = limit.base or card.base
    own = card.entry.name + _given(limit.options)
    other = limit.same_served_as
    link = f"[`{other}{_given(limit.its_options)}`]({other}.md)" if other in METHODS else f"`{other}`"
    where = f", {WORLDS[limit.world]}," if limit.world in WORLDS else ""
    return f"{limit.text}: `{f'{base}|{own}' if base else own}`{where} serves what {link} serves"


def _given(options: Mapping[str, Any]) -> str:
    return ":" + ",".join(f"{name}={value}" for name, value in options.items()) if options else ""


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def contents(cards: Sequence[Card]) -> str:
    """The page that lists all entries by family."""
    parts = [
        "# Methods and personalizers",
        f"{sum(not one.base for one in cards)} methods and {sum(bool(one.base) for one in cards)} personalizers. "
        "A method is a name and its options, `ditto:lam=0.5`; a personalizer follows after a bar, `fedavg|finetune`. "
        "*Traffic* is what a client downloads and uploads in a turn of a round, in sizes of the model; "
        f"where it hangs on the number of clients, these are {cards[0].num_clients}. "
        "[Choosing](../choosing.md) says which to take.",
    ]
    for family, meaning in FAMILIES.items():
        rows = [_row(one) for one in cards if one.family == family]
        if rows:
            head = ["| name | what comes out | degree | traffic | paper |", "|---|---|---|---|---|"]
            parts.append("\n".join([f"## {family}", "", meaning, "", *head, *rows]))
    return "\n\n".join(parts) + "\n"


def _row(card: Card) -> str:
    entry, sizes = card.entry, card.training.sizes
    per_turn = sizes["down"] + sizes["up"] + sizes["answer"]
    degree = f"`{entry.degree}`" if entry.degree else ""
    said = _sentences((inspect.getdoc(entry.factory) or "").partition("\n")[0])
    return f"| [`{entry.name}`]({entry.name}.md) | {said} | {degree} | {per_turn:.2f} | {linked(entry.paper)} |"


def all_pages(cards: Sequence[Card], read_on: Callable[[Entry], Sequence[tuple[str, str]]]) -> dict[str, str]:
    """Every page by the name of its file, ``index.md`` first; ``read_on`` finds pages that speak of an entry."""
    pages = {f"{one.entry.name}.md": page(one, read_on=read_on(one.entry)) for one in cards}
    return {"index.md": contents(cards), **pages}
