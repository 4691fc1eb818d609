"""Checkpoints that are not what was written: found before they are used, named, and the newest good one taken instead."""
import os
import shutil
import subprocess

from harness import REPOSITORY, difference, state_of, test

OLD, NEW = 4, 8
FOLDER = f"checkpoints/run/step_{NEW:08d}"


def prepare(template, *more):
    done = template.train(NEW, *more, freq=OLD)
    assert done.code == 0 and set(template.checkpoints()) == {OLD, NEW}, done
    return sorted(os.listdir(template.path(FOLDER)))


def check_named(bench, world, *names, gpus=()):
    """By bin/ckpt and by a resume of that step; `latest` takes the older one and says so."""
    if os.path.exists(bench.ckpt):
        done = world.run("verify", FOLDER, program=bench.ckpt)
        assert done.code == 4 and any(name in done.out + done.error for name in names), done
    done = world.run("--resume", FOLDER, "--log_dir", "runs", "--max_steps", "9", *gpus)
    assert done.code == 4, done
    lines = done.error.splitlines()  # one; of two ranks each may say what it met
    assert 1 <= len(lines) <= (2 if gpus else 1) and all(line.startswith("error: ") for line in lines), done
    assert any(name in done.error for name in names), done
    assert "unknown reason" not in done.error and "this is a bug" not in done.error, done


def check_fallback(world, gpus=()):
    old = state_of(world.checkpoints()[OLD])
    done = world.resume("--max_steps", str(NEW + 1), *gpus)
    assert done.code == 0 and done.resumed_at() == OLD, done
    told = [line for line in (done.out + done.error).splitlines() if f"step_{NEW:08d}" in line and "saved" not in line]
    assert told, f"it does not say what it passed over: {done}"
    assert not difference(state_of(world.checkpoints()[OLD]), old)


def flip(path, bit):
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


@test("single bits flipped in every file, through the program", full=400, reduced=8)
def flipped_bits(bench, times):
    with bench.world() as template:
        files = prepare(template)

        def strike(case):
            name, bit = case
            with bench.world(template) as world, bench.case(f"bit {bit} of {name}"):
                flip(world.path(FOLDER, name), bit)
                check_named(bench, world, name)
                check_fallback(world)

        cases = []
        for i in range(times):
            name = files[i % len(files)]
            cases.append((name, bench.random.randrange(8 * os.path.getsize(template.path(FOLDER, name)))))
        bench.for_each(cases, strike)


@test("files cut short, through the program", full=100, reduced=4)
def truncations(bench, times):
    with bench.world() as template:
        files = prepare(template)

        def strike(case):
            name, size = case
            with bench.world(template) as world, bench.case(f"{name} cut to {size} bytes"):
                os.truncate(world.path(FOLDER, name), size)
                check_named(bench, world, name)
                check_fallback(world)

        names = [files[i % len(files)] for i in range(times)]
        sizes = [bench.random.choice([0, 1, None]) for _ in names]
        cases = []
        for name, size in zip(names, sizes):
            anywhere = bench.random.randrange(os.path.getsize(template.path(FOLDER, name)))
            cases.append((name, anywhere if size is None else size))
        bench.for_each(cases, strike)


@test("missing, extra and swapped rank files, a stale manifest", full=1, reduced=1)
def wrong_files(bench, _):
    gpus = ["--gpus", "2"]
    with bench.world() as template:
        files = prepare(template, *gpus, "--batch_size", "1")
        older = f"checkpoints/run/step_{OLD:08d}"

        def other_rank(world):
            shutil.copy(world.path(FOLDER, "rank_00001.h5"), world.path(FOLDER, "rank_00002.h5"))

        def swapped(world):
            one, two = world.path(FOLDER, "state.h5"), world.path(FOLDER, "rank_00001.h5")
            os.rename(one, one + ".aside")
            os.rename(two, one)
            os.rename(one + ".aside", two)

        def from_older(name):
            return lambda world: shutil.copy(world.path(older, name), world.path(FOLDER, name))

        cases = {f"{name} missing": (lambda world, name=name: os.remove(world.path(FOLDER, name)),
                                     (name, f"at \"{FOLDER}\"") if name == "state.h5" else (name,))
                 for name in files if name != "manifest.json"}
        cases["two ranks' files swapped"] = (swapped, ("state.h5", "rank_00001.h5"))
        cases["a file of an older step"] = (from_older("rank_00001.h5"), ("rank_00001.h5",))
        cases["the state of an older step"] = (from_older("state.h5"), ("state.h5",))
        if "manifest.json" in files:
            cases["the manifest of an older step"] = (from_older("manifest.json"), ("manifest.json", "state.h5"))
            cases["an empty manifest"] = (lambda world: os.truncate(world.path(FOLDER, "manifest.json"), 0), ("manifest.json",))
        else:
            bench.note("wrong_files: there is no manifest.json")

        def strike(item):
            name, (spoil, named) = item
            with bench.world(template) as world, bench.case(name):
                spoil(world)
                check_named(bench, world, *named, gpus=gpus)
                check_fallback(world, gpus=gpus)

        bench.for_each(cases.items(), strike)
        with bench.world(template) as world, bench.case("one rank's file too many"):
            # Every file of the checkpoint is valid. Resuming from an older one would replace it, so `latest` stops here.
            other_rank(world)
            check_named(bench, world, "rank_00002.h5", gpus=gpus)
            done = world.resume("--max_steps", str(NEW + 1), *gpus)
            assert done.code == 4 and "rank_00002.h5" in done.error and "move that file elsewhere" in done.error, done
            os.remove(world.path(FOLDER, "rank_00002.h5"))
            done = world.resume("--max_steps", str(NEW + 1), *gpus)
            assert done.code == 0 and done.resumed_at() == NEW, done
        if "manifest.json" in files:
            with bench.world(template) as world, bench.case("no manifest"):
                os.remove(world.path(FOLDER, "manifest.json"))
                done = world.run("--resume", FOLDER, "--log_dir", "runs", "--max_steps", "9", *gpus)
                assert done.code == 4 and "manifest.json is missing" in done.error, done


@test("every file of every checkpoint damaged: a new start is told", full=5, reduced=1)
def nothing_left(bench, times):
    for _ in range(times):
        with bench.world() as world, bench.case("all damaged"):
            prepare(world)
            for folder in world.checkpoints().values():
                flip(os.path.join(folder, "state.h5"), 8 * (os.path.getsize(os.path.join(folder, "state.h5")) - 100))
            done = world.resume()
            assert done.code == 4 and done.error.startswith("error: "), done


@test("flips, truncations and lost files inside test_manifest", full=1, reduced=0)
def loops_in_test_programs(bench, wanted):
    """tests/test_manifest.cpp damages three ranks' files without a program for each: 10,000 flips, 1,000 truncations."""
    program = os.path.join(bench.build, "tests", "test_manifest")
    if not wanted or not os.path.exists(program):
        return
    with bench.case("10,000 flips and 1,000 truncations"):
        counts = {"GPT2_BIT_FLIPS": "10000", "GPT2_TRUNCATIONS": "1000"}
        done = subprocess.run([program], env={**os.environ, **counts}, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]
