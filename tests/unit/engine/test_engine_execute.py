"""The executor: published whole, or a clear error and nothing left behind."""

from __future__ import annotations

import dataclasses
import errno
import threading
from pathlib import Path

import pytest

from specdeploy.engine.events import CacheHit, Published, StepFinished, StepKept, StepOutput, StepStarted, Waiting
from specdeploy.engine.execute import Surroundings, Tools, execute
from specdeploy.engine.profile import BuildStep, engine_key
from specdeploy.engine.store import EngineStore
from specdeploy.errors import BuildFailed, EnvironmentFault, ToolMissing
from specdeploy.findings import Finding
from specdeploy.planning.build import BuildPlan
from specdeploy.system.jobs import LocalJobs
from specdeploy.system.signals import Endings
from tests.unit.engine.fakes import KEY, TOOLS, FakeClock, FakeProfile, FakeRunner, plan, planned, step

OTHER = "f" * 64


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    return EngineStore(tmp_path / "engines")


def _execute(store, runner, build=None, events=None, tools=TOOLS, profile=None, surroundings=None):
    listen = None if events is None else events.append
    return execute(
        build or plan(),
        profile=profile or FakeProfile(),
        jobs=LocalJobs(runner),
        store=store,
        clock=FakeClock(),
        timeout_s=9.0,
        on_event=listen,
        surroundings=dataclasses.replace(surroundings or Surroundings(), tools=tools),
    )


def _failure(store, runner, build=None, **kwargs):
    with pytest.raises(BuildFailed) as caught:
        _execute(store, runner, build, **kwargs)
    assert store.find(KEY) is None
    assert _entries(store) == []
    return caught.value


def _entries(store):
    """Return what is in the store beside its logs, its locks and what a next run goes on from."""
    return sorted(path.name for path in store.root.iterdir() if path.name not in {".locks", ".steps", "logs"})


def test_an_engine_is_built_and_published(store):
    """The manifest says what it is and how it was made; the placeholders stay, so that it is true on any machine."""
    (manifest,) = _execute(store, FakeRunner())

    assert store.find(KEY) == manifest
    assert [file.path for file in manifest.files] == ["model.bin"]
    assert manifest.argv == (("compiler", "--output", "{output}", "{scratch}"),)
    assert (manifest.tool_versions, manifest.created) == ({"compiler": "1.0"}, "2026-01-31T09:30:00+00:00")
    assert (manifest.max_seq_len, manifest.vocab_size, manifest.checkpoint_name) == (2048, 6, "big")
    assert manifest.duration_s > 0
    assert _entries(store) == [KEY[:16]]


def test_events_tell_the_whole_story(store):
    """In order, each with the engine's name."""
    events = []
    _execute(store, FakeRunner(lines=["half", "done"]), events=events)

    kinds = [type(event) for event in events]
    assert kinds == [StepStarted, StepOutput, StepOutput, StepFinished, Published]
    assert {event.engine for event in events} == {"target-engine"}
    assert [event.line for event in events if isinstance(event, StepOutput)] == ["half", "done"]
    assert events[0].log == str(store.log(KEY, "compile"))
    assert events[-1].size_bytes == len(b"weights")


def test_a_second_run_is_a_hit(store):
    """Nothing runs, and the event says where the engine is."""
    (first,) = _execute(store, FakeRunner())
    runner, events = FakeRunner(), []

    (second,) = _execute(store, runner, events=events)

    assert (second, runner.calls) == (first, [])
    assert events == [CacheHit(engine="target-engine", key=KEY, path=str(store.path(KEY)))]


def test_placeholders_become_directories(store):
    """The output is the staging directory, the scratch directory is on the same disk and gone afterwards."""
    scratch = []
    runner = FakeRunner(act=lambda output: scratch.extend(output.parent.glob("*-scratch-*")))

    _execute(store, runner)

    (argv,), (env,) = runner.calls, runner.envs
    assert argv[2].startswith(str(store.root / f".staging-{KEY[:16]}-"))
    assert argv[3] == str(scratch[0] / "0")
    assert env == {"TMP": str(scratch[0] / "0")}
    assert not scratch[0].exists()


def test_one_engine_for_both_roles_is_built_once(store):
    """Two manifests in the order of the plan, one run."""
    runner = FakeRunner()

    target, draft = _execute(store, runner, plan(planned(), planned(role="draft")))

    assert target == draft
    assert len(runner.calls) == 1


def two_steps() -> tuple[BuildStep, BuildStep]:
    """A conversion, and a build that reads what it wrote."""
    convert = step("1" * 64, name="convert", outputs=("converted.bin",), parts={"tp_size": "2"})
    build = step("2" * 64, name="build", argv=("builder", "{previous}", "--output", "{output}"), parts={"batch": "4"})
    return convert, build


CHAIN = engine_key(two_steps())


class TwoSteps(FakeRunner):
    """Plays both steps of :func:`two_steps`; *fail* is the program that fails.

    Args:
        fail: ``compiler`` or ``builder``; empty for neither.
    """

    def __init__(self, fail: str = "") -> None:
        super().__init__()
        self.fail = fail
        self.read: list[bytes] = []

    def run(self, argv, **keywords) -> int:
        """Write what the program promises, the builder after reading what the conversion left."""
        if argv[0] == "builder":
            self.read.append((Path(argv[1]) / "converted.bin").read_bytes())
        self._files = {"model.bin": b"weights"} if argv[0] == "builder" else {"converted.bin": b"converted"}
        self._code = int(argv[0] == self.fail)
        return super().run(argv, **keywords)

    @property
    def programs(self) -> list[str]:
        """The programs that ran, in order."""
        return [call[0] for call in self.calls]


def _chain() -> BuildPlan:
    return plan(planned(CHAIN, steps=two_steps()))


def test_a_step_reads_what_the_one_before_it_wrote(store):
    """The engine holds what the last one wrote and nothing else; what lay between is gone."""
    runner, events = TwoSteps(), []

    (manifest,) = _execute(store, runner, _chain(), events)

    assert [event.step for event in events if isinstance(event, StepStarted)] == ["convert", "build"]
    assert runner.read == [b"converted"]
    assert [file.path for file in manifest.files] == ["model.bin"]
    assert list((store.root / ".steps").iterdir()) == []


def test_a_failed_build_goes_on_at_the_step_that_failed(store):
    """The conversion, which may have taken an hour, is not done again."""
    with pytest.raises(BuildFailed, match="step `build`"):
        _execute(store, TwoSteps(fail="builder"), _chain())
    runner, events = TwoSteps(), []

    (manifest,) = _execute(store, runner, _chain(), events)

    assert runner.programs == ["builder"]
    assert [event.step for event in events if isinstance(event, StepKept)] == ["convert"]
    assert list(manifest.steps) == ["build"]


def test_a_conversion_that_failed_is_done_again(store):
    """What it left is not taken for a result."""
    with pytest.raises(BuildFailed, match="step `convert`"):
        _execute(store, TwoSteps(fail="compiler"), _chain())
    runner = TwoSteps()

    _execute(store, runner, _chain())

    assert runner.programs == ["compiler", "builder"]


def test_what_the_first_step_wrote_can_be_kept_for_other_engines(store):
    """Another engine of the same converted checkpoint skips the conversion."""
    keep = Surroundings(keep_steps=True)
    _execute(store, TwoSteps(), _chain(), surroundings=keep)
    convert, build = two_steps()
    other = dataclasses.replace(build, key="3" * 64)
    runner = TwoSteps()

    _execute(store, runner, plan(planned(engine_key((convert, other)), steps=(convert, other))), surroundings=keep)

    assert runner.programs == ["builder"]


def test_an_engine_that_is_not_what_was_planned_is_not_published(store):
    """However well its commands ended."""
    wrong = Finding(severity="error", code="engine.mode", message="no drafts")
    profile = FakeProfile(wrong)

    with pytest.raises(BuildFailed, match="not what was planned") as caught:
        _execute(store, FakeRunner(), profile=profile)

    assert caught.value.findings == (wrong,)
    assert profile.seen == [({"model.bin": b"weights"}, {"model.bin": 7})]
    assert store.find(KEY) is None


def test_a_manifest_says_what_decided_the_engine_and_where_it_was_made(store):
    """Enough to explain a later miss, and to ask the right machine."""
    around = Surroundings(environment={"NCCL_DEBUG": "INFO"}, host=lambda: {"gpu": "H100"})

    (manifest,) = _execute(store, TwoSteps(), _chain(), surroundings=around)

    assert manifest.parts == {"convert": {"tp_size": "2"}, "build": {"batch": "4"}}
    assert (manifest.facts, manifest.host) == ({"role": "target"}, {"gpu": "H100"})
    assert manifest.environment == {"NCCL_DEBUG": "INFO", "TMP": "{scratch}"}
    assert set(manifest.steps) == {"convert", "build"}


def test_small_files_are_written_without_a_command(store):
    """What a configuration is built of needs no program."""
    written = step(argv=(), env={}, outputs=("model.yaml",), writes={"model.yaml": "model: x\n"}, requires=())
    runner = FakeRunner()

    (manifest,) = _execute(store, runner, plan(planned(steps=(written,))))

    assert runner.calls == []
    assert (store.path(KEY) / "model.yaml").read_text() == "model: x\n"
    assert [file.path for file in manifest.files] == ["model.yaml"]


def test_engines_are_built_side_by_side_when_the_plan_says_so(store):
    """Each on its own GPUs, at the same time: each waits for the other to have begun."""
    meeting = threading.Barrier(2, timeout=30)
    runner = FakeRunner(act=lambda _output: meeting.wait())
    target = planned(steps=(step(gpus=2),))
    other = step("e" * 64, gpus=1)
    draft = planned("e" * 64, role="draft", steps=(other,))
    target, draft = dataclasses.replace(target, devices=("0", "1")), dataclasses.replace(draft, devices=("2",))

    first, second = _execute(store, runner, BuildPlan(engines=(target, draft), side_by_side=True))

    assert (first.key, second.key) == (KEY, "e" * 64)
    assert {env["CUDA_VISIBLE_DEVICES"] for env in runner.envs} == {"0,1", "2"}


def test_a_failure_stops_the_engine_beside_it(store):
    """Nobody waits an hour for an error that is known."""
    running = threading.Event()

    class Hanging(FakeRunner):
        def run(self, argv, **keywords):
            if keywords["env"]["CUDA_VISIBLE_DEVICES"] == "1":
                assert running.wait(30)
                raise EnvironmentFault("the GPU is gone")
            running.set()
            with Endings() as endings:
                for _ in range(3000):
                    endings.raise_if_asked()
                    threading.Event().wait(0.01)
            raise AssertionError("nobody asked it to stop")

    engines = (
        dataclasses.replace(planned(steps=(step(gpus=1),)), devices=("0",)),
        dataclasses.replace(planned("e" * 64, role="draft", steps=(step("e" * 64, gpus=1),)), devices=("1",)),
    )

    with pytest.raises(BuildFailed, match="the GPU is gone"):
        _execute(store, Hanging(), BuildPlan(engines=engines, side_by_side=True))


def test_a_failing_step_shows_the_end_of_its_log(store):
    """Exit code, log file, and the last lines, which is where the reason stands."""
    lines = [f"line {number}" for number in range(40)] + ["ValueError: the reason"]

    error = _failure(store, FakeRunner(lines=lines, code=3))

    assert "target-engine: step `compile` ended with exit code 3; nothing was published" in error.message
    assert str(store.log(KEY, "compile")) in error.message
    assert error.message.endswith("ValueError: the reason")
    assert "line 10" not in error.message
    assert store.log(KEY, "compile").read_text().splitlines() == lines


@pytest.mark.parametrize(("code", "said"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-35, "signal 35")])
def test_a_signal_is_named(store, code, said):
    """And SIGKILL usually means memory."""
    error = _failure(store, FakeRunner(code=code))

    assert said in error.message
    assert ("memory" in error.hint) == (code == -9)


def test_success_without_the_files_is_a_failure(store):
    """A tool that prints success and writes nothing, or an empty file, is not believed."""
    wanted = plan(planned(steps=[step(outputs=("model.bin", "absent.json", "empty.json"))]))

    error = _failure(store, FakeRunner({"model.bin": b"x", "empty.json": b""}), wanted)

    assert "ended with 0 but did not write absent.json, empty.json" in error.message


def test_a_failure_of_the_second_step_publishes_nothing(store):
    """Half an engine is none."""
    runner = FakeRunner()
    steps = (step("1" * 64), step("2" * 64, outputs=("never",)))

    _failure(store, runner, plan(planned(steps=steps)))

    assert len(runner.calls) == 2


@pytest.mark.parametrize("line", ["OSError: [Errno 28] No space left on device", "error: Disk quota exceeded"])
def test_a_full_disk_is_said_plainly(store, line):
    """What is needed, what is free and where, and what to do."""
    error = _failure(store, FakeRunner(lines=["[3/9] weights", line], code=4))

    assert "no space left while building" in error.message
    assert "It needs about 200 MB, and " in error.message
    assert f"B is free in {store.root}" in error.message
    assert line in error.message
    assert "build.engines_dir" in error.hint


def test_a_full_disk_of_our_own_is_the_same(store):
    """Our own writes hit the same wall as the compiler's."""

    def full(_output):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert "It needs about 200 MB" in _failure(store, FakeRunner(act=full)).message


def test_a_time_out_is_a_failed_build(store):
    """The runner's words, with the engine and the log around them."""

    def hang(_output):
        raise EnvironmentFault("compiler ran longer than 9 s and was ended", hint="Raise the time-out.")

    error = _failure(store, FakeRunner(act=hang, lines=["working"]))

    assert "step `compile`: compiler ran longer than 9 s" in error.message
    assert error.message.endswith("working")
    assert error.hint == "Raise the time-out."


def test_ctrl_c_leaves_nothing(store):
    """It passes through, and the staging directory is gone."""

    def interrupt(_output):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _execute(store, FakeRunner(act=interrupt))

    assert _entries(store) == []
    assert len(_execute(store, FakeRunner())) == 1


def test_a_missing_package_is_said_before_anything_runs(store):
    """With all of them at once."""
    runner = FakeRunner()
    tools = Tools(missing=tuple, versions=lambda names: {})

    with pytest.raises(ToolMissing, match="needs compiler, which is not installed"):
        _execute(store, runner, tools=tools)

    assert runner.calls == []


def test_a_hit_needs_no_tools(store):
    """A machine that only serves has no compiler."""
    _execute(store, FakeRunner())
    tools = Tools(missing=tuple, versions=lambda names: {})

    assert len(_execute(store, FakeRunner(), tools=tools)) == 1


def test_an_input_that_is_gone_is_named(store, tmp_path):
    """The checkpoint was deleted after it was read."""
    gone = str(tmp_path / "checkpoint")
    runner = FakeRunner()

    error = _failure(store, runner, plan(planned(steps=[step(inputs=(gone,))])))

    assert f"needs {gone}, which is gone" in error.message
    assert runner.calls == []


def test_a_damaged_engine_is_rebuilt(store):
    """It is no hit."""
    _execute(store, FakeRunner())
    (store.path(KEY) / "model.bin").unlink()
    runner = FakeRunner()

    (manifest,) = _execute(store, runner)

    assert len(runner.calls) == 1
    assert store.find(KEY) == manifest


def test_the_log_is_of_the_last_build(store):
    """An older failure does not confuse."""
    _failure(store, FakeRunner(lines=["old"], code=1))
    _execute(store, FakeRunner(lines=["new"]))

    assert store.log(KEY, "compile").read_text() == "new\n"


def test_leftovers_of_other_engines_are_cleaned_first(store):
    """A disk that an earlier crash filled is freed before building."""
    dead = store.root / f".staging-{OTHER[:16]}-12345"
    dead.mkdir(parents=True)

    _execute(store, FakeRunner())

    assert not dead.exists()


def test_a_store_that_cannot_be_written_is_an_error_of_the_machine(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "engines").write_text("in the way")

    with pytest.raises(BuildFailed, match="target-engine"):
        _execute(EngineStore(tmp_path / "engines"), FakeRunner())


def test_a_second_builder_waits_and_takes_the_first_ones_engine(store):
    """Two builders of one engine make one, and the second says that it waits."""
    started, may_finish, waiting = threading.Event(), threading.Event(), threading.Event()
    events, made = [], []

    def slow(_output):
        started.set()
        assert may_finish.wait(30)

    def listen(event):
        events.append(event)
        if isinstance(event, Waiting):
            waiting.set()

    second_runner = FakeRunner()
    first = threading.Thread(target=lambda: made.extend(_execute(store, FakeRunner(act=slow))))
    second = threading.Thread(
        target=lambda: made.extend(
            execute(
                plan(),
                profile=FakeProfile(),
                jobs=LocalJobs(second_runner),
                store=store,
                clock=FakeClock(),
                timeout_s=9.0,
                on_event=listen,
                surroundings=Surroundings(tools=TOOLS),
            )
        )
    )
    first.start()
    assert started.wait(30)
    second.start()
    assert waiting.wait(30)
    may_finish.set()
    first.join(30)
    second.join(30)

    assert [type(event) for event in events] == [Waiting, CacheHit]
    assert second_runner.calls == []
    assert made[0] == made[1]
