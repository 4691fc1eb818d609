"""kill -9, again and again, at moments that nobody chose; and what the logs look like after it."""
import glob
import json
import os
import shutil

from harness import FOLDERS, test

INTERVAL = 5
LONGEST = 150  # steps of a chain, then a new one begins


def chain(bench, world, kills, more, after):
    """Kills and resumes one run until it has ended or `kills` are used up, with after(world, done) between; those left.

    Every second kill strikes inside a save: the shim starts a clock at a call that touches the folder being written.
    """
    known = {}  # step: loss; whatever is done twice must be done alike
    begun = False
    while kills > 0:
        inside = kills % 2 == 0
        moment = bench.random.randrange(2000) if inside else bench.random.randrange(400_000)
        which = bench.random.randrange(1, 400) if inside else 1
        trigger = f".tmp-|*|{which}|1|crash_after:{moment}" if inside else f"metrics.jsonl|*|1|1|crash_after:{moment}"
        newest = max(world.checkpoints(), default=None)
        if begun and newest is not None:
            done = world.resume(*more, faults=[trigger])
        else:
            shutil.rmtree(world.path("runs"), ignore_errors=True)
            done = world.train(LONGEST, *more, freq=INTERVAL, faults=[trigger])
        begun = True
        with bench.case(f"kill -9 {'inside a save' if inside else 'at a random moment'}, {moment} us after {trigger}"):
            assert done.code in (0, -9), done
            if newest is not None:
                assert done.resumed_at() is None or done.resumed_at() == newest, f"step {newest} was there, {done}"
            losses = world.losses()
            for step, loss in losses.items():
                assert known.setdefault(step, loss) == loss, f"step {step}: {loss}, and {known[step]} before"
            after(world, done)
            reached, saved = max(losses, default=0), max(world.checkpoints(), default=0)
            allowed = 2 * INTERVAL if world.unfinished() else INTERVAL  # a save may run beside the next steps
            assert reached - saved <= allowed, f"{reached} steps were done, {saved} are kept: {done}"
        kills -= 1
        if done.code == 0:
            break
        for step in sorted(world.checkpoints())[:-3]:  # room in memory; the newest ones are what is tested
            shutil.rmtree(world.checkpoints()[step])
    if world.checkpoints():
        with bench.case("the end of a chain"):
            done = world.resume("--max_steps", str(max(world.checkpoints()) + 2))
            assert done.code == 0, done
    return kills


def kill_in_chains(bench, kills, more, after):
    """One chain after the other, as many at a time as there are cores."""
    def share(count):
        while count > 0:
            with bench.world() as world:
                count = chain(bench, world, count, more, after)

    bench.for_each([len(range(i, kills, bench.workers)) for i in range(bench.workers)], share)


@test("kill -9 at random moments, half inside a save", full=1000, reduced=15)
def kill_at_random(bench, kills):
    kill_in_chains(bench, kills, ["--no-use_tensorboard"], lambda world, done: None)


def read_events(folder):
    """{tag: [steps]} as TensorBoard shows them, what a restart took back left out."""
    from tensorboard.backend.event_processing import event_accumulator
    accumulator = event_accumulator.EventAccumulator(folder, size_guidance={event_accumulator.SCALARS: 0}, purge_orphaned_data=True)
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


@test("event file and metrics.jsonl, killed and resumed", full=100, reduced=4)
def logs_after_kills(bench, kills):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        bench.note("logs_after_kills: no tensorboard, metrics.jsonl alone was read")
        tensorboard = None

    def read(world, done):
        for path in glob.glob(world.path("runs/run/*.jsonl")):
            with open(path) as lines:
                text = lines.read()
            for number, line in enumerate(text.splitlines(), 1):
                if number == text.count("\n") + 1:
                    break  # torn by the kill; the next start cuts it off
                json.loads(line)
        if tensorboard and os.path.isdir(world.path("runs/run")):
            for tag, steps in read_events(world.path("runs/run")).items():
                assert len(steps) == len(set(steps)), f"{tag} has a step twice: {steps}"
                assert steps == sorted(steps), f"{tag} goes back: {steps}"

    kill_in_chains(bench, kills, ["--use_tensorboard"], read)


@test("two runs of one name in turn keep their logs apart", full=5, reduced=1)
def logs_of_a_branch(bench, times):
    for _ in range(times):
        with bench.world() as world, bench.case("an earlier step resumed"):
            assert world.train(12, "--use_tensorboard").code == 0
            before = open(world.path("runs/run/metrics.jsonl")).read()
            done = world.run(*FOLDERS, "--resume", "checkpoints/run/step_00000004")
            assert done.code == 0, done
            assert open(world.path("runs/run/metrics.jsonl")).read() == before, "the old branch's metrics.jsonl was changed"
            assert set(world.checkpoints()) >= {4, 8, 12}
