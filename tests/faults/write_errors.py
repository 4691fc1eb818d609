"""Disks that are full, fail, are interrupted or take half of what they are given: the run goes on, and what was saved stays."""
import os
import re
import subprocess

from crashes import INTERVAL, calls_of, prepare
from harness import FOLDERS, TINY, difference, state_of, test

LAST = 2 * INTERVAL + 2
HARMLESS = ("EINTR", "short")  # a program that asks again never notices
OF_WRITES = ("short", "zero")


def check_went_on(world, states, done, action, in_the_last_save=False):
    """The run came to its end, or said why not, and every checkpoint that there is holds what it should."""
    for step, path in world.checkpoints().items():
        assert not difference(state_of(path), states[step]), f"{path}: {difference(state_of(path), states[step])}"
    assert "this is a bug" not in done.error, done
    began = done.last_step() > INTERVAL
    if action in HARMLESS or began and not in_the_last_save:
        assert done.code == 0, done
    else:
        assert done.code in (0, 4, 8), done
        assert done.code == 0 or re.search(r"^error: [^\n]+\n\Z", done.error, re.MULTILINE), done
    if done.code == 0:
        assert LAST in world.checkpoints(), f"exit 0 without the last checkpoint: {done}"
        return
    again = world.resume("--max_steps", str(LAST))
    assert again.code == 0, again
    assert not difference(state_of(world.checkpoints()[LAST]), states[LAST])


@test("ENOSPC, EIO, EINTR, short and empty writes at every call of a save", full=0, reduced=5)
def errors_in_a_save(bench, reduced):
    with bench.world() as template:
        states = prepare(bench, template)
        going_on = ["--max_steps", str(LAST)]
        calls = calls_of(bench, template, going_on, ())
        last_save = next(i for i, call in enumerate(calls, 1) if f"step_{LAST:08d}" in call)

        def strike(case):
            action, (at, call) = case
            with bench.world(template) as world, bench.case(f"{action} at call {at} of {len(calls)}, {call}"):
                done = world.resume(*going_on, faults=[f"checkpoints|*|{at}|1|{action}"])
                check_went_on(world, states, done, action, in_the_last_save=at >= last_save)

        for action in ("ENOSPC", "EIO", "EINTR", "short", "zero"):
            struck = [item for item in enumerate(calls, 1) if action not in OF_WRITES or item[1].startswith("write")]
            bench.for_each([(action, item) for item in bench.spread(struck, reduced)], strike)


@test("ENOSPC, EIO, EINTR, short and empty writes at every call of the logs", full=0, reduced=4)
def errors_in_the_logs(bench, reduced):
    with bench.world() as template:
        assert template.train(INTERVAL, "--use_tensorboard", freq=INTERVAL).code == 0
        with bench.world() as world:
            assert world.train(LAST, "--use_tensorboard", freq=INTERVAL).code == 0
            states = {step: state_of(path) for step, path in world.checkpoints().items()}
        with bench.world(template) as world:
            assert world.resume("--max_steps", str(LAST), faults=["runs|*|0|0|EIO"], log="calls").code == 0
            calls = [line.split(" ", 1)[1].strip() for line in open(world.path("calls"))]

        def strike(case):
            action, times, (at, call) = case
            name = f"{action} {'from' if times == 0 else 'at'} call {at} of {len(calls)} on, {call}"
            with bench.world(template) as world, bench.case(name):
                done = world.resume("--max_steps", str(LAST), faults=[f"runs|*|{at}|{times}|{action}"])
                check_went_on(world, states, done, action)
                assert done.error.count("warning") <= 2, f"said more than once a file: {done.error}"

        for action, times in (("ENOSPC", 1), ("EIO", 1), ("ENOSPC", 0), ("EINTR", 1), ("short", 1), ("zero", 0)):
            struck = [item for item in enumerate(calls, 1) if action not in OF_WRITES or item[1].startswith("write")]
            bench.for_each([(action, times, item) for item in bench.spread(struck, reduced)], strike)


@test("a disk that stays full from some call on", full=0, reduced=3)
def full_for_good(bench, reduced):
    with bench.world() as template:
        states = prepare(bench, template)
        going_on = ["--max_steps", str(LAST)]
        calls = calls_of(bench, template, going_on, ())
        writes = [item for item in enumerate(calls, 1) if item[1].startswith("write") and ".tmp-" in item[1]]

        def strike(item):
            at, call = item
            with bench.world(template) as world, bench.case(f"ENOSPC from call {at} of {len(calls)} on, {call}"):
                done = world.resume(*going_on, faults=[f"checkpoints|write|{1 + sum(i < at for i, _ in writes)}|0|ENOSPC"])
                assert done.code == 8 or LAST in world.checkpoints(), done  # where only a marker is missing, all is there
                assert done.last_step() == LAST, f"training did not go on: {done}"
                check_went_on(world, states, done, "ENOSPC", in_the_last_save=True)
                with bench.world(template) as strict:
                    done = strict.resume(*going_on, "--strict_saves", faults=["step_00000008.tmp-|write|1|0|ENOSPC"])
                    assert done.code == 8 and done.last_step() < LAST, done

        bench.for_each(bench.spread(writes, reduced), strike)


@test("a disk that takes no byte and reports no error", full=0, reduced=1)
def empty_writes_for_ever(bench, _):
    with bench.world() as world, bench.case("write returns 0 from the first checkpoint on"):
        done = world.train(4, faults=["checkpoints|write|1|0|zero"])
        assert done.code == 8 and re.search(r"^error: [^\n]+\n\Z", done.error, re.MULTILINE), done
    with bench.world() as world, bench.case("write returns 0 in a log: the run goes on"):
        done = world.train(4, faults=["runs|write|2|0|zero"])
        assert done.code == 0 and 4 in world.checkpoints() and "cannot write" in done.out + done.error, done


@test("a tiny tmpfs, full after the first save, then larger", full=10, reduced=1)
def tiny_file_system(bench, times):
    if os.geteuid() != 0:
        bench.note("tiny_file_system: skipped, mounting needs root")
        return
    with bench.world() as world:
        os.mkdir(world.path("checkpoints"))
        for _ in range(times):
            mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", world.path("checkpoints")],
                                   capture_output=True, text=True)
            if mount.returncode != 0:
                bench.note("tiny_file_system: skipped, " + mount.stderr.strip())
                return
            try:
                with bench.case("8 MiB for checkpoints of 5 MB"):
                    done = world.train(10, freq=4)
                    assert done.code == 8, done
                    assert done.last_step() == 10, f"training did not go on: {done}"
                    assert set(world.checkpoints()) == {4}, world.checkpoints()
                    subprocess.run(["mount", "-o", "remount,size=64m", world.path("checkpoints")], check=True)
                    done = world.resume()
                    assert done.code == 0 and done.resumed_at() == 4 and 10 in world.checkpoints(), done
            finally:
                subprocess.run(["umount", "-l", world.path("checkpoints")], check=False)
            subprocess.run(["rm", "-rf", world.path("runs")], check=False)


@test("the folder of checkpoints or logs removed under a run", full=5, reduced=1)
def folders_removed(bench, times):
    for _ in range(times):
        for folder, more in (("checkpoints", []), ("runs", ["--use_tensorboard"])):
            with bench.world() as world, bench.case(f"rm -rf {folder} at step 6 of 14"):
                # The pause is long enough for the removal: the shim stops the run where it logs step 6.
                process = world.start(*TINY, *FOLDERS, "--run_name", "run", "--max_steps", "14", "--checkpoint_freq", "4", *more,
                                      faults=["metrics.jsonl|write|7|1|pause:1500000"])
                for line in process.stdout:
                    if line.startswith("step    6 "):
                        break
                subprocess.run(["rm", "-rf", world.path(folder)], check=True)
                done = world.finish(process)
                assert done.code == 0, done
                assert 14 in world.checkpoints(), f"the last checkpoint is missing: {done}"
                assert re.search("warning|cannot|removed|gone", done.error + done.out), f"nobody was told: {done}"

