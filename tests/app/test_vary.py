"""One file for several studies: which they are, and every mistake in them at once, with its line."""

import pytest

from plures.app import make_variants, read_source
from plures.errors import BadFile

HEAD = """
methods = ["local_only", "fedavg"]
model = "softmax"
seeds = [0]
rounds = 2
[plan]
epochs = 1
[data]
name = "logistic_clusters"
hold_out = 0
options = { num_clients = 4, rows = 12 }
"""


def variants_of(tmp_path, text):
    path = tmp_path / "several.toml"
    path.write_text(text.lstrip())
    return make_variants(read_source(path))


def refusal_of(tmp_path, text):
    with pytest.raises(BadFile) as refusal:
        variants_of(tmp_path, text)
    return str(refusal.value).replace(str(tmp_path), "")


def test_every_combination_is_a_study(tmp_path):
    found = variants_of(tmp_path, HEAD + '[vary]\n"plan.lr" = [0.1, 0.2]\nrounds = [3, 4]\n')

    assert [(one.study.plan.lr, one.study.rounds) for one in found] == [(0.1, 3), (0.1, 4), (0.2, 3), (0.2, 4)]
    assert [one.label for one in found][:2] == ["plan.lr=0.1, rounds=3", "plan.lr=0.1, rounds=4"]
    assert {one.study.plan.epochs for one in found} == {1}


def test_a_name_with_dots_needs_no_quotes(tmp_path):
    quoted = variants_of(tmp_path, HEAD + '[vary]\n"data.options.rows" = [12, 16]\n')
    bare = variants_of(tmp_path, HEAD + "[vary]\ndata.options.rows = [12, 16]\n")

    assert [one.study for one in quoted] == [one.study for one in bare]
    assert [one.study.data.options["rows"] for one in bare] == [12, 16]


def test_data_may_be_varied_as_a_whole_and_are_named_by_what_differs(tmp_path):
    head = HEAD.partition("[data]")[0]
    sets = [
        f'{{ name = "logistic_clusters", options = {{ num_clients = 4, rows = {rows} }} }}' for rows in (12, 16)
    ]
    found = variants_of(tmp_path, head + f"[vary]\ndata = [{', '.join(sets)}]\n")

    assert [one.label for one in found] == ["logistic_clusters:rows=12", "logistic_clusters:rows=16"]
    assert [one.study.data.options for one in found] == [{"num_clients": 4, "rows": rows} for rows in (12, 16)]


def test_a_whole_set_takes_nothing_from_the_section_it_stands_for(tmp_path):
    text = (
        HEAD
        + '[vary]\ndata = [{ name = "mean_estimation", options = { num_clients = 4, rows = 12 } }]\nmodel = ["mean"]\n'
    )
    text = text.replace('["local_only", "fedavg"]', '["local_only"]')

    (found,) = variants_of(tmp_path, text)

    assert found.study.data.hold_out is None


def test_folders_are_short_plain_and_in_the_order_of_the_file(tmp_path):
    methods = ", ".join(f'["local_only", "ditto:lam={lam}|finetune"]' for lam in (0.1, 0.2))
    found = variants_of(tmp_path, HEAD + f"[vary]\nmethods = [{methods}]\n")

    assert [one.folder for one in found] == [
        "1-methods=local_only+ditto-lam=0.1-finetune",
        "2-methods=local_only+ditto-lam=0.2-finetune",
    ]


def test_mistakes_of_all_variants_come_at_once_with_their_lines(tmp_path):
    text = HEAD.replace('"fedavg"', '"fedavgg"') + '[vary]\n"plan.lr" = [\n  0.1,\n  -1.0,\n]\n"plan.epoch" = [1]\n'

    said = refusal_of(tmp_path, text)

    assert said.splitlines()[0] == "/several.toml has 3 mistakes:"
    assert "  line 1: no method is called 'fedavgg'; did you mean 'fedavg'?" in said
    assert "  line 14: plan.lr must be greater than 0, got -1.0" in said
    assert "  line 16: no setting is called 'epoch'; did you mean 'epochs'?" in said


def test_a_mistake_that_only_some_variants_have_says_with_which(tmp_path):
    said = refusal_of(tmp_path, HEAD + '[vary]\ndata.name = ["logistic_clusters", "linear_clusters"]\n')

    assert said.startswith("/several.toml, line 2: ")
    assert said.endswith("(with linear_clusters)")


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("vary = 3", "line 1: vary must be a section with lists of values"),
        ("[vary]", "line 1: vary must be a section with lists of values"),
        ("[vary]\nrounds = 3", "line 2: vary.rounds must be a list with at least one value, got 3"),
        ("[vary]\nrounds = []", "line 2: vary.rounds must be a list with at least one value, got []"),
        ("[vary]\nrounds = [2, 3, 2]", "line 2: vary.rounds must be a list without repeats, got [2, 3, 2]"),
        ("[vary]\nvary.rounds = [2]", "line 2: vary cannot be varied itself"),
        (
            '[vary]\ndata = [{ name = "digits" }]\n"data.hold_out" = [0, 1]',
            "line 3: vary has data and data.hold_out, which is a part of it; give the values of data.hold_out in those of data",
        ),
        (
            "rounds = 3\n[vary]\nrounds.more = [2]",
            "line 3: vary.rounds.more must be left out: rounds is not a section, got 2",
        ),
        ("[vary.plan]", "line 1: vary must be a section with lists of values"),
        ('[vary]\n"plan.lr" = [0.1]\nplan.lr = [0.2]', "line 3: vary has plan.lr twice, with and without quotes"),
    ],
)
def test_what_is_no_list_of_values_is_refused(tmp_path, vary, said):
    assert refusal_of(tmp_path, vary) == f"/several.toml, {said}"


def test_values_that_are_said_alike_are_told_apart(tmp_path):
    found = variants_of(tmp_path, HEAD + '[vary]\ncohort = [2, "2"]\n')

    assert [one.label for one in found] == ["cohort=2", "cohort=2 (2)"]


def test_a_mistake_in_a_name_that_is_partly_in_quotes_has_its_own_line(tmp_path):
    said = refusal_of(tmp_path, HEAD + '[vary.data]\n"options.rows" = [\n  12,\n  -1,\n]\n')

    assert said.startswith("/several.toml, line 14: ")


def test_what_is_no_section_does_not_hide_other_mistakes(tmp_path):
    said = refusal_of(tmp_path, HEAD + '[vary]\n"rounds.more" = [1]\nmethods = [["fedavgg"]]\n')

    assert "line 12: vary.rounds.more must be left out: rounds is not a section" in said


def test_a_name_in_quotes_is_replaced_where_it_stands(tmp_path):
    text = (
        HEAD + '[tune.search]\n"ditto.lam" = [0.1, 1.0]\n[vary]\ntune.search.ditto.lam = [[0.2, 2.0], [0.5, 5.0]]\n'
    )
    found = variants_of(tmp_path, text.replace('"fedavg"', '"ditto"'))

    assert [one.study.tune.search for one in found] == [{"ditto.lam": (0.2, 2.0)}, {"ditto.lam": (0.5, 5.0)}]


def test_a_faulty_list_does_not_hide_what_else_is_wrong(tmp_path):
    text = HEAD.replace('"fedavg"', '"fedavgg"') + '[vary]\nseeds = 3\n"plan.lr" = [0.1, -1.0]\n'

    said = refusal_of(tmp_path, text)

    assert [line.split(":")[0].strip() for line in said.splitlines()[1:]] == ["line 1", "line 12", "line 13"]
