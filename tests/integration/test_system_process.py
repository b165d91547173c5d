"""Running real programs: output, time-outs, signals, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specdeploy.errors import EnvironmentFault, ToolMissing
from specdeploy.system import files, process
from specdeploy.system.process import SubprocessRunner, run_capture

ROOT = Path(__file__).parents[2]
# Starts a grandchild, tells both numbers, and then waits for ever; the first argument is the file for the numbers.
FAMILY = """
import os, subprocess, sys, signal, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time\\ntime.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a Python snippet and gives (exit code, lines, log)."""

    def run_python(code: str, *args: str, timeout_s: float = 60, env=None, cwd=None):
        lines: list[str] = []
        log = tmp_path / "logs" / "run.log"
        argv = [sys.executable, "-c", code, *args]
        runner = SubprocessRunner(grace_s=1.0)
        exit_code = runner.run(argv, env=env or {}, cwd=cwd, log=log, timeout_s=timeout_s, on_line=lines.append)
        return exit_code, lines, log.read_text()

    return run_python


def _is_running(pid: int) -> bool:
    """Say whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _await(condition, seconds: float = 30.0) -> bool:
    """Poll a condition that another process makes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _family(path: Path) -> list[int]:
    """Return the process numbers that FAMILY wrote."""
    assert _await(path.exists)
    return [int(number) for number in path.read_text().split()]


def test_output_goes_to_the_log_and_the_callback(run):
    """Both streams in order, the exit code, and above it the command as one would type it."""
    code, lines, log = run("import sys; print('out'); print('err', file=sys.stderr); print('Ü'); sys.exit(3)")

    assert code == 3
    assert lines == ["out", "err", "Ü"]
    assert log.startswith(f"$ {sys.executable} -c 'import sys;")
    assert log.endswith("out\nerr\nÜ\n")


def test_the_log_is_appended_to(run):
    """Several steps share one."""
    run("print('one')")
    _, _, log = run("print('two')")

    assert [line for line in log.splitlines() if not line.startswith("$")] == ["one", "two"]


def test_progress_bars_are_lines(run):
    """A redrawn line is a new one."""
    assert run("print('1%\\r2%\\r3%')")[1] == ["1%", "2%", "3%"]


def test_the_environment_is_extended(run, monkeypatch):
    """Inherited, plus what the step sets, unbuffered so that lines come as they are printed."""
    monkeypatch.setenv("INHERITED", "yes")

    _, lines, _ = run(
        "import os; print(os.environ['INHERITED'], os.environ['ADDED'], os.environ['PYTHONUNBUFFERED'])",
        env={"ADDED": "too"},
    )

    assert lines == ["yes too 1"]


def test_a_given_environment_replaces_ours(tmp_path, monkeypatch):
    """The runner's own base, when it has one."""
    monkeypatch.setenv("SECRET", "x")
    lines = []

    SubprocessRunner(base_env={"PATH": "/usr/bin"}).run(
        [sys.executable, "-c", "import os; print('SECRET' in os.environ)"],
        env={},
        cwd=None,
        log=tmp_path / "log",
        timeout_s=60,
        on_line=lines.append,
    )

    assert lines == ["False"]


def test_the_working_directory(run, tmp_path):
    """Where the step runs; a missing one is named."""
    assert run("import os; print(os.getcwd())", cwd=tmp_path)[1] == [str(tmp_path)]

    with pytest.raises(EnvironmentFault, match="no such directory"):
        run("pass", cwd=tmp_path / "absent")


def test_lines_come_while_the_program_runs(tmp_path):
    """The callback sees the first line before the program ends: here it is what lets it end."""
    flag = tmp_path / "flag"
    code = "import os, sys, time\nprint('on')\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('off')"
    lines = []

    def on_line(line):
        lines.append(line)
        flag.touch()

    argv = [sys.executable, "-c", code, str(flag)]
    SubprocessRunner().run(argv, env={}, cwd=None, log=tmp_path / "log", timeout_s=60, on_line=on_line)

    assert lines == ["on", "off"]


def test_nothing_can_be_read_from_its_input(run):
    """A program that asks a question gets the end of the file instead of hanging, even when we sit at a terminal."""
    ours, (readable, writable) = os.dup(0), os.pipe()
    os.dup2(readable, 0)
    try:
        assert run("import sys; print(repr(sys.stdin.read()))", timeout_s=20)[1] == ["''"]
    finally:
        os.dup2(ours, 0)
        for descriptor in (ours, readable, writable):
            os.close(descriptor)


def test_a_time_out_ends_the_grandchildren_too(run, tmp_path):
    """A compiler's workers do not go on eating memory."""
    numbers = tmp_path / "numbers"

    with pytest.raises(EnvironmentFault, match="ran longer than 3 s and was ended"):
        run(FAMILY, str(numbers), timeout_s=3)

    assert _await(lambda: not any(map(_is_running, _family(numbers))))


def test_a_program_that_ignores_the_request_is_killed(run, tmp_path):
    """After the grace period."""
    numbers = tmp_path / "numbers"

    with pytest.raises(EnvironmentFault, match="ran longer"):
        run(FAMILY, str(numbers), "stubborn", timeout_s=3)

    assert _await(lambda: not any(map(_is_running, _family(numbers))))


def test_what_is_left_in_the_background_does_not_hold_us_up(run, tmp_path):
    """A program that ends but leaves a child on its pipe: we do not wait for the child, and it is ended."""
    numbers = tmp_path / "numbers"
    code = FAMILY.replace("time.sleep(600)\n", "sys.exit(5)\n")
    began = time.monotonic()

    exit_code, lines, _ = run(code, str(numbers), timeout_s=300)

    assert (exit_code, lines) == (5, ["started"])
    assert time.monotonic() - began < 60
    assert _await(lambda: not _is_running(_family(numbers)[1]))


def test_an_endless_background_writer_does_not_hold_us_up(run):
    """Its output could be read for ever."""
    code = "import subprocess, sys; subprocess.Popen(['yes']); sys.stdout.close()"

    assert run(code, timeout_s=60)[0] == 0


def test_a_signal_is_a_negative_code(run):
    """As subprocess has it."""
    assert run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")[0] == -signal.SIGSEGV


def test_a_closed_output_is_not_the_end(run):
    """The exit code is waited for."""
    assert run("import os, time; os.close(1); os.close(2); time.sleep(0.3); os._exit(4)")[0] == 4


def test_a_failing_callback_ends_the_program(run, tmp_path):
    """An error of the caller leaves no process behind."""
    numbers = tmp_path / "numbers"

    def fail(_line):
        raise LookupError("from the callback")

    with pytest.raises(LookupError):
        SubprocessRunner(grace_s=1.0).run(
            [sys.executable, "-c", FAMILY, str(numbers)],
            env={},
            cwd=None,
            log=tmp_path / "log",
            timeout_s=60,
            on_line=fail,
        )

    assert _await(lambda: not any(map(_is_running, _family(numbers))))


@pytest.mark.parametrize("program", ["no-such-program-anywhere", "/no/such/program"])
def test_a_missing_program_is_named(tmp_path, program):
    """It is the machine that lacks something."""
    with pytest.raises(ToolMissing, match=program):
        SubprocessRunner().run([program], env={}, cwd=None, log=tmp_path / "log", timeout_s=5)


def test_a_program_that_cannot_be_run_is_an_error_of_the_machine(tmp_path):
    """No permission, or no format that the kernel knows."""
    (tmp_path / "script").write_text("not a program")

    with pytest.raises(EnvironmentFault, match="could not be started"):
        SubprocessRunner().run([str(tmp_path / "script")], env={}, cwd=None, log=tmp_path / "log", timeout_s=5)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_ending_us_ends_the_program(tmp_path, number, expected):
    """Ctrl-C, `kill` and a closed terminal unwind our process and take the whole group along."""
    numbers, log, done = tmp_path / "numbers", tmp_path / "log", tmp_path / "unwound"
    code = (
        "import sys\nfrom pathlib import Path\nfrom specdeploy.system.process import SubprocessRunner\n"
        "try:\n"
        "    SubprocessRunner(grace_s=1.0).run([sys.executable, '-c', sys.argv[1], sys.argv[2]], env={}, cwd=None,\n"
        "                                      log=Path(sys.argv[3]), timeout_s=300)\n"
        "finally:\n"
        "    Path(sys.argv[4]).touch()\n"
    )
    ours = subprocess.Popen(
        [sys.executable, "-c", code, FAMILY, str(numbers), str(log), str(done)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        family = _family(numbers)
        ours.send_signal(number)

        assert ours.wait(60) == expected
        assert done.exists()
        assert _await(lambda: not any(map(_is_running, family)))
    finally:
        ours.kill()
        ours.wait()


def test_an_earlier_handler_decides_what_a_signal_means(run):
    """The command line has its own; it is called once the program can be ended, and is back afterwards."""

    class Interrupted(Exception):
        pass

    def handler(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Interrupted):
            run("import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_it_runs_in_any_thread(tmp_path):
    """Signals belong to the main thread; everywhere else they are left alone."""
    codes = []
    argv = [sys.executable, "-c", "print('x')"]
    thread = threading.Thread(
        target=lambda: codes.append(SubprocessRunner().run(argv, env={}, cwd=None, log=tmp_path / "log", timeout_s=60))
    )
    thread.start()
    thread.join(60)

    assert codes == [0]


def test_a_log_on_a_full_disk_does_not_end_the_run(tmp_path):
    """The callback still sees every line, so that the reason of the failure can be shown."""
    lines = []

    code = SubprocessRunner().run(
        [sys.executable, "-c", "print('No space left on device')"],
        env={},
        cwd=None,
        log=Path("/dev/full"),
        timeout_s=60,
        on_line=lines.append,
    )

    assert (code, lines) == (0, ["No space left on device"])


def test_a_probe_never_raises():
    """What a program prints, that it failed, that it is missing, that it hangs: four answers."""
    assert run_capture([sys.executable, "-c", "print(1); print(2)"], timeout_s=60).output == "1\n2"
    assert run_capture([sys.executable, "-c", "raise SystemExit(2)"], timeout_s=60).exit_code == 2
    assert run_capture(["no-such-program-anywhere"], timeout_s=5).exit_code is None
    hung = run_capture([sys.executable, "-c", "print('so far', flush=True)\nimport time\ntime.sleep(600)"], timeout_s=2)
    assert (hung.exit_code, hung.output, hung.ok) == (None, "so far", False)


def test_programs_are_found_on_the_path(tmp_path):
    """On PATH, or on a path that is given."""
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert process.which("tool", path=str(tmp_path)) == program
    assert process.which("tool") is None
    assert process.quote(["a b", "c"]) == "'a b' c"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_can_be_bound(host):
    """On the address that was asked for."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        port = files.free_port(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")

    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as bound:
        bound.bind((host, port))
    assert 1024 <= port < 65536


def test_no_file_descriptor_is_left_open(run):
    """A long session runs many programs."""
    run("print(1)")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run("print(1)")

    assert len(list(Path("/proc/self/fd").iterdir())) == before
