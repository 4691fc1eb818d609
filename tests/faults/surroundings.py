"""Where a run lives: other programs, folders that cannot be written, links, clocks, limits. One clear line, and nothing lost."""
import os
import re
import shutil
import subprocess
import time

from harness import FOLDERS, TINY, difference, state_of, test


def check_one_clear_line(done, code):
    assert done.code in code, done
    lines = [line for line in done.error.splitlines() if line.startswith("error")]
    assert done.code == 0 or len(lines) == 1, done
    for words in ("this is a bug", "unknown reason", "terminate called", "File exists"):
        assert words not in done.error, done


def check_still_there(world, state):
    changed = difference(state_of(world.checkpoints()[4]), state)
    assert not changed, changed
    done = world.resume("--max_steps", "6")
    assert done.code == 0 and 6 in world.checkpoints(), done


def limited(*limits):
    """A shell that lowers its limits and becomes the program."""
    return ["bash", "-c", "; ".join(limits) + '; exec "$0" "$@"']


@test("two programs on one folder", full=20, reduced=2)
def two_programs(bench, times):
    for _ in range(times):
        with bench.world() as world:
            first = world.start(*TINY, *FOLDERS, "--run_name", "run", "--max_steps", "100000", "--checkpoint_freq", "4")
            for line in first.stdout:
                if line.startswith("step    5 "):
                    break
            with bench.case("the second is refused, and the first goes on"):
                check_one_clear_line(world.train(8), (2, 8))
                assert first.poll() is None
            with bench.case("also where its folder and its lock were removed"):
                shutil.rmtree(world.path("checkpoints", "run"), ignore_errors=True)
                deadline = time.monotonic() + 10
                while not world.checkpoints() and time.monotonic() < deadline:
                    time.sleep(0.01)  # until the first has saved again
                check_one_clear_line(world.train(8, "--log_dir", "other_runs"), (2, 8))
            first.terminate()
            with bench.case("and ends as it should"):
                done = world.finish(first, 20)
                assert done.code == 75, done
                assert world.resume("--max_steps", "1000000", faults=["metrics.jsonl|write|4|1|signal:15"]).code == 75


@test("read-only folders", full=5, reduced=1)
def read_only(bench, times):
    for _ in range(times):
        with bench.world() as world:
            assert world.train(4).code == 0
            state = state_of(world.checkpoints()[4])
            for folder in ("checkpoints", "runs"):
                with bench.case(f"{folder} cannot be written (EROFS)"):
                    done = world.resume("--max_steps", "6", faults=[f"{folder}/|create,mkdir,rename,unlink|1|0|EROFS"])
                    check_one_clear_line(done, (8, 4))
            if os.geteuid() != 0:
                with bench.case("checkpoints/run without permission"):
                    os.chmod(world.path("checkpoints/run"), 0o555)
                    check_one_clear_line(world.resume("--max_steps", "6"), (8,))
                    os.chmod(world.path("checkpoints/run"), 0o755)
            with bench.case("and nothing was lost"):
                check_still_there(world, state)


@test("symlinks, dangling ones too", full=5, reduced=1)
def symlinks(bench, times):
    for _ in range(times):
        with bench.world() as world, bench.case("--checkpoint_dir is a link to a folder"):
            os.mkdir(world.path("elsewhere"))
            os.symlink("elsewhere", world.path("checkpoints"))
            assert world.train(4).code == 0
            assert os.path.islink(world.path("checkpoints")) and os.path.isdir(world.path("elsewhere/run/step_00000004"))
            check_still_there(world, state_of(world.path("elsewhere/run/step_00000004")))
        for name in ("checkpoints", "runs"):
            with bench.world() as world, bench.case(f"{name} is a dangling link"):
                os.symlink("nowhere/at/all", world.path(name))
                done = world.train(4)
                check_one_clear_line(done, (8,))
                assert name in done.error, done
        with bench.world() as world, bench.case("`latest` is a dangling link"):
            assert world.train(4).code == 0
            state = state_of(world.checkpoints()[4])
            for folder in ("checkpoints", "checkpoints/run"):
                if os.path.lexists(world.path(folder, "latest")):
                    os.remove(world.path(folder, "latest"))
                os.symlink("step_99999999", world.path(folder, "latest"))
            check_still_there(world, state)


@test("a clock that goes back", full=40, reduced=3)
def clock(bench, times):
    with bench.world() as undisturbed:
        assert undisturbed.train(8, "--use_tensorboard").code == 0
        state = state_of(undisturbed.checkpoints()[8])
    for _ in range(times):
        looks = bench.random.randrange(60)
        with bench.world() as world, bench.case(f"an hour back after {looks} looks at it"):
            done = world.train(8, "--use_tensorboard", clock=looks)
            assert done.code == 0, done
            assert not difference(state_of(world.checkpoints()[8]), state)
            assert all(seconds >= 0 for seconds in map(float, re.findall(r"dt: (-?[\d.]+)ms", done.out))), done
            done = world.resume("--max_steps", "10", clock=0)
            assert done.code == 0 and done.resumed_at() == 8, done


@test("few file descriptors", full=16, reduced=4)
def few_descriptors(bench, cases):
    with bench.world() as template:
        assert template.train(4).code == 0
        state = state_of(template.checkpoints()[4])
        for limit in [3, 5, 8, 12, 4, 6, 7, 9, 10, 11, 13, 14, 16, 20, 24, 32][:cases]:
            with bench.world(template) as world, bench.case(f"ulimit -n {limit}"):
                done = world.resume("--max_steps", "6", before=limited(f"ulimit -n {limit}"))
                if done.code == 127 or "error while loading shared libraries" in done.error:
                    bench.note(f"few_descriptors: with {limit} the system itself cannot start a program")
                else:
                    check_one_clear_line(done, (0, 6, 7, 8))
                check_still_there(world, state)


@test("little memory", full=12, reduced=3)
def little_memory(bench, cases):
    with bench.world() as template:
        assert template.train(4).code == 0
        state = state_of(template.checkpoints()[4])
        for megabytes in [100, 200, 400, 60, 80, 120, 150, 250, 300, 500, 600, 800][:cases]:
            with bench.world(template) as world, bench.case(f"ulimit -v {megabytes} MiB"):
                done = world.resume("--max_steps", "6", before=limited(f"ulimit -v {megabytes * 1024}"), limit=15)
                if done.code == 127 or "error while loading shared libraries" in done.error:
                    bench.note(f"little_memory: with {megabytes} MiB the system itself cannot start the program")
                else:
                    check_one_clear_line(done, (0, 2, 4, 6, 8))
                check_still_there(world, state)


@test("a shard with a changed bit or cut short under a run", full=300, reduced=6)
def mutated_shards(bench, times):
    """HDF5 shards carry hashes: what differs from them is told, never trained on."""
    prepare_data = os.path.join(bench.build, "bin", "prepare_data")
    if not os.path.exists(prepare_data) or not os.path.isdir(bench.tokenizer):
        bench.note("mutated_shards: skipped, no bin/prepare_data or no BPE tables")
        return
    with bench.world() as template:
        words = [bench.random.choice("the a cat dog sat on and with mat hat".split()) for _ in range(6000)]
        with open(template.path("text.txt"), "w") as file:
            file.write(" ".join(words))
        made = subprocess.run([prepare_data, "text.txt", "--output", "shards", "--format", "h5"], cwd=template.folder,
                              capture_output=True, text=True, env=template.environment())
        assert made.returncode == 0, made.stdout + made.stderr
        name = next(n for n in sorted(os.listdir(template.path("shards"))) if n.endswith(".h5"))
        size = os.path.getsize(template.path("shards", name))
        arguments = [*TINY, *FOLDERS, "--run_name", "run", "--max_steps", "4", "--train_data", f"shards/{name}"]
        with bench.world(template) as world:
            done = world.run(*arguments)
            assert done.code == 0, done
            losses = world.losses()

        def strike(where):
            bit = where % 8
            with bench.world(template) as world, bench.case(f"bit {bit} of byte {where} of {size}"):
                with open(world.path("shards", name), "r+b") as file:
                    file.seek(where)
                    byte = file.read(1)[0]
                    file.seek(where)
                    file.write(bytes([byte ^ 1 << bit]))
                done = world.run(*arguments)
                check_one_clear_line(done, (0, 3))
                assert done.code == 3 or world.losses() == losses, f"it trained on other tokens: {done}"

        bench.for_each([bench.random.randrange(size) for _ in range(times)], strike)
