"""Every signal in every phase: saved, exit 75, soon; a second one in a save ends it at once and costs nothing that was saved."""
import os
import signal
import time

from harness import FOLDERS, test, token_shard

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
SOON = 20  # seconds for a run of 100,000 steps to come to its end, start included, on a busy machine
AT_ONCE = 10
INTERVAL = 4

# phase: options, and the call at which the shim sends the signal; {} is the action
PHASES = {
    "start": ([], "train.bin|open|1|1|{}"),
    "first step": ([], "metrics.jsonl|write|1|1|{}:3000"),
    "step": ([], "metrics.jsonl|write|7|1|{}:4000"),
    "evaluation": (["--val_data", "val.bin", "--eval_freq", "6", "--eval_sequences", "400"], "metrics.jsonl|write|7|1|{}:30000"),
    "sampling": (["--sample_freq", "6", "--sample_tokens", "200"], "metrics.jsonl|write|7|1|{}:30000"),
    "saving": ([], "step_00000008.tmp-|write|40|1|{}"),
    "markers": ([], "latest|write|2|1|{}"),
    "end": (["--max_steps", "8"], "step_00000008.tmp-|*|9|1|{}"),
    "last moment": (["--max_steps", "8"], ".lock|unlink|1|1|{}"),
}


def check_saved(world, done, nothing_done=False):
    losses = world.losses()
    if nothing_done:
        assert not world.checkpoints() and "nothing to save" in done.out + done.error, done
        return
    reached, saved = max(losses), max(world.checkpoints(), default=0)
    assert saved == reached, f"{reached} steps were done, {saved} are saved: {done}"
    again = world.resume("--max_steps", str(saved + 1))
    assert again.code == 0 and again.resumed_at() == saved, again


@test("each signal in each phase", full=20, reduced=1)
def each_signal_in_each_phase(bench, times):
    phases = dict(PHASES)
    if not os.path.isdir(bench.tokenizer):
        del phases["sampling"]
        bench.note("each_signal_in_each_phase: no BPE tables, nothing is sampled")

    def strike(case):
        number, (phase, (more, rule)) = case
        with bench.world() as world, bench.case(f"{signal.Signals(number).name} in phase {phase}"):
            begin = time.monotonic()
            done = world.train(100_000, "--no-use_tensorboard", *more, freq=INTERVAL, faults=[rule.format(f"signal:{int(number)}")])
            took = time.monotonic() - begin
            finished = "--max_steps" in more and done.code == 0
            assert done.code == 75 or finished, done
            assert took < SOON, f"it took {took:.1f} s"
            assert "error" not in done.error, done
            # On the CPU a stop comes between micro-batches: within the first step nothing is done yet.
            check_saved(world, done, nothing_done=phase == "start" or (phase == "first step" and not world.losses()))

    cases = [(number, phase) for number in NUMBERS for phase in phases.items()]
    if not bench.full:  # every phase, every signal, not all pairs
        cases = [(NUMBERS[i % len(NUMBERS)], phase) for i, phase in enumerate(phases.items())]
    bench.for_each(cases * times, strike)


@test("each signal at a random moment of the start", full=20, reduced=2)
def each_signal_at_the_start(bench, times):
    with bench.world() as template:
        assert template.train(INTERVAL, freq=INTERVAL).code == 0
        for number in NUMBERS:
            for _ in range(times):
                delay = bench.random.random() * 0.15
                with bench.world(template) as world, bench.case(f"{signal.Signals(number).name} {delay * 1000:.0f} ms after exec"):
                    process = world.start("--resume", "latest", *FOLDERS, "--max_steps", "100000")
                    time.sleep(delay)
                    process.send_signal(number)
                    done = world.finish(process, SOON)
                    # Before main has begun there is nobody to answer: the signal's own default, and nothing happened yet.
                    assert done.code == 75 or (done.code == -number and not done.out), done
                    again = world.resume("--max_steps", str(max(world.checkpoints()) + 1))
                    assert again.code == 0, again


@test("a signal ends a long step at once, a second one a save", full=20, reduced=1)
def second_signal(bench, times):
    places = {"in a long step": (["--target_batch_size", "20000"], None),
              "twice in a save": ([], "step_00000008.tmp-|write|{}|1|signal:{}")}
    for number in NUMBERS if bench.full else NUMBERS[:2]:
        for name, (more, rule) in places.items():
            for _ in range(times):
                with bench.world() as world, bench.case(f"{signal.Signals(number).name} {name}"):
                    with open(world.path("train.bin"), "wb") as file:
                        file.write(token_shard("train", tokens=400_001))  # enough for a step of a minute
                    assert world.train(INTERVAL, freq=INTERVAL).code == 0
                    begin = time.monotonic()
                    if rule:
                        faults = [rule.format(20, int(number)), rule.format(40, int(number))]
                        done = world.resume("--max_steps", "100000", faults=faults)
                    else:
                        process = world.start("--resume", "latest", *FOLDERS, *more, "--max_steps", "100000")
                        time.sleep(1)
                        process.send_signal(number)  # one is enough: it stops between micro-batches
                        done = world.finish(process, AT_ONCE)
                        assert done.code == 75, done
                    assert done.code in (-number, 75), done
                    assert time.monotonic() - begin < AT_ONCE, done
                    again = world.resume(*(["--target_batch_size", "4"] if more else []), "--max_steps", "9")
                    assert again.code == 0 and again.resumed_at() >= INTERVAL, again
