"""``plures export``: personal models out of a study's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plures.cli.terminal import console, say
from plures.errors import BadFile, BadValue
from plures.report.terminal import plain_table

if TYPE_CHECKING:
    from plures.study.disk.models import StoredModel

RIGHT = {"justify": "right"}


def export_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a study (plures compare, plures run).")],
    client: Annotated[
        list[str] | None, typer.Option("--client", help="A client's name or uid; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every client.")] = False,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Default: the recommended one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the study's first.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Default: DIR/models/METHOD/seed-N.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List what can be exported, and what was.")] = False,
) -> None:
    """Write a client's model to OUT/CLIENT, where plures.load_model reads it, or list models."""
    from plures.app.folder import export_models, exportable
    from plures.study.disk import layout

    exportable(folder)
    if listing:
        list_models(folder)
        return
    if bool(client) == every:
        raise BadValue("client", client, "a client's name or uid, several of them, or --all instead")
    found = export_models(folder, client or (), method=method, seed=seed, out=out)
    if every:
        place, one = next(iter(found.items()))
        name = layout.label_of(Path(one.about["lineage"]["run"]).parent)
        say(f"{len(found)} models of {name}, seed {one.about['seed']}: {place.parent}")
        return
    for place, one in found.items():
        say(_said(one, place))


def list_models(folder: Path) -> None:
    """Print which runs kept their models, and which models were exported."""
    from plures.study.disk import layout
    from plures.study.disk.models import read_about
    from plures.study.disk.states import has_models, states_bytes

    kept = plain_table("Runs", {"method": {}, "seed": RIGHT, "models": {}})
    for place in sorted(folder.glob(f"{layout.RUNS}/*/seed-*")):
        state = "kept" if has_models(place) else "not kept" if (place / layout.DONE).exists() else "not finished"
        kept.add_row(layout.label_of(place.parent), place.name.removeprefix("seed-"), state)
    console.print(kept)
    say(f"kept states: {states_bytes(folder) / 1e6:.2f} MB")
    found = sorted((folder / layout.MODELS).glob(f"*/*/*/{layout.ABOUT}"))
    if not found:
        say(f"exported: none yet; plures export {folder} --client NAME")
        return
    numbers = dict.fromkeys(("seed", "parameters", "KB"), RIGHT)
    table = plain_table("Exported", {"client": {}, "method": {}, **numbers})
    damaged = []
    for file in found:
        try:
            table.add_row(*_listed(read_about(file.parent)))
        except BadFile as error:
            damaged.append(str(error))
    console.print(table)
    for line in damaged:
        say(line)


def _listed(about: Mapping[str, Any]) -> list[str]:
    """A model as a row of the list; what its file does not say is left empty."""
    numbers = (about.get("parameters"), about.get("bytes"))
    parameters, size = (one if isinstance(one, int) else None for one in numbers)
    said = [str(about.get(name) or "") for name in ("name", "method")]
    counts = ["" if parameters is None else f"{parameters:,}", "" if size is None else f"{size / 1e3:.1f}"]
    return [*said, str(about.get("seed", "")), *counts]


def tell_states(folder: Path) -> None:
    """Say what kept models take on the disk, and how to get at them."""
    from plures.study.disk.states import states_bytes

    size = states_bytes(folder)
    if size:
        say(f"models: {size / 1e6:.1f} MB of kept states; plures export {folder} --client NAME")


def _said(stored: StoredModel, folder: Path) -> str:
    about = stored.about
    size = f"{about['parameters']:,} parameters, {about['bytes'] / 1e3:.1f} KB"
    return f"{about['name']}: {about['method']}, seed {about['seed']}, {size}: {folder}"
