"""The machine stops at every single call of a save: what was there before or what came after loads, and nothing between them."""
from harness import difference, state_of, test

INTERVAL = 4
NFS = "checkpoints|renameat2|1|0|EINVAL"  # a file system that cannot exchange two names
# The last evaluation comes after the last save that was due: a best there is saved over the folder of the same step.
EVALUATED = ["--val_data", "val.bin", "--eval_freq", "1000", "--eval_sequences", "4"]


def prepare(bench, world, *more):
    """A run with one checkpoint in `world`; {step: state} of an undisturbed run beyond it."""
    done = world.train(INTERVAL, *more, "--no-use_tensorboard", freq=INTERVAL)
    assert done.code == 0, done
    with bench.world() as undisturbed:
        done = undisturbed.train(2 * INTERVAL + 2, *more, "--no-use_tensorboard", freq=INTERVAL)
        assert done.code == 0, done
        return {step: state_of(path) for step, path in undisturbed.checkpoints().items()}


def calls_of(bench, template, arguments, faults):
    """[CALL PATH] of an undisturbed run's calls on the checkpoints, of the process with most of them."""
    with bench.world(template) as world:
        done = world.resume(*arguments, faults=["checkpoints|*|0|0|crash", *faults], log="calls")
        assert done.code == 0, done
        calls = {}
        with open(world.path("calls")) as lines:
            for line in lines:
                process, call = line.rstrip("\n").split(" ", 1)
                calls.setdefault(process, []).append(call)
        return max(calls.values(), key=len)


def check_old_or_new(world, states, *resume):
    for step, path in world.checkpoints().items():
        assert not difference(state_of(path), states[step]), f"{path}: {difference(state_of(path), states[step])}"
    newest = max(world.checkpoints(), default=None)
    done = world.resume(*resume, "--max_steps", str(2 * INTERVAL + 2))
    assert done.code == 0, done
    assert done.resumed_at() in (INTERVAL, 2 * INTERVAL), done
    assert newest is None or done.resumed_at() == newest, f"step {newest} was there: {done}"
    last = 2 * INTERVAL + 2
    changed = difference(state_of(world.checkpoints()[last]), states[last])
    assert not changed, f"step {last} differs: {changed}"


def crash_everywhere(bench, reduced, ranks, action="crash", faults=(), more=()):
    gpus = ["--gpus", str(ranks)] if ranks > 1 else []
    more = [*more, *(["--batch_size", "1"] if ranks > 1 else []), *gpus]
    with bench.world() as template:
        states = prepare(bench, template, *more)
        going_on = ["--max_steps", str(2 * INTERVAL), *gpus]
        calls = calls_of(bench, template, going_on, faults)

        def strike(numbered_call):
            at, call = numbered_call
            with bench.world(template) as world, bench.case(f"{action} at call {at} of {len(calls)}, {call}"):
                world.resume(*going_on, faults=[*faults, f"checkpoints|*|{at}|1|{action}"])
                check_old_or_new(world, states, *gpus)

        bench.for_each(bench.spread(enumerate(calls, 1), reduced), strike)


@test("a crash at every call of the save path, 1 rank", full=0, reduced=10)
def crash_one_rank(bench, reduced):
    crash_everywhere(bench, reduced, 1)


@test("a crash at every call of the save path, 2 ranks", full=0, reduced=5)
def crash_two_ranks(bench, reduced):
    crash_everywhere(bench, reduced, 2)


@test("one of two ranks dies at every call of the save path", full=0, reduced=4)
def one_rank_dies(bench, reduced):
    crash_everywhere(bench, reduced, 2, "die")


@test("a crash at every call where a step is saved twice", full=0, reduced=7)
def crash_replacing(bench, reduced):
    crash_everywhere(bench, reduced, 1, more=EVALUATED)


@test("the same without an exchange of names (NFS)", full=0, reduced=7)
def crash_replacing_on_nfs(bench, reduced):
    crash_everywhere(bench, reduced, 1, faults=[NFS], more=EVALUATED)
