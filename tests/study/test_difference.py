"""Two studies side by side."""

import json

import numpy as np
import pytest
from studies import write_study

from plures.errors import Unsupported
from plures.study.difference import differ
from plures.study.disk.results import read_results

BASE = np.linspace(0.3, 0.7, 12)


def study(path, scores, **more):
    return read_results(write_study(path, scores, **more))


def test_a_study_and_itself_do_not_differ(tmp_path):
    saved = study(tmp_path / "a", {"fedavg": BASE})

    found = differ(saved, saved)

    assert found.same
    assert found.settings == ()


def test_methods_are_paired_over_clients_of_both(tmp_path):
    here = study(tmp_path / "a", {"fedavg": BASE + 0.1, "ditto": BASE})
    there = study(tmp_path / "b", {"fedavg": BASE[:8], "ifca": BASE[:8]})

    found = differ(here, there)

    assert found.clients == 8
    assert found.pairs[0].mean == pytest.approx(0.1)
    assert found.means["fedavg"] == pytest.approx((BASE[:8].mean() + 0.105, BASE[:8].mean() + 0.005))
    assert (found.only_here, found.only_there) == (("ditto",), ("ifca",))
    assert found.settings == ()  # methods are told apart, not listed as a setting
    assert not found.same


def test_settings_that_differ_are_told(tmp_path):
    here, there = (write_study(tmp_path / name, {"fedavg": BASE}) for name in "ab")
    settings = json.loads((there / "study.json").read_text())
    (there / "study.json").write_text(json.dumps({**settings, "rounds": 9, "plan": {"lr": 0.5}}))

    found = differ(read_results(here), read_results(there))

    assert set(found.settings) == {("rounds", "6", "9"), ("plan.lr", "-", "0.5")}


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"scores": {"ifca": BASE}}, "no method in common"),
        ({"scores": {"fedavg": BASE}, "metric": "rmse", "higher": False}, "scores by accuracy, the other by rmse"),
        ({"scores": {"fedavg": BASE}, "names": [f"school-{k}" for k in range(12)]}, "no client in common"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, there, said):
    with pytest.raises(Unsupported, match=said):
        differ(study(tmp_path / "a", {"fedavg": BASE}), study(tmp_path / "b", **there))
