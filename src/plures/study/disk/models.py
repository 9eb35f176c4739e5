"""Personal models on disk: ``model.safetensors`` and ``model.json``, which load and predict without study or data.

``model.json`` says how the method is built again (its text, the model's text, shapes and facts). The structure of what a
client is served follows from that; numbers and their shapes come from the weights. Nothing is pickled.

Checked when a model is loaded: the format's number, the types in ``model.json``, the hash of the weights, that they have the
names which the method asks for, and, where shapes are not those of the method, that its outputs still are. What is not checked:
whether somebody who may write both files changed both, and whether the numbers are good ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors import SafetensorError
from safetensors.numpy import load, save

from plures import tree
from plures._version import __version__
from plures.builders import build_method
from plures.engine import Run
from plures.engine.phases import least_rounds, spans_of
from plures.engine.state import server_shape
from plures.errors import BadFile, BadValue, UserError
from plures.method import Method
from plures.models.units import in_units
from plures.registry import MODELS, Named
from plures.study.disk.layout import ABOUT, WEIGHTS, read_as, write_bytes
from plures.types import Data, Plan, Rows, Tree

FORMAT = 1
PROBES = 8  # rows on which a model that was written is compared with the one that was trained
KINDS: Mapping[str, Any] = {
    "method": str | None,
    "model": str | None,
    "norm": str,
    "plan": dict,
    "facts": dict,
    "input": dict,
    "label": dict,
    "num_outputs": int,
    "sha256": str,
}
BUILD = (*(name for name in KINDS if name != "sha256"), "unit")


@dataclass(frozen=True)
class StoredModel:
    """One client's model from a folder; ``about`` is what ``model.json`` says."""

    about: Mapping[str, Any]
    weights: Tree
    apply: Callable[[Tree, Array], Array]

    def predict(self, x: Any) -> Array:
        """The model's outputs for some inputs, a row per input."""
        given, shape = jnp.asarray(x), tuple(self.about["input"]["shape"])
        if given.shape[1:] != shape or not given.ndim:
            wanted = ", ".join(["rows", *map(str, shape)])
            raise BadValue("x", f"an array of shape {given.shape}", f"an array of shape ({wanted})")
        return self.apply(self.weights, given)


def save_model(
    run: Run,
    client: int | str,
    folder: str | Path,
    *,
    method: str | None = None,
    model: str | None = None,
    norm: str = "share",
    lineage: Mapping[str, Any] | None = None,
) -> StoredModel:
    """What a client of a finished run predicts with, written to a folder and read back.

    ``method`` and ``model`` are the texts of what was run (``"ditto:lam=0.5"``, ``"mlp:hidden=64"``), ``norm`` the policy
    it was built with; without the texts, ``load_model`` has to be given the method. Texts that make another model are
    refused: some rows are predicted both ways, and every bit must agree.
    """
    served = run.model_for(client)
    content = save({name: np.array(tree.plain(leaf), order="C") for name, leaf in _named(served.weights).items()})
    about = {
        "format": FORMAT,
        **_client(run, client),
        **_recipe(run, method, model, norm),
        "task": run.runner.everyone.task,
        "class_names": list(run.runner.everyone.class_names),
        "round": int(run.state.round),
        "seed": run.runner.settings.seed,
        "data": {"title": run.runner.everyone.title, "fingerprint": run.runner.seen.fingerprint},
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(served.weights)),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "lineage": dict(lineage or {}),
        "versions": {"plures": __version__, "jax": jax.__version__},
    }
    stored = _restored(about, content, None if _has_texts(about) else run.runner.method, Path(folder))
    _check_same(stored, served.predict, run.runner.everyone.x[:PROBES])
    _write(Path(folder), content, about)
    return stored


def load_model(folder: str | Path, *, method: Method | None = None) -> StoredModel:
    """A client's model from a folder: ``load_model(folder).predict(x)``.

    ``method`` is needed only where the folder does not say which it is: for methods made in Python, without a text.
    """
    path = Path(folder)
    about = read_about(path)
    if method is None and not _has_texts(about):
        raise BadFile(
            f"{path} does not say how its method is built; give it: load_model(folder, method=...), with the method "
            "that was run"
        )
    try:
        content = (path / WEIGHTS).read_bytes()
    except OSError as error:
        raise BadFile(f"{path} has no weights: {error}") from error
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise BadFile(f"{path / WEIGHTS} is damaged: its sha256 is not the one in {ABOUT}")
    return _restored(about, content, method, path)


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder's ``model.json`` says, after a check that this release can read it."""
    file = folder / ABOUT
    if not file.exists():
        raise BadFile(
            f"{folder} holds no model (there is no {ABOUT} in it); give a folder that plures export wrote"
        )
    about: Any = read_as(lambda found: found, file)
    version = about.get("format") if isinstance(about, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadFile(f"{file} is damaged: it has no format number")
    if version > FORMAT:
        raise BadFile(f"{file} has format {version}, of a newer release; this one reads up to {FORMAT}")
    missing = [name for name in KINDS if name not in about]
    if missing:
        raise BadFile(f"{file} is damaged: it has no '{missing[0]}'")
    wrong = [name for name, kind in KINDS.items() if not isinstance(about[name], kind)]
    wrong += [name for name in ("input", "label") if name not in wrong and not _is_array(about[name])]
    if wrong:
        raise BadFile(f"{file} is damaged: its '{wrong[0]}' is {about[wrong[0]]!r}")
    return dict(about)


def _is_array(about: Mapping[str, Any]) -> bool:
    """Whether a shape and a type are given."""
    shape = about.get("shape")
    sizes = shape if isinstance(shape, list) else [None]
    return all(isinstance(one, int) and one >= 0 for one in sizes) and isinstance(about.get("dtype"), str)


class Built(NamedTuple):
    """A method, and the structure of what its clients are served."""

    method: Method
    served: Tree


def _client(run: Run, client: int | str) -> dict[str, Any]:
    everyone = run.runner.everyone
    uid = everyone.names.index(client) if isinstance(client, str) else int(client)
    return {"uid": uid, "name": everyone.names[uid], "seen": uid < run.runner.num_seen}


def _recipe(run: Run, method: str | None, model: str | None, norm: str) -> dict[str, Any]:
    """All that ``_built`` needs, as plain values; the optimizer is left out, for nothing is trained with it again."""
    seen, plan, unit = run.runner.seen, run.runner.method.plan, run.runner.method.model.unit
    x, y = seen.example
    return {
        "method": method,
        "model": model,
        "norm": norm,
        "plan": {"epochs": plan.epochs, "steps": plan.steps, "batch": plan.batch, "lr": plan.lr},
        "facts": seen.facts,
        "input": {"shape": list(x.shape), "dtype": str(x.dtype)},
        "label": {"shape": list(y.shape), "dtype": str(y.dtype)},
        "num_outputs": seen.num_outputs,
        "unit": None if unit is None else unit._asdict(),
    }


def _has_texts(about: Mapping[str, Any]) -> bool:
    return about["method"] is not None and about["model"] is not None


def _restored(about: dict[str, Any], content: bytes, method: Method | None, path: Path) -> StoredModel:
    """The model from its parts; the structure comes from the method, the numbers from the file."""
    recipe = json.dumps({name: about.get(name) for name in BUILD})
    try:
        built = _built(recipe) if method is None else Built(method, _served_shape(method, about))
        arrays = load(content)
    except SafetensorError as error:
        raise BadFile(f"{path / WEIGHTS} is damaged: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadFile(f"{path / ABOUT} is damaged, or of another release: {error}") from error
    wanted = _named(built.served)
    other = sorted(set(wanted) ^ set(arrays))
    if other:
        raise BadFile(f"{path} holds the weights of another method or model (they differ in '{other[0]}')")
    found = [tree.from_plain(arrays[name], leaf) for name, leaf in wanted.items()]
    weights = jax.tree.unflatten(jax.tree.structure(built.served), found)
    as_made = all(one.shape == leaf.shape for one, leaf in zip(found, wanted.values(), strict=True))
    if not as_made and not _same_outputs(built, weights, about):
        raise BadFile(f"{path} holds the weights of another method or model (their shapes do not fit)")
    return StoredModel(about, weights, built.method.predict)


def _same_outputs(built: Built, weights: Tree, about: Mapping[str, Any]) -> bool:
    """Whether weights make outputs of the shape that the method makes; shapes may differ with the rows a client has."""
    x, _ = _example(about)
    rows = _shape_of((1, *x.shape), x.dtype)
    try:
        ours, wanted = (jax.eval_shape(built.method.predict, one, rows) for one in (weights, built.served))
    except (TypeError, ValueError):
        return False
    return bool(ours.shape == wanted.shape)


@lru_cache(maxsize=16)  # many clients have one method: it is built once, and what it compiles is shared
def _built(recipe: str) -> Built:
    """The method that a recipe describes, by its texts."""
    about = json.loads(recipe)
    shape = tuple(about["input"]["shape"])
    try:
        named = Named.parse(about["model"], MODELS)
        model = named.entry.factory(shape, about["num_outputs"], **named.options)
        if about["unit"] is not None:  # models of earlier releases and of other tasks have none
            model = in_units(model, **about["unit"])
        facts = {**about["facts"], "example": _example(about)}
        method = build_method(about["method"], model, plan=Plan(**about["plan"]), facts=facts, norm=about["norm"])
    except UserError as error:
        raise BadFile(
            f"'{about['method']}' with '{about['model']}' cannot be built again: {error} "
            "(import what registers it, or give method=...)"
        ) from error
    return Built(method, _served_shape(method, about))


def _example(about: Mapping[str, Any]) -> tuple[Any, Any]:
    """The shape and type of one row's input and label."""
    x, y = (_shape_of(tuple(about[part]["shape"]), about[part]["dtype"]) for part in ("input", "label"))
    return x, y


def _shape_of(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.eval_shape(lambda: jnp.zeros(shape, dtype))


def _served_shape(method: Method, about: Mapping[str, Any]) -> Tree:
    """The structure of what a client is served, from shapes alone; how many rows it has makes no difference."""
    rows = 4
    x, y = (_shape_of((rows, *one.shape), one.dtype) for one in _example(about))
    server = server_shape(spans_of(method, least_rounds(method)), about["facts"]["num_clients"])

    def served(server: Tree, x: Array, y: Array) -> Tree:
        key, nobody = jax.random.key(0), jnp.zeros((), jnp.int32)
        own = Rows(x, y, nobody, jnp.full((), rows, jnp.int32), rows)
        offer = method.offered(server, nobody)
        return method.serve(key, offer, method.join(key, offer), Data(own, own, nobody, nobody))

    return jax.eval_shape(served, server, x, y)


def _named(served: Tree) -> dict[str, Any]:
    """Leaves by their paths, which a file does not take if they are empty."""
    return {path or ".": leaf for path, leaf in tree.named(served).items()}


def _check_same(stored: StoredModel, predict: Callable[[Any], Array], x: np.ndarray) -> None:
    """Refuse texts of another method or model than the one that was run."""
    ours, theirs = (np.asarray(one(x)) for one in (stored.predict, predict))
    if not np.array_equal(ours, theirs, equal_nan=True):
        given = (stored.about["method"], stored.about["model"])
        raise BadValue("method and model", given, "the texts of what was run: these predict otherwise")


def _write(folder: Path, content: bytes, about: Mapping[str, Any]) -> None:
    """Weights first: a folder with ``model.json`` is whole. Another model that lies there is not written over."""
    if (folder / ABOUT).exists():
        before = read_about(folder)
        if before["sha256"] != about["sha256"]:
            raise BadFile(
                f"{folder} holds another model ({before['method']}, seed {before.get('seed')}, client "
                f"'{before.get('name')}'); use another folder"
            )
    write_bytes(folder / WEIGHTS, content)
    write_bytes(folder / ABOUT, json.dumps(about, indent=2).encode())
