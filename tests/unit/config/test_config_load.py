"""Loading specdeploy.yaml: strictness, precedence, provenance, and every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.config.load import load_config, resolved_rows
from specdeploy.errors import ConfigError

MINIMAL = "name: demo\ntarget: {checkpoint: big}\ndraft: {checkpoint: small, precision: int8}\n"


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a text, with overrides and environment."""

    def load_text(text: str = MINIMAL, overrides=None, env=None):
        path = tmp_path / "specdeploy.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides or {}, env or {})

    return load_text


def _problems(load, *args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    return caught.value.findings


def _only(load, *args, **kwargs):
    problems = _problems(load, *args, **kwargs)
    assert len(problems) == 1, problems
    return problems[0]


def test_what_is_not_given_has_the_default_of_the_schema(load):
    """A file with the required keys alone is a whole configuration."""
    loaded = load()

    assert loaded.config.draft.precision == "int8"
    assert loaded.config.target.precision == "auto"
    assert loaded.config.build.max_seq_len == 1024
    assert loaded.origin["draft.precision"] == "specdeploy.yaml:3"
    assert loaded.origin["build.max_seq_len"] == "default"


def test_paths_are_relative_to_the_file(load, tmp_path):
    """Wherever the command is run."""
    loaded = load()

    assert loaded.base_dir == tmp_path
    assert loaded.resolve("a/b") == tmp_path / "a" / "b"
    assert loaded.resolve("/a") == Path("/a")
    assert loaded.resolve("~/a") == Path.home() / "a"


def test_sources_are_laid_over_each_other(load):
    """Default, file, environment, --set; each value says which one it is from."""
    text = MINIMAL + "load:\n  seed: 1\n  pairs: 1\n  requests: 1\n"
    env = {"SPECDEPLOY__LOAD__PAIRS": "2", "SPECDEPLOY__LOAD__REQUESTS": "2", "OTHER": "x"}

    loaded = load(text, {"load.requests": "3"}, env)

    assert (loaded.config.load.seed, loaded.config.load.pairs, loaded.config.load.requests) == (1, 2, 3)
    assert loaded.origin["load.seed"] == "specdeploy.yaml:5"
    assert loaded.origin["load.pairs"] == "env SPECDEPLOY__LOAD__PAIRS"
    assert loaded.origin["load.requests"] == "--set"


def test_a_section_whose_keys_are_all_commented_out_is_empty(load):
    """That is how the template is written."""
    assert load(MINIMAL + "load:\n  # seed: 3\n").config.load.seed == 0


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("load: {temperature: 1}", "temperature", 1.0),
        ("load: {temperature: 1e-3}", "temperature", 0.001),
        ("load: {temperature: .5}", "temperature", 0.5),
        ("load: {max_tokens: 1_000}", "max_tokens", 1000),
        ("load: {concurrency: [1, 4]}", "concurrency", (1, 4)),
        ("load:\n  concurrency:\n  - 2", "concurrency", (2,)),
        ('load: {prompts: "1.0"}', "prompts", "1.0"),
    ],
)
def test_values_are_read_by_the_type_of_their_key(load, text, key, value):
    """An integer is a number, 1e-3 is one too, and quoted digits are text."""
    found = getattr(load(MINIMAL + text).config.load, key)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("build: {max_seq_len: '512'}", "expected an integer, got text ('512')", "Remove the quotes."),
        ("build: {max_seq_len: 512.0}", "expected an integer, got '512.0'", "Write 512."),
        ("build: {max_seq_len: true}", "expected an integer, got 'true'", ""),
        ("build: {max_seq_len: 010}", "expected an integer, got '010'", "Write 10."),
        ("build: {max_seq_len: 0x40}", "expected an integer, got '0x40'", ""),
        ("build: {max_seq_len: 1:30}", "expected an integer, got '1:30'", ""),
        ("build: {max_seq_len: }", "expected an integer, got nothing", ""),
        ("build: {max_seq_len: [1]}", "expected an integer, got a list", ""),
        ("build: {max_seq_len: 8}", "8 is below the least accepted value, 16", ""),
        ("build: {max_seq_len: 99999999999999999999}", "the integer has 20 digits", ""),
        ("serve: {http_port: 70000}", "70000 is above the greatest accepted value, 65535", ""),
        ("load: {top_p: 1.5}", "1.5 is above the greatest accepted value, 1", ""),
        ("load: {temperature: .nan}", "expected a finite number, got '.nan'", ""),
        ("load: {temperature: .inf}", "expected a finite number", ""),
        ("load: {temperature: 1e999}", "expected a finite number", ""),
        ("load: {concurrency: 4}", "expected a list, got an integer ('4')", "Write it as [a, b]"),
        ("load: {concurrency: [1, 0]}", "`load.concurrency[1]`: 0 is below the least accepted value, 1", ""),
        ("load: {rates: [1e300]}", "`load.rates[0]`: 1e+300 is above the greatest accepted value, 1e+06", ""),
        ("load: {request_timeout_s: 1e300}", "1e+300 is above the greatest accepted value, 604800", ""),
        ("smoke: {request_timeout_s: 1e300}", "1e+300 is above the greatest accepted value, 604800", ""),
        ("serve: {startup_timeout_s: 1e300}", "1e+300 is above the greatest accepted value, 604800", ""),
        ("build: {timeout_s: 1e300}", "1e+300 is above the greatest accepted value, 604800", ""),
        ("load: {concurrency: [one]}", "`load.concurrency[0]`: expected an integer, got 'one'", ""),
        ("speculation: {use_draft_logits: yes}", "expected true or false, got 'yes'", ""),
        ("speculation: {use_draft_logits: 1}", "expected true or false, got '1'", ""),
        ("profile: gpu", "'gpu' is not one of cpu", ""),
        ("profile: cpuu", "'cpuu' is not one of cpu", "did you mean cpu?"),
        ("profile: 3", "expected one of cpu, tensorrt_llm, llmapi, got an integer ('3')", ""),
        ("release: 1.2", "expected text, got a number ('1.2')", 'Put it in quotes: "1.2".'),
        ("repo: {path: no}", "expected text, got a boolean ('no')", 'Put it in quotes: "no".'),
        ("repo: {path: 2026-01-01}", "expected text, got a date", ""),
        ("repo: {path: ''}", "the text is empty", ""),
        ("repo: {path: {a: b}}", "expected text, got a mapping", ""),
        ("repo: [1]", "`repo` must hold keys, got a list", ""),
        ("repo: models", "`repo` must hold keys, got text ('models')", ""),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(load, text, said, hint):
    """The finding says what was expected, what stood there, and where."""
    problem = _only(load, MINIMAL + text)

    assert said in problem.message
    assert hint in problem.hint
    assert problem.where == "specdeploy.yaml:4"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("load: {max_token: 1}", "`load.max_token` is not a key", "did you mean max_tokens?"),
        ("laod: {}", "`laod` is not a key", "did you mean load?"),
        ("num_draft_tokens: 3", "`num_draft_tokens` is not a key", "did you mean speculation.num_draft_tokens?"),
        ("report: {zzz: 1}", "`report.zzz` is not a key", "The keys here are path."),
        ("1: x", "a key must be text, got an integer ('1')", ""),
        ("[a]: x", "a key must be text, got a list", ""),
        ("name: again", "`name` stands twice", "already on line 1"),
        ("draft: {checkpoint: other}", "`draft` stands twice", "already on line 3"),
        ("load: {seed: 1, seed: 2}", "`load.seed` stands twice", "already on line 4"),
    ],
)
def test_an_unknown_or_repeated_key_is_refused(load, text, said, hint):
    """With the nearest key, the section it belongs to, or the line of the first one."""
    problem = _only(load, MINIMAL + text)

    assert (problem.message, problem.where) == (said, "specdeploy.yaml:4")
    assert hint in problem.hint


def test_all_problems_of_all_sources_come_at_once(load):
    """One run is enough to mend everything."""
    text = "nmae: demo\nprofil: cpu\ntarget: {checkpoint: 7}\nload: {seed: -1, seed: 0}\n"

    problems = _problems(load, text, {"load.paris": "1"}, {"SPECDEPLOY__BUILD__MAX_SEQ_LEN": "many"})

    assert [(problem.code, problem.where) for problem in problems] == [
        ("config.unknown-key", "specdeploy.yaml:1"),
        ("config.unknown-key", "specdeploy.yaml:2"),
        ("config.value", "specdeploy.yaml:3"),
        ("config.value", "specdeploy.yaml:4"),
        ("config.duplicate-key", "specdeploy.yaml:4"),
        ("config.override", "env SPECDEPLOY__BUILD__MAX_SEQ_LEN"),
        ("config.override", "--set load.paris"),
        ("config.missing-key", "specdeploy.yaml"),
    ]
    assert problems[-1].message == "`name` is required"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_lacks_the_required_keys(load, text):
    """It is not an error of its own."""
    messages = [problem.message for problem in _problems(load, text)]

    assert messages == [f"`{key}` is required" for key in ("name", "target.checkpoint")]


def test_required_keys_may_come_from_elsewhere(load):
    """A container can give all of them as variables."""
    env = {"SPECDEPLOY__NAME": "x", "SPECDEPLOY__TARGET__CHECKPOINT": "a", "SPECDEPLOY__DRAFT__CHECKPOINT": "b"}

    assert load("", None, env).config.target.checkpoint == "a"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: b: c\n", "config.syntax"),
        ("a: [1\n", "config.syntax"),
        ("\tname: x\n", "config.syntax"),
        ("name: x\n---\nname: y\n", "config.syntax"),
        ("name: \x00\n", "config.syntax"),
        ("name: &n x\n", "config.alias"),
        ("name: *n\n", "config.alias"),
        ("name: !!python/object/apply:os.getcwd []\n", "config.tag"),
        ("name: !!str 3\n", "config.tag"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_as_a_whole(load, text, code):
    """And then nothing is said about keys that could not be read."""
    assert {problem.code for problem in _problems(load, text)} == {code}


@pytest.mark.parametrize("text", ["- a\n", "just text\n", "3\n"])
def test_the_document_must_hold_keys(load, text):
    """A list or a word is no configuration."""
    assert "the document must hold keys" in _problems(load, text)[0].message


def test_a_syntax_error_has_its_line(load):
    """The line that the parser stumbled over."""
    assert _only(load, "name: x\nload: {seed: 1\n").where.startswith("specdeploy.yaml:")


@pytest.mark.parametrize(
    ("key", "text", "said", "hint"),
    [
        ("load.max_token", "1", "there is no such key", "did you mean load.max_tokens?"),
        ("load", "1", "it is a section", "load.prompts"),
        ("name.x", "1", "`name` is a value", ""),
        ("", "1", "there is no such key", ""),
        ("load.max_tokens", "", "expected an integer, got ''", ""),
        ("load.concurrency", "1,x", "expected an integer, got 'x'", ""),
        ("name", " ", "the text is empty", ""),
    ],
)
def test_a_wrong_override_names_the_option(load, key, text, said, hint):
    """The cure is on the command line, so that is where the finding points."""
    problem = _only(load, MINIMAL, {key: text})

    assert said in problem.message
    assert hint in problem.hint
    assert problem.where == f"--set {key}"


@pytest.mark.parametrize(("text", "value"), [("1,4", (1, 4)), ("[2, 8]", (2, 8)), ("3", (3,)), ("", ()), ("[]", ())])
def test_lists_in_overrides(load, text, value):
    """With or without brackets."""
    assert load(MINIMAL, {"load.concurrency": text}).config.load.concurrency == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--backend-config=python,size=1", ("--backend-config=python,size=1",)),
        ('["--backend-config=python,size=1", --x=2]', ("--backend-config=python,size=1", "--x=2")),
        ("[--x=1,--y=2]", ("--x=1", "--y=2")),
        ("", ()),
    ],
)
def test_lists_of_texts_in_overrides(load, text, value):
    """Texts have commas of their own: one without brackets is one, and quotes keep an item together."""
    assert load(MINIMAL, {"serve.extra_args": text}).config.serve.extra_args == value


def test_a_list_with_an_open_quotation_is_refused(load):
    """With the way to write it."""
    problem = _only(load, MINIMAL, {"serve.extra_args": '["a, b]'})

    assert "is no list" in problem.message
    assert '[a, "b, c"]' in problem.hint


def test_text_in_an_override_is_taken_as_it_is(load):
    """The shell has had its turn with the quotes; 1.2 is text for a key that holds text."""
    assert load(MINIMAL, {"release": "1.2"}).config.release == "1.2"


def test_a_missing_file_points_to_init(tmp_path):
    """The next step for a newcomer."""
    with pytest.raises(ConfigError, match="there is no") as caught:
        load_config(tmp_path / "specdeploy.yaml", {}, {})

    assert "specdeploy init" in caught.value.hint


def test_a_folder_or_a_binary_file_is_refused(tmp_path):
    """Neither is a traceback."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {}, {})

    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text: byte 6 is 0xff"):
        load_config(binary, {}, {})


def test_rows_show_every_key_once(load):
    """Key, value as YAML, and origin, in the order of the schema."""
    rows = resolved_rows(load(MINIMAL, {"load.concurrency": "1,2"}))
    table = {key: (value, origin) for key, value, origin in rows}

    assert len(rows) == len(table)
    assert rows[0] == ("name", "demo", "specdeploy.yaml:1")
    assert table["load.concurrency"] == ("[1, 2]", "--set")
    assert table["speculation.use_draft_logits"] == ("true", "default")


@given(st.text())
def test_no_text_makes_it_crash(tmp_path_factory, text):
    """Whatever the file holds, the answer is a configuration or findings."""
    path = tmp_path_factory.mktemp("c") / "specdeploy.yaml"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")

    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})

    assert caught.value.findings


RULES = """
gate:
  rules:
    - error_rate <= 0
    - request_throughput: 5%
    - "time_to_first_token.p99: 10% floor 1ms"
    - advisory: request_latency.p99 <= 2s
    - {rule: "request_latency: 5%", advisory: true, floor: 2ms}
    - rule: speedup@1 >= 1.2
      advisory: no-one
"""


def test_a_gate_rule_may_be_a_mapping(load):
    """YAML makes one of what has a colon; keys say the same as the compact spelling, which --set takes."""
    text = MINIMAL + RULES.replace("no-one", "false")
    compact = (
        "error_rate <= 0",
        "request_throughput: 5%",
        "time_to_first_token.p99: 10% floor 1ms",
        "advisory: request_latency.p99 <= 2s",
        "advisory: request_latency: 5% floor 2ms",
        "speedup@1 >= 1.2",
    )

    assert load(text).config.gate.rules == compact
    assert load(overrides={"gate.rules": f"[{', '.join(compact)}]"}).config.gate.rules == compact


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{rule: a, advisory: perhaps}", "advisory is 'perhaps', not true or false"),
        (
            '{rule: "advisory: error_rate <= 0", advisory: false}',
            "advisory is false, and its rule says 'advisory:' itself",
        ),
        ("{rule: a, adviser: true}", "'adviser' is not a key of a rule"),
        ("{rule: a, rule: b}", "'rule' stands twice"),
        ("{floor: 1ms}", "and no 'rule'"),
        ("{a: 5%, b: 5%}", "and no 'rule'"),
        ("{}", "and no 'rule'"),
        ("{rule: [a]}", "expected text, got a list"),
        ("{rule: }", "expected text, got nothing"),
        ("{rule: {a: b}}", "expected text, got a mapping"),
        ("[a, b]", "expected text, got a list"),
    ],
)
def test_a_mapping_that_is_no_rule_is_refused(load, rule, said):
    """With its line and what to write."""
    problem = _only(load, f"{MINIMAL}gate:\n  rules:\n    - {rule}\n")

    assert said in problem.message
    assert "`gate.rules[0]`" in problem.message
    assert problem.where == "specdeploy.yaml:6"


def test_other_lists_take_no_mappings(load):
    """Only what knows what one means."""
    problem = _only(load, f"{MINIMAL}load:\n  slo:\n    - time_to_first_token: 300ms\n")

    assert "expected text, got a mapping" in problem.message
