"""Memory that runs out, at any allocation of a run and of a tool: one line and exit code 6, or the work is done; never a crash,
and no checkpoint is lost."""
import os
import re

from harness import FOLDERS, TINY, test

LINE = re.compile(r"^(error|libgomp|OpenBLAS)[^\n]+\n\Z", re.MULTILINE)


def allocations(world, command):
    done = world.run(*command[1:], program=command[0], malloc="0:0", log="mallocs")
    assert done.code == 0, done
    with open(world.path("mallocs")) as lines:
        count = max(int(line.split()[2]) for line in lines)
    os.remove(world.path("mallocs"))
    return count


def check(done):
    assert done.code >= 0, f"a crash by signal {-done.code}: {done}"
    assert "this is a bug" not in done.error, done
    if done.code == 0:
        return
    assert LINE.search(done.error), f"no line: {done}"
    assert done.code == 6, done


@test("malloc fails once, or from some call on: training, resuming, tools", full=60, reduced=3)
def out_of_memory(bench, cases):
    tool = os.path.join(bench.build, "bin")
    train = [bench.program, *TINY, *FOLDERS, "--run_name", "run", "--max_steps", "4", "--checkpoint_freq", "2"]
    with bench.world() as template:
        assert template.train(4, freq=2).code == 0
        with open(template.path("text.txt"), "w") as file:
            file.write("Some text of a few words.\n" * 200)
        commands = {
            "train": train,
            "resume": [bench.program, "--resume", "latest", *FOLDERS, "--max_steps", "6"],
            "prepare_data": [os.path.join(tool, "prepare_data"), "text.txt", "-o", "out", "-j", "2"],
            "report": [os.path.join(tool, "report"), "run", "-o", "page.html"],
            "ckpt": [bench.ckpt, "verify", "checkpoints/run"],
        }
        strikes = []
        for name, command in commands.items():
            with bench.world(None if name == "train" else template) as world:
                count = allocations(world, command)
            places = [1 + i * (count - 1) // max(1, cases - 1) for i in range(cases)]
            strikes += [(name, command, at, i % 2) for i, at in enumerate(places)]

        def strike(case):
            name, command, at, times = case
            with bench.world(None if name == "train" else template) as world, bench.case(
                    f"{name}: allocation {at} {'fails' if times else 'and all that follow fail'}"):
                done = world.run(*command[1:], program=command[0], malloc=f"{at}:{times}")
                check(done)
                if name == "resume":
                    assert done.resumed_at() in (None, 4), f"a good checkpoint was passed over: {done}"
                    again = world.resume("--max_steps", "8")
                    assert again.code == 0 and again.resumed_at() >= 4, f"afterwards: {again}"

        bench.for_each(strikes, strike)
