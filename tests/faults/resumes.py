"""A run that is cut anywhere and resumed ends with the same bits as one that never stopped."""
from harness import difference, state_of, test

SCHEDULE = ["--lr_schedule", "cosine", "--warmup_steps", "10",
            "--val_data", "val.bin", "--eval_freq", "20", "--eval_sequences", "4"]


def stop_after(step):
    """SIGTERM at a write to metrics.jsonl: about that step, a little before it where other lines stand between."""
    return f"metrics.jsonl|write|{step + 1}|1|signal:15"


def resume_everywhere(bench, cuts, precision):
    steps = 200 if bench.full else 50
    more = [*SCHEDULE, "--precision", precision, "--no-use_tensorboard"]
    with bench.world() as whole:
        done = whole.train(steps, *more, freq=0)
        assert done.code == 0, done
        losses, state = whole.losses(), state_of(whole.checkpoints()[steps])
    assert sorted(losses) == list(range(1, steps + 1))

    def cut(at):
        with bench.world() as world, bench.case(f"{precision}, cut at about step {at}"):
            done = world.train(steps, *more, freq=0, faults=[stop_after(at)])
            assert done.code == 75, done
            done = world.resume()
            assert done.code == 0 and done.resumed_at() is not None, done
            assert 0 < done.resumed_at() < steps, done
            assert world.losses() == losses, [s for s in losses if losses[s] != world.losses().get(s)]
            changed = difference(state_of(world.checkpoints()[steps]), state)
            assert not changed, changed

    bench.for_each([steps // 2, *(bench.random.randrange(1, steps - 2) for _ in range(cuts))], cut)


@test("resume: a whole run against cuts in its middle and at random, FP32", full=10, reduced=1)
def resume_fp32(bench, cuts):
    resume_everywhere(bench, cuts, "fp32")


@test("resume: a whole run against cuts in its middle and at random, emulated FP8", full=10, reduced=1)
def resume_fp8(bench, cuts):
    resume_everywhere(bench, cuts, "fp8")
