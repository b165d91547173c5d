"""The workflows under ``examples/ci/``, and the page about them: sound by their linters, with commands that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml

from specdeploy.cli import cli
from tests.deployments import specdeploy, write_deployment

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
GITHUB = sorted((ROOT / "examples" / "ci" / "github").glob("*.yml"))
GITLAB = ROOT / "examples" / "ci" / "gitlab" / ".gitlab-ci.yml"
PAGE = (ROOT / "docs" / "ci.md").read_text()
README = (ROOT / "README.md").read_text().split("## In CI\n")[1].split("\n## ")[0]
#: GitHub's own actions may be named by their major version; any other would have to be pinned by its hash.
ZIZMOR = 'rules: {unpinned-uses: {config: {policies: {"actions/*": ref-pin}}}}\n'
# The label of the runner is the user's to choose.
ACTIONLINT = ("-no-color", "-ignore", 'label "gpu" is unknown', "-shellcheck=", "-pyflakes=")
SCRIPTS = ("before_script", "script", "after_script")


def scripts(path: Path) -> list[str]:
    """Return what the jobs of a pipeline run in a shell."""
    document = yaml.safe_load(path.read_text())
    if path == GITLAB:
        jobs = [value for value in document.values() if isinstance(value, dict)]
        return [line for job in jobs for key in SCRIPTS for line in job.get(key, [])]
    return [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]


def command_lines(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours in a script, without what a shell keeps for itself."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if command[:1] == ["specdeploy"]:
                    yield command
                command = []
            elif word not in {"$RESET", "$RESET_BASELINE"}:
                # Those are empty where nobody asks for a new baseline.
                command.append(word)


def require_exists(words: list[str]) -> None:
    """Fail, as the program does, where a command, an option or an argument is none of ours."""
    command: click.Command = cli
    context, (name, *arguments) = None, words
    while True:
        context = command.make_context(name, [*arguments], parent=context)
        if not isinstance(command, click.Group):
            return
        left = [*getattr(context, "_protected_args", ()), *context.args]
        if not left:
            assert command.invoke_without_command, words
            return
        found, sub, arguments = command.resolve_command(context, left)
        assert found is not None
        assert sub is not None
        name, command = found, sub


def run(program: str, *arguments: str | Path) -> None:
    """Run a linter of the development environment, and fail with what it says."""
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Linters


@pytest.mark.parametrize("path", GITHUB, ids=lambda path: path.name)
def test_workflows_are_as_github_has_them(path: Path) -> None:
    """By the schema of its workflows."""
    run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)


def test_the_pipeline_is_as_gitlab_has_it() -> None:
    """By the schema of its pipelines."""
    run("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", GITLAB)


def test_zizmor_has_nothing_to_say(tmp_path: Path) -> None:
    """No injection, no permission too many, no credentials left behind, by its pickiest rules."""
    config = tmp_path / "zizmor.yml"
    config.write_text(ZIZMOR)

    run("zizmor", "--offline", "--no-progress", "--persona", "pedantic", "--config", config, *GITHUB)


def test_actionlint_has_nothing_to_say() -> None:
    """Expressions, contexts and the inputs of actions, where the linter is installed."""
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed: no package that pip can install offline has it")
    done = subprocess.run([program, *ACTIONLINT, *GITHUB], capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", GITHUB, ids=lambda path: path.name)
def test_workflows_are_bounded_and_may_only_read(path: Path) -> None:
    """Every job has a time-out, every workflow a concurrency group, and actions are GitHub's, by a major version."""
    document = yaml.safe_load(path.read_text())
    uses = [step["uses"] for job in document["jobs"].values() for step in job["steps"] if "uses" in step]

    assert document["permissions"] == {"contents": "read"}
    assert "github.ref" in document["concurrency"]["group"]
    assert all("permissions" not in job and 0 < job["timeout-minutes"] <= 180 for job in document["jobs"].values())
    assert all(re.fullmatch(r"actions/[a-z/-]+@v\d+", used) for used in uses)


def test_results_are_kept_and_shown() -> None:
    """Artifacts also of a failure, JUnit as GitLab's report, the summary and the link on the page of GitHub's job."""
    jobs = [job for job in yaml.safe_load(GITLAB.read_text()).values() if isinstance(job, dict) and "script" in job]

    assert len(jobs) == 2
    for job in jobs:
        kept: dict[str, Any] = job["artifacts"]
        assert (kept["when"], kept["reports"]["junit"], kept["paths"][0]) == ("always", "reports/*.xml", "reports/")
        assert kept["expose_as"]
        assert job["timeout"]
    for path in GITHUB:
        text = path.read_text()
        assert "actions/upload-artifact@" in text
        assert "specdeploy gate --format github --junit reports/gate.xml" in text
        assert '>> "$GITHUB_STEP_SUMMARY"' in text


# Commands


def test_what_is_checked_is_found() -> None:
    """The words of a command end where the shell takes over."""
    script = (
        'a && specdeploy up --json > out\nspecdeploy gate --rule "x <= 1" || echo "specdeploy no"\npython "$specdeploy"'
    )

    assert list(command_lines(script)) == [["specdeploy", "up", "--json"], ["specdeploy", "gate", "--rule", "x <= 1"]]


@pytest.mark.parametrize("words", ["nope", "gate --nope", "serve stop now", "smoke --format xml", "engines", "up here"])
def test_what_does_not_exist_is_refused(words: str) -> None:
    """The check itself can fail: unknown commands, options, values and arguments."""
    with pytest.raises((click.UsageError, AssertionError, click.exceptions.NoArgsIsHelpError)):
        require_exists(["specdeploy", *words.split()])


@pytest.mark.parametrize("path", [*GITHUB, GITLAB], ids=lambda path: path.name)
def test_every_command_of_a_pipeline_exists(path: Path) -> None:
    """Each line of ours parses as the program would parse it; the line from build to gate is there."""
    found = [words for script in scripts(path) for words in command_lines(script)]

    for words in found:
        require_exists(words)
    assert {"gate"} <= {words[1] for words in found}
    assert {"up"} <= {words[1] for words in found} or {"build", "serve", "smoke", "load"} <= {w[1] for w in found}


@pytest.mark.cpu
@pytest.mark.triton
@pytest.mark.timeout(600)
def test_the_commands_of_a_workflow_work_in_their_order(tmp_path: Path) -> None:
    """Each ends with 0 on a tiny pair (with the cpu profile in place of a GPU's), and leaves results and summary.

    The other workflow's are `up`, which has tests of its own, and the same gate.
    """
    write_deployment(tmp_path)
    for path in (path for path in GITHUB if "gpu" in path.name):
        summary = tmp_path / f"{path.stem}.md"
        environment = {"SPECDEPLOY_CONFIG": "specdeploy.yaml", "GITHUB_STEP_SUMMARY": str(summary)}
        try:
            for words in (words for script in scripts(path) for words in command_lines(script)):
                if words[1] != "runtime":
                    known = [word.replace("$GITHUB_SHA", "0f3c9a1") for word in words[1:]]
                    done = specdeploy(*known, cwd=tmp_path, env=environment)
                    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        finally:
            specdeploy("serve", "stop", cwd=tmp_path)
        assert summary.read_text().startswith("## Gate passed\n")
    kept = {file.name for file in (tmp_path / "reports").iterdir()}
    assert {"load.json", "gate.json", "gate.xml", "gate.md", "smoke.xml", "report.html"} <= kept


def carried_out(script: str, folder: Path, code: int, **env: str) -> tuple[int, str]:
    """Run a script as a runner does, with a gate that ends with *code*; return its exit code and what was called."""
    program, calls = folder / "specdeploy", folder / "calls"
    program.write_text(f'#!/bin/sh\necho "$*" >> "{calls}"\n[ "$1 $2" = "gate baseline" ] || exit {code}\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "GITHUB_OUTPUT": str(folder / "output"), **env}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(words, env=environment, cwd=folder, timeout=20, check=False)
    return done.returncode, calls.read_text()


@pytest.mark.parametrize(("code", "joins"), [(0, True), (1, False), (2, False), (3, True), (4, False)])
def test_a_baseline_begins_on_the_base_branch(tmp_path: Path, code: int, joins: bool) -> None:
    """A run that could not be decided joins it, or relative rules never could be; one that failed does not."""
    lines = yaml.safe_load(GITLAB.read_text())["specdeploy-gpu"]["script"]
    script = "\n".join(lines[next(at for at, line in enumerate(lines) if "specdeploy gate" in line) :])
    (workflow,) = (yaml.safe_load(path.read_text()) for path in GITHUB if "gpu" in path.name)
    steps = {step["id"]: step for step in workflow["jobs"]["performance"]["steps"] if "id" in step}
    base = carried_out(script, tmp_path, code, CI_COMMIT_BRANCH="main", CI_DEFAULT_BRANCH="main", CI_COMMIT_SHA="1a2b")
    change = carried_out(script, tmp_path, code, CI_COMMIT_BRANCH="", CI_DEFAULT_BRANCH="main", CI_COMMIT_SHA="1a2b")
    step = carried_out(steps["gate"]["run"], tmp_path, code)

    assert base[0] == (0 if joins else code)
    assert ("gate baseline update --label 1a2b" in base[1]) == joins
    assert change[0] == step[0] == code
    assert step[1].count("baseline") == joins
    assert (tmp_path / "output").read_text() == f"code={code}\n"
    condition = steps["baseline"]["if"]
    assert (f'"{code}"' in condition) == joins
    assert "github.event_name == 'push'" in condition
    assert "success()" not in condition


@pytest.mark.parametrize(
    ("curl", "code", "kept"),
    [
        ('printf answer > "$output"; printf 200', 0, "answer"),
        ('printf "no such job" > "$output"; printf 404', 0, None),
        ('printf "try later" > "$output"; printf 503', 4, None),
        ("echo cannot resolve >&2; exit 6", 6, None),
    ],
)
def test_a_baseline_that_cannot_be_fetched_is_not_begun_anew(tmp_path: Path, curl: str, code: int, kept) -> None:
    """On GitLab: the job ends there, and the one of the last pipeline stays. Only one that never was begins."""
    lines = yaml.safe_load(GITLAB.read_text())["specdeploy-gpu"]["script"]
    script = "\n".join(lines[: next(at for at, line in enumerate(lines) if "specdeploy doctor" in line)])
    program = tmp_path / "curl"
    program.write_text(f'#!/bin/bash\nwhile [ "$1" != --output ]; do shift; done\noutput=$2\n{curl}\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CI_DEFAULT_BRANCH": "main"}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(words, env=environment, cwd=tmp_path, timeout=20, check=False)
    baseline = tmp_path / "baseline" / "gate-baseline.json"

    assert done.returncode == code
    assert (baseline.read_text() if baseline.exists() else None) == kept


def test_a_baseline_is_begun_anew_on_demand_only(tmp_path: Path) -> None:
    """By hand, on the base branch, after what it was measured with has changed."""
    (workflow,) = (yaml.safe_load(path.read_text()) for path in GITHUB if "gpu" in path.name)
    step = next(step for step in workflow["jobs"]["performance"]["steps"] if step.get("id") == "baseline")
    lines = yaml.safe_load(GITLAB.read_text())["specdeploy-gpu"]["script"]
    script = next(line for line in lines if "baseline update" in line)
    branch = {"CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main", "CI_COMMIT_SHA": "1a2b"}
    for asked in ("", "--reset"):
        expected = f"gate baseline update --label 1a2b{' --reset' if asked else ''}\n"
        (tmp_path / "calls").unlink(missing_ok=True)
        assert carried_out(f"code=3\n{script}", tmp_path, 0, RESET_BASELINE=asked, **branch) == (0, expected)
        (tmp_path / "calls").unlink()
        assert carried_out(step["run"], tmp_path, 0, RESET=asked, GITHUB_SHA="1a2b") == (0, expected)
    assert step["env"]["RESET"] == "${{ inputs.reset_baseline && '--reset' || '' }}"


def test_every_command_of_the_page_exists() -> None:
    """Also those of the README's section."""
    lines = [
        line for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()
    ]
    found = [line.removeprefix("$ ") for line in lines] + re.findall(
        r"^    (specdeploy .*)$", README, flags=re.MULTILINE
    )

    assert all(line.startswith("$ specdeploy ") for line in lines)
    assert len(found) > len(lines) > 0
    for line in found:
        for words in command_lines(line):
            require_exists(words)


def test_files_that_the_page_names_exist() -> None:
    """In its table and elsewhere; and none of the examples is left out."""
    named = set(re.findall(r"`((?:examples|build)/[\w./-]+\w)`", PAGE))

    assert [name for name in named if not (ROOT / name).exists()] == []
    assert {path.relative_to(ROOT).as_posix() for path in (*GITHUB, GITLAB)} <= named


def test_the_page_says_what_the_outputs_are() -> None:
    """Its table of verdicts is that of the code."""
    from specdeploy.report import gate_outcome
    from specdeploy.report.gate_junit import gate_junit

    section = PAGE.split("### What makes the job red\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+\| [^|]+) \|$", section, flags=re.MULTILINE))
    cases = {
        "pass": ("pass", False),
        "fail": ("fail", False),
        "undecided, not measured, not comparable": ("not_comparable", False),
        "fail, of an advisory rule": ("fail", True),
        "anything else but a pass, of an advisory rule": ("undecided", True),
    }
    for words, (status, advisory) in cases.items():
        junit, annotation = rows[words].split(" | ")
        gate = {"rules": [{"rule": "r", "status": status, "advisory": advisory}], "exit_code": 0 if advisory else 1}
        severities = [finding.severity for finding in gate_outcome.findings(gate) if status != "pass"]
        told = {"error": "`::error`", "warning": "`::warning`", "info": "`::notice`"}
        assert [annotation] == ([told[severity] for severity in severities] or ["none"])
        assert ("<" + junit.strip("`") in gate_junit(gate)) == (junit != "passed")
