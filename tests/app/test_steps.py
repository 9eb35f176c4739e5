"""A study that leaves its step sizes to the data finds them once, and its folder keeps what every method took."""

import json

import pytest

from plures.app import Listener, running
from plures.app.study import Study

STUDY = Study(
    data={"name": "linear_clusters", "options": {"num_clients": 4, "rows": 20}, "hold_out": 0},
    methods=["local_only", "fedavg"],
    rounds=1,
    seeds=[0],
    plan={"batch": 0},
    executor="vectorized",
)


@pytest.mark.usefixtures("found_steps")
def test_step_sizes_are_found_once_said_and_kept(tmp_path):
    runs = []
    for _ in range(2):
        said = []
        running.run_study(STUDY, tmp_path, Listener(say=lambda text, style, said=said: said.append(text)))
        found, chosen = (
            json.loads((tmp_path / "tuning" / f"{name}.json").read_text()) for name in ("steps", "chosen")
        )
        runs.append((found, chosen, [line for line in said if line.startswith("step size ")]))

    assert runs[0] == runs[1]
    found, chosen, said = runs[0]
    quartered = chosen["quartered"]
    assert {name: one["lr"] * 4 ** quartered.get(name, 0) for name, one in chosen["chosen"].items()} == {
        "local_only": found["alone"],
        "fedavg": found["common"],
    }
    assert said == found["said"]
    assert [line.partition("race of ")[2].split()[0] for line in said] == ["fedavg", "local_only"]
