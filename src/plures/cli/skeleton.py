"""The skeleton of a new method."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from plures.errors import BadValue

SKELETON = '''"""{title}: say in one line what comes out.

    shared  w    minimizes  sum_k m_k L_k(w)                     (as FedAvg; write your formula here)

Authors: Title, venue year. arXiv number.
"""

from __future__ import annotations

from dataclasses import replace

from plures import tree
from plures.errors import BadValue
from plures.local import near, sgd
from plures.method import Method
from plures.methods.fedavg import fedavg
from plures.registry import Limit, method
from plures.types import Data, Info, Key, Model, Plan, Tree, Weights, untraced


@method(
    title="{title}",
    paper="",
    limits=[Limit("no proximal term: plain FedAvg", {{"lam": 0.0}}, same_served_as="fedavg")],
)
def {name}(model: Model, *, plan: Plan = Plan(), lam: float = 0.1) -> Method:
    """Say in one line which models clients are served.

    Args:
        plan: How clients train locally.
        lam: Strength of the proximal term; 0 is plain FedAvg.
    """
    if untraced(lam) and not lam >= 0:
        raise BadValue("lam", lam, "0 or more")
    base = fedavg(model, plan=plan)

    def train(key: Key, shared: Weights, private: Tree, data: Data) -> tuple[Weights, Tree, Info]:
        own, info = sgd(key, shared, data, plan, near(model, shared, lam))
        return tree.subtract(own, shared), private, info

    return replace(base, train=train)
'''


def default_folder() -> Path:
    """Where a new method goes if nobody says so: among the methods in a checkout of plures, else the current folder."""
    from plures import methods

    own = Path(methods.__path__[0])
    return own if (own.parents[2] / "pyproject.toml").exists() else Path()


def write_skeleton(name: str, folder: Path | None) -> Path:
    """Write the file and return its path; an existing name or file is refused."""
    from plures.registry import METHODS, PERSONALIZERS

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadValue("name", name, "a new name in snake_case, such as my_method")
    if name in METHODS or name in PERSONALIZERS:
        raise BadValue("name", name, "a name that no method or personalizer has yet")
    where = default_folder() if folder is None else folder
    if not where.is_dir():
        raise BadValue("to", str(where), "a folder that exists")
    path = where / f"{name}.py"
    if path.exists():
        raise BadValue("name", name, f"a name whose file is not there yet ({path} is)")
    path.write_text(SKELETON.format(name=name, title=name.replace("_", " ").capitalize()))
    return path
