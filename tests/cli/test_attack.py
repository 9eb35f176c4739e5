"""``--attack`` as a user types it: who attacks stands in the report, and honest clients are scored alone."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from typed import complaint, plures

from plures import cli
from plures.method import Forecast, Report, Views
from plures.registry import METHODS, Entry

DATA = ["--data", "logistic_clusters:num_clients=8,num_groups=2,rows=40", "--hold-out", "2", "--model", "logistic"]
FAST = ["--rounds", "2", "--batch", "0", "--lr", "0.5", "--executor", "vectorized", "--seeds", "1"]
QUICK = [*DATA, *FAST]
SAID = "attack: sign_flip by 2 of 6 clients (33 %); scores are of the 4 honest clients"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """The folder of a study under attack."""
    out = tmp_path_factory.mktemp("attack") / "out"
    methods = ["-m", "local_only", "-m", "fedavg", "-m", "ditto:lam=0.5"]
    assert cli.run(["compare", *methods, *QUICK, "--attack", "sign-flip:0.34", "--out", str(out)]) == 0
    return out


def test_tables_keep_the_liars_and_scores_leave_them_out(attacked):
    clients, board = pl.read_csv(attacked / "clients.csv"), pl.read_csv(attacked / "leaderboard.csv")

    assert clients.filter("attacker").height == 3 * 2
    honest = clients.filter(~pl.col("attacker") & pl.col("seen"))
    assert honest.height == 3 * 4
    for method, mean in honest.group_by("method").agg(pl.col("personal_test_accuracy").mean()).iter_rows():
        assert board.filter(pl.col("method") == method)["mean"].item() == pytest.approx(mean, abs=1e-6)


def test_the_summary_and_the_settings_name_the_attack(attacked):
    summary, study = (json.loads((attacked / name).read_text()) for name in ("summary.json", "study.json"))

    assert summary["attack"] == {"attacks": ["sign_flip"], "num_attackers": 2, "num_clients": 6, "said": SAID}
    assert study["attack"] == ["sign-flip:0.34"]


def test_a_study_in_a_file_is_attacked_and_says_so_under_the_leaderboard(tmp_path, capsys):
    (tmp_path / "study.toml").write_text(
        """
        methods = ["fedavg"]
        attack = "label_flip:share=0.34"
        seeds = [0]
        rounds = 1
        [data]
        name = "logistic_clusters"
        hold_out = 0
        options = { num_clients = 6, num_groups = 2, rows = 20 }
        """
    )

    assert plures("run", "study.toml", "--out", "out") == 0
    assert SAID.replace("sign", "label") in capsys.readouterr().out
    assert pl.read_csv(tmp_path / "out" / "clients.csv")["attacker"].sum() == 2


def test_a_study_from_before_there_were_attacks_is_gone_on_with(attacked, tmp_path):
    study = json.loads((attacked / "study.json").read_text())
    (tmp_path / "old").mkdir()
    old = {name: value for name, value in study.items() if name != "attack"} | {"methods": ["fedavg"]}
    (tmp_path / "old" / "study.json").write_text(json.dumps(old))

    assert plures("resume", str(tmp_path / "old")) == 0


def test_decisions_are_those_of_honest_clients(tmp_path, capsys):
    assert plures("decide", "-m", "fedavg", "-m", "local_only", *QUICK, "--attack", "ipm:0.34", "--out", "out") == 0

    said = capsys.readouterr().out
    assert "Decisions of 4 honest clients in training and 2 unseen ones" in said
    assert SAID.replace("sign_flip", "ipm") in said
    assert pl.read_csv(tmp_path / "out" / "decisions.csv")["attacker"].sum() == 2
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["attack"]["num_attackers"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sing-flip:0.2"], "no attack is called 'sing-flip'; did you mean 'sign_flip'? Known: alie, edge, ipm"),
        (["clip:0.2"], "no attack is called 'clip'. Known: alie"),
        (["sign-flip:0"], "share must be a number above 0 and below 1, got 0.0"),
        (["sign-flip:-0.1"], "share must be a number above 0 and below 1, got -0.1"),
        (["sign-flip:1"], "share must be a number above 0 and below 1, got 1.0"),
        (["sign-flip:some"], "share must be of type float, got 'some'"),
        (["sign-flip:factr=2"], "no option of sign_flip is called 'factr'; did you mean 'factor'?"),
        (
            ["sign-flip:0.01"],
            "share of sign_flip must be at least 0.083, for one of 6 clients to attack, got 0.01",
        ),
        (["sign-flip:0.99"], "share must be so small that one of 6 clients stays honest, got 0.99"),
        (["sign-flip:0.2,num_clients=9"], "num_clients must be 6, the number of training clients, got 9"),
        (
            ["sign-flip:0.5", "-m", "fedavg:aggregate=median"],
            "fedavg:aggregate=median: the number of attackers must be at most 2 of 6 (33 %), got 3",
        ),
    ],
)
def test_a_mistake_is_one_clear_line_before_anything_is_written(arguments, said, tmp_path, capsys):
    attack, *others = arguments

    assert plures("compare", "-m", "fedavg", *others, *QUICK, "--attack", attack, "--out", "out") == 1
    assert said in complaint(capsys)
    assert not (tmp_path / "out").exists()


def test_labels_cannot_be_flipped_where_there_are_none(capsys):
    assert plures("compare", "--data", "linear_clusters", "--attack", "label-flip:0.2") == 1
    assert "label_flip is for classification, but these data are for regression" in complaint(capsys)


def test_attacks_are_listed_among_channels(capsys):
    assert plures("channels") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("label_flip", "sign_flip", "alie"))


def test_a_forecast_is_told_before_the_study_and_its_warnings_once(monkeypatch, capsys):
    base = METHODS["fedavg"].factory

    def costly(model, *, plan):
        """FedAvg with foresight."""
        told = Forecast("two messages a round", ("groups are small",))
        return replace(base(model, plan=plan), views=Views(forecast=lambda number, sizes: told))

    monkeypatch.setitem(METHODS._entries, "costly", Entry("costly", costly, "Costly"))

    assert plures("compare", "-m", "costly", *QUICK, "--out", "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "costly: two messages a round" in lines
    assert [line for line in lines if "groups are small" in line] == ["warning: costly: groups are small"]
    assert lines.index("costly: two messages a round") < np.flatnonzero(["mean" in line for line in lines])[0]


def test_what_a_method_tells_of_its_result_stands_under_the_leaderboard(monkeypatch, capsys):
    base = METHODS["fedavg"].factory

    def talkative(model, *, plan):
        """FedAvg with a word at the end."""
        return replace(base(model, plan=plan), views=Views(report=lambda server: Report(findings=["it went well"])))

    monkeypatch.setitem(METHODS._entries, "talkative", Entry("talkative", talkative, "Talkative"))

    assert plures("compare", "-m", "talkative", *QUICK, "--out", "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("talkative:")] == ["talkative: it went well"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_runs_under_attack(name, tmp_path):
    """On digits, with domains for methods that read them; the honest clients' scores are numbers."""
    data = ["--data", "digits|feature_shift" if "num_domains" in METHODS[name].options else "digits"]
    long = {"hypcluster", "hypcluster_auto", "convex_clustering", "pdmm", "squared_penalty"}
    tags = METHODS[name].tags
    model = "mlp_norm" if "norm" in tags else "mlp" if "parts" in tags else "softmax"
    rounds = ["--rounds", "25" if name in long else "6", "--seeds", "1", "--model", model]

    assert plures("compare", "-m", name, *data, *rounds, "--attack", "sign-flip:0.2", "--out", "out") == 0
    clients = pl.read_csv(tmp_path / "out" / "clients.csv")
    honest = clients.filter(~pl.col("attacker"))
    assert 0.15 < clients.filter("seen")["attacker"].mean() < 0.25
    assert honest["personal_test_accuracy"].is_not_null().all()
