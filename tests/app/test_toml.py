"""Lines of TOML: every key and entry of any file is found where it stands; settings are written as TOML."""

import json
import string
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plures.app.toml import as_toml, line_of, lines_of

FILE = """\
# a study
rounds = 3      # not "seeds"

methods = [     # one a line
  "fedavg",
  'ditto:lam=0.5|guard', "a # b",

  \"\"\"
  long
  \"\"\",
  "last",
]
plan.lr = 0.1
"plan"."batch" = 0
[data] # = x
name = 'a [b]'
options = { rows = 4, "num clients" = [1,
  2], 'deep' = { x = "}" } }
[tune.search]
"ditto.lam" = [0.1, 1]
[[more]]
when = 1979-05-27 07:32:00
[[more]]
[more.inner]
at = true
said = \"\"\"a # "b"\"\"\"
literal = ''''c'''''
after = 1
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("rounds",), 2),
        (("methods",), 4),
        (("methods", 0), 5),
        (("methods", 2), 6),
        (("methods", 3), 8),
        (("methods", 4), 11),
        (("plan",), 13),
        (("plan", "lr"), 13),
        (("plan", "batch"), 14),
        (("data",), 15),
        (("data", "options", "num clients", 0), 17),
        (("data", "options", "num clients", 1), 18),
        (("data", "options", "deep", "x"), 18),
        (("tune",), 19),
        (("tune", "search", "ditto.lam", 1), 20),
        (("more", 0, "when"), 22),
        (("more", 1), 23),
        (("more", 1, "inner", "at"), 25),
        (("more", 1, "inner", "literal"), 27),
        (("more", 1, "inner", "after"), 28),
    ],
)
def test_a_key_is_found_on_its_line(place, line):
    assert lines_of(FILE)[place] == line


def test_what_is_not_there_has_the_line_of_what_is_around_it():
    lines = {("plan",): 3, ("plan", "lr"): 4}

    assert [line_of(place, lines) for place in (("plan", "lr", 0), ("plan", "steps"), ("rounds",))] == [4, 3, None]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_do_not_depend_on_how_they_end(ending):
    assert lines_of(FILE.replace("\n", ending)) == lines_of(FILE)


class Pen:
    """Writes values as TOML in a style that dice decide, and notes the line of everything on the way."""

    def __init__(self, dice):
        self.dice, self.text, self.places = dice, "", {}

    def note(self, place):
        self.places.setdefault(place, self.text.count("\n") + 1)

    def maybe(self):
        return self.dice.random() < 0.5

    def gap(self):
        self.text += self.dice.choice(["", "", "\n", "# = [ { \" '\n", "  \n\n"])

    def key(self, name):
        if name and set(name) <= set(string.ascii_letters + string.digits + "_-") and self.maybe():
            return name
        if not set(name) & set("'\n\t") and self.maybe():
            return f"'{name}'"
        return json.dumps(name, ensure_ascii=False)

    def string(self, value):
        if not set(value) & set("'\n\t") and self.maybe():
            return f"'{value}'"
        if "'''" not in value and not value.endswith("'") and self.maybe():
            return f"'''\n{value}'''"
        if self.maybe():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"""\n{escaped}"""'
        return json.dumps(value, ensure_ascii=False)

    def value(self, place, value):
        if isinstance(value, dict):
            self.inline(place, value)
        elif isinstance(value, list):
            self.array(place, value)
        elif isinstance(value, str):
            self.text += self.string(value)
        else:
            self.text += str(value).lower() if isinstance(value, bool) else repr(value)

    def inline(self, place, values):
        self.text += "{"
        for number, (name, value) in enumerate(values.items()):
            self.text += ", " if number else " "
            self.pair(place, name, value)
        self.text += " }"

    def array(self, place, values):
        self.text += "["
        for number, value in enumerate(values):
            if self.maybe():
                self.text += "\n"
                self.gap()
            self.note((*place, number))
            self.value((*place, number), value)
            last = number == len(values) - 1
            self.text += "" if last and self.maybe() else ","
        self.text += "\n]" if self.maybe() else "]"

    def pair(self, place, name, value, prefix=""):
        self.note((*place, name))
        if isinstance(value, dict) and value and self.maybe():  # with dots
            start = f"{prefix}{self.key(name)}."
            first, *others = value.items()
            self.pair((*place, name), *first, prefix=start)
            for one in others:
                self.text += "\n" if not self.in_braces else ", "
                self.pair((*place, name), *one, prefix=start)
            return
        self.text += f"{prefix}{self.key(name)} = "
        before, self.in_braces = self.in_braces, isinstance(value, dict | list) or self.in_braces
        self.value((*place, name), value)
        self.in_braces = before

    in_braces = False

    def table(self, place, header, values):
        sections = {
            name: value
            for name, value in values.items()
            if self.maybe() and (isinstance(value, dict) or (self.listed(value) and value))
        }
        for name, value in values.items():
            if name not in sections:
                self.gap()
                self.pair(place, name, value)
                self.text += self.dice.choice(["\n", " # x = 1\n"])
        for name, value in sections.items():
            inner = [*header, self.key(name)]
            for number, one in enumerate(value if isinstance(value, list) else [value]):
                self.gap()
                here = (*place, name, number) if isinstance(value, list) else (*place, name)
                self.note((*place, name))
                self.note(here)
                title = ".".join(inner)
                self.text += f"[[{title}]]\n" if isinstance(value, list) else f"[{title}]\n"
                self.table(here, inner, one)

    @staticmethod
    def listed(value):
        return isinstance(value, list) and all(isinstance(one, dict) for one in value)


WORDS = st.text(st.sampled_from(string.ascii_letters + string.digits + "_-.é \n\t\"'\\#[]{}=,"), max_size=6)
LEAVES = st.one_of(st.integers(-99, 99), st.booleans(), st.floats(allow_nan=False), WORDS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=4), st.randoms(use_true_random=False))
def test_every_key_of_any_file_is_found_on_its_line(values, dice):
    pen = Pen(dice)
    pen.table((), [], values)

    assert tomllib.loads(pen.text) == values  # the pen writes what it should
    assert lines_of(pen.text) == pen.places


PLAIN = st.recursive(
    st.one_of(LEAVES, st.lists(LEAVES, max_size=4)),
    lambda inner: st.dictionaries(WORDS, inner, min_size=1, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(WORDS, PLAIN, max_size=4))
def test_written_settings_are_read_back_as_they_were(values):
    assert tomllib.loads(as_toml(values)) == values


def test_a_long_list_is_written_over_several_lines():
    names = [f"method-{number:02}" for number in range(20)]

    text = as_toml({"methods": names})

    assert tomllib.loads(text) == {"methods": names}
    assert max(map(len, text.splitlines())) < 100


def test_what_is_none_or_empty_is_not_written():
    assert as_toml({"model": None, "tune": {"search": {}}, "rounds": 1}) == "rounds = 1\n"


def test_the_own_header_of_a_table_wins_over_one_that_only_implies_it():
    lines = lines_of("[tune.search]\nlr = [1, 2]\n[tune]\ntrials = 3\n[tune.more]\nx = 1\n")

    assert (lines["tune",], lines["tune", "search"], lines["tune", "more"]) == (3, 1, 5)
