#!/usr/bin/env python3
"""Many ranks of the CPU engine, started in every way there is, against one. Usage: ranks.py PROGRAM [--times N]

Ranks exchange over real sockets; mpirun and torchrun are the real ones where they are installed. --times: how often a rank
is killed and how often one is stopped (3; `make faults` asks for 20).
"""
import contextlib
import glob
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
TIMES = 3
if "--times" in sys.argv:
    at = sys.argv.index("--times")
    TIMES = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]

STEPS = 20
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_", "GPT2_", "TORCHELASTIC_")
# A low rate, at which rounding noise grows little in 20 steps. FP32 then agrees to 1e-4 everywhere. In FP8 a sum in another order can
# round one value differently, and Adam's first steps amplify that: losses and norms differ by up to 3e-4, depending on the CPU. A
# gradient that a rank loses or counts twice changes the norm of step 1 by more than 0.1.
COMMON = ["--device", "cpu", "--layers", "2", "--heads", "2", "--channels", "64", "--seq_len", "32", "--target_batch_size", "12",
          "--max_steps", str(STEPS), "--max_lr", "1e-5", "--eval_freq", "10", "--eval_sequences", "22", "--sample_tokens", "0",
          "--checkpoint_freq", "0", "--no-save_best", "--no-use_tensorboard", "--threads", "1", "--log_freq", "1", "--nccl_timeout", "60"]
STEP = re.compile(r"^step +(\d+) \| epoch .*loss: ([\d.]+) .*norm: ([\d.]+)", re.MULTILINE)
VALIDATION = re.compile(r"^step (\d+) \| val loss: ([\d.]+)", re.MULTILINE)


def numbers(out):
    """{step: loss}, {step: validation loss} and {step: gradient norm} of what a run printed."""
    return ({int(step): float(loss) for step, loss, _ in STEP.findall(out)},
            {int(step): float(loss) for step, loss in VALIDATION.findall(out)},
            {int(step): float(norm) for step, _, norm in STEP.findall(out)})


def torchrun():
    """The command, where there is one that works: that of Debian 12 (torch 1.13 under Python 3.11) does not."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-m", "torch.distributed.run", "--no_python"]
        if subprocess.run([*command, "--nproc_per_node=1", "true"], capture_output=True).returncode == 0:
            return command
    return None


class Ranks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ranks_")
        self.runs = 0
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        self.environment.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.environment.setdefault("ASAN_OPTIONS", "detect_leaks=0")
        self.addCleanup(self.check_nothing_left)

    def check_nothing_left(self):
        left = subprocess.run(["pgrep", "-f", self.folder], capture_output=True, text=True).stdout.split()
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        self.assertEqual(left, [], "processes were left behind")

    def arguments(self, ranks, *more, name=None):
        # --log_dir names the folder, so that a process left behind can be told
        self.runs += 1  # a name that is taken is refused
        return [*COMMON, "--batch_size", str(12 // ranks), "--run_name", name or f"run{self.runs}", "--log_dir", self.folder + "/runs",
                "--checkpoint_dir", self.folder + "/checkpoints", *more]

    def run_to_end(self, command, code=0, **environment):
        done = subprocess.run(command, cwd=self.folder, env={**self.environment, **environment}, capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, code, done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout + (done.stderr if code else "")

    def with_gpus(self, ranks, *more, code=0, name=None):
        start = ["--gpus", str(ranks)] if ranks > 1 else []
        return self.run_to_end([PROGRAM, *self.arguments(ranks, *more, name=name), *start], code)

    def start_each(self, ranks, *more, environment=lambda rank: {}, flags=lambda rank: []):
        """One process a rank, as any launcher would: [Popen]."""
        processes, arguments = [], self.arguments(ranks, *more)
        for rank in range(ranks):
            processes.append(subprocess.Popen([PROGRAM, *arguments, *flags(rank)], cwd=self.folder,
                                              env={**self.environment, **environment(rank)}, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True))
        self.addCleanup(lambda: [p.kill() for p in processes if p.poll() is None])
        return processes

    @staticmethod
    def torchrun_words(ranks, port):
        return lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost",
                             "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"test{os.getpid()}"}

    def end_of(self, processes, limit):
        """[(code, stdout, stderr, seconds until the end)], all within `limit` seconds."""
        begin, ends = time.monotonic(), []
        for process in processes:
            try:
                out, error = process.communicate(timeout=max(0.1, limit - (time.monotonic() - begin)))
            except subprocess.TimeoutExpired:
                self.fail(f"rank {processes.index(process)} still runs after {limit} s")
            ends.append((process.returncode, out, error, time.monotonic() - begin))
        return ends

    def assert_like_one_rank(self, out, of_one, tolerance=1e-4, at_first=None):
        """Losses and gradient norms within `tolerance`; those of step 1, before any update, within `at_first` if given."""
        for mine, expected in zip(numbers(out), numbers(of_one)):
            self.assertEqual(sorted(mine), sorted(expected))
            for step, value in expected.items():
                delta = at_first if at_first and step == 1 else tolerance
                self.assertAlmostEqual(mine[step], value, delta=delta + 1e-9, msg=f"step {step}")
        self.assertIn(STEPS, numbers(out)[0])

    # ---- the same losses ----

    def test_every_number_of_ranks_and_precision(self):
        for precision, tolerance in (("fp32", 1e-4), ("fp8", 2e-3)):
            one = self.with_gpus(1, "--precision", precision)
            for ranks in (2, 3, 4):
                with self.subTest(precision=precision, ranks=ranks):
                    self.assert_like_one_rank(self.with_gpus(ranks, "--precision", precision), one, tolerance, at_first=1e-4)

    def test_every_way_to_share_the_work(self):
        one = self.with_gpus(1)
        self.assert_like_one_rank(self.with_gpus(3, "--zero", "0"), one)
        self.assert_like_one_rank(self.with_gpus(3, "--grad_reduce", "bf16"), one, 2e-3)  # each part is rounded to 8 bits
        self.assert_like_one_rank(self.with_gpus(2, "--zero", "0", "--grad_reduce", "bf16"), one, 2e-3)
        for recipe in (["--fp8_recipe", "current"], ["--fp8_recipe", "current_grads", "--fp8_current_steps", "3"],
                       ["--fp8_bf16_steps", "3"]):
            recipe = ["--precision", "fp8", *recipe]
            self.assert_like_one_rank(self.with_gpus(2, *recipe), self.with_gpus(1, *recipe), 2e-3)

    def test_the_same_bits_in_every_repetition(self):
        for more in (["--precision", "fp32"], ["--precision", "fp8"], ["--grad_reduce", "bf16"]):
            first, second = self.with_gpus(3, *more), self.with_gpus(3, *more)
            self.assertEqual(numbers(first), numbers(second))

    # ---- every launcher ----

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun")
        one = self.with_gpus(1)
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        out = self.run_to_end(["mpirun", *root, "--oversubscribe", "-np", "2", PROGRAM, *self.arguments(2)])
        self.assert_like_one_rank(out, one)

    def test_torchrun(self):
        command = torchrun()
        if not command:
            self.skipTest("no torchrun that can start `true`")
        one = self.with_gpus(1)
        out = self.run_to_end([*command, "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", PROGRAM,
                               *self.arguments(2)])
        self.assert_like_one_rank(out, one)

    def test_torchruns_words_and_explicit_flags(self):
        one = self.with_gpus(1)
        ends = self.end_of(self.start_each(3, environment=self.torchrun_words(3, 29400)), 120)
        self.assertEqual([end[0] for end in ends], [0, 0, 0], ends)
        self.assert_like_one_rank(ends[0][1], one)
        self.assertEqual("".join(end[1] + end[2] for end in ends[1:]), "")  # rank 0 alone speaks

        meet = "file:" + self.folder + "/meet"
        explicit = lambda rank: ["--ranks", "2", "--rank", str(rank), "--master", meet]
        ends = self.end_of(self.start_each(2, flags=explicit), 120)
        self.assertEqual([end[0] for end in ends], [0, 0], ends)
        self.assert_like_one_rank(ends[0][1], one)

    # ---- checkpoints ----

    def test_any_number_of_ranks_resumes(self):
        one = self.with_gpus(1)
        whole = self.with_gpus(4, "--checkpoint_freq", "10", "--use_tensorboard", "--histogram_freq", "10", name="whole")
        for ranks in (4, 2, 3, 1):
            with self.subTest(ranks=ranks):
                shutil.copytree(self.folder + "/checkpoints/whole/step_00000010",
                                self.folder + f"/checkpoints/go{ranks}/step_00000010")
                start = ["--gpus", str(ranks)] if ranks > 1 else []
                out = self.run_to_end([PROGRAM, "--resume", self.folder + f"/checkpoints/go{ranks}/step_00000010", "--run_name",
                                       f"go{ranks}", "--log_dir", self.folder + "/runs", "--device", "cpu", *start])
                losses, validation, _ = numbers(out)
                expected = numbers(whole if ranks == 4 else one)
                tolerance = 0 if ranks == 4 else 1e-4  # the same ranks go on bit for bit
                for step in range(11, STEPS + 1):
                    self.assertAlmostEqual(losses[step], expected[0][step], delta=tolerance, msg=f"step {step}")
                self.assertAlmostEqual(validation[STEPS], expected[1][STEPS], delta=tolerance)

    # ---- refusals ----

    def test_different_options_on_one_rank(self):
        other = lambda rank: ["--weight_decay", "0.2"] if rank == 1 else []
        ends = self.end_of(self.start_each(2, environment=self.torchrun_words(2, 29411), flags=other), 60)
        self.assertEqual([end[0] for end in ends], [7, 7], ends)
        self.assertRegex(ends[0][2], r"--weight_decay is 0\.2 on rank 1 .* and 0\.1 on rank 0")
        self.assertEqual(ends[1][2], "")  # said once

    def test_nothing_to_resume_is_said_once(self):
        ends = self.end_of(self.start_each(2, environment=self.torchrun_words(2, 29414), flags=lambda rank: ["--resume", "latest"]), 60)
        self.assertEqual([end[0] for end in ends], [4, 4], ends)
        self.assertRegex(ends[0][2], r"\Aerror: .*no checkpoint.*\n\Z")
        self.assertEqual(ends[1][2], "")

    def test_what_all_ranks_refuse_alike_keeps_its_code(self):
        self.with_gpus(2, "--max_steps", "1", name="first")
        tokens = [i % 50000 for i in range(8193)]
        with open(f"{self.folder}/other.bin", "wb") as file:
            file.write(struct.pack("<3i", 20240520, 1, len(tokens)) + bytes(1012) + struct.pack(f"<{len(tokens)}H", *tokens))
        flags = lambda rank: ["--run_name", "first", "--resume", "first", "--train_data", "other.bin", "--max_steps", "2"]
        ends = self.end_of(self.start_each(2, environment=self.torchrun_words(2, 29415), flags=flags), 60)
        self.assertEqual([end[0] for end in ends], [4, 4], ends)
        self.assertIn("was trained on other data", ends[0][2] + ends[1][2])

    def test_a_file_of_somebody_else_is_not_touched(self):
        with open(self.folder + "/thesis.txt", "w") as file:
            file.write("x\n")
        for rank in (0, 1):
            out = self.run_to_end([PROGRAM, *self.arguments(2), "--ranks", "2", "--rank", str(rank), "--master", "file:thesis.txt",
                                   "--nccl_timeout", "2"], code=2)
            self.assertRegex(out, r"\Aerror: thesis\.txt exists and was not written by rank 0 of a job[^\n]* \(give [^\n]*\)\n\Z")
        with open(self.folder + "/thesis.txt") as file:
            self.assertEqual(file.read(), "x\n")

    def test_idle_connections_keep_nobody_out(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 1500:
            self.skipTest(f"only {hard} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (1500, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = [*self.arguments(2, "--max_steps", "2"), "--ranks", "2", "--master", f"127.0.0.1:{port}"]

        def start(rank):
            return subprocess.Popen(["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", PROGRAM, *arguments, "--rank", str(rank)],
                                    cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        processes, idle = [start(0)], []
        self.addCleanup(lambda: [p.kill() for p in processes if p.poll() is None])
        self.addCleanup(lambda: [connection.close() for connection in idle])
        while len(idle) < 1300:
            try:
                idle.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            except ConnectionRefusedError:
                self.assertIsNone(processes[0].poll(), "rank 0 has ended")
                time.sleep(0.01)
        processes.append(start(1))
        ends = self.end_of(processes, 60)
        self.assertEqual([end[0] for end in ends], [0, 0], ends)

    def test_a_signal_while_ranks_meet_leaves_no_file(self):
        meet = self.folder + "/meet"
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start_each(1, "--ranks", "2", "--rank", "0", "--master", "file:" + meet)[0]
            while not os.path.exists(meet):
                self.assertIsNone(process.poll(), "rank 0 has ended")
                time.sleep(0.01)
            process.send_signal(number)
            self.assertEqual(self.end_of([process], 10)[0][0], 75)
            self.assertFalse(os.path.exists(meet))

    def test_a_missing_rank_is_named(self):
        words = self.torchrun_words(3, 29412)
        processes = self.start_each(2, environment=lambda rank: words(rank), flags=lambda rank: ["--nccl_timeout", "2"])
        ends = self.end_of(processes, 60)
        self.assertEqual([end[0] for end in ends], [7, 7], ends)
        self.assertIn("rank 2", ends[0][2])

    def test_a_rank_with_an_error_of_its_own(self):
        data = lambda rank: ["--train_data", "nowhere/*.bin"] if rank == 1 else []
        ends = self.end_of(self.start_each(2, environment=self.torchrun_words(2, 29413), flags=data), 60)
        self.assertEqual([end[0] for end in ends], [7, 3], ends)
        self.assertIn("nowhere", ends[1][2])
        self.assertRegex(ends[0][2], r"rank 1 .*nowhere")

    def test_a_rank_whose_data_turns_out_to_be_bad(self):
        # The same data on both but for token ids that GPT-2 does not have, in sequences that no rank looks at when they compare.
        sequences, length = 4096, 32
        compared = {i * sequences // 64 for i in range(64)}
        tokens = [i * 37 % 1000 for i in range(sequences * length + 1)]
        for rank in (0, 1):
            if rank == 1:
                for sequence in set(range(1, sequences - 1)) - {s + d for s in compared for d in (-1, 0, 1)}:
                    tokens[sequence * length + 5] = 60000
            with open(f"{self.folder}/data{rank}.bin", "wb") as file:
                file.write(struct.pack("<3i", 20240520, 1, len(tokens)) + bytes(1012) + struct.pack(f"<{len(tokens)}H", *tokens))
        ends = self.end_of(self.start_each(2, environment=self.torchrun_words(2, 29414),
                                           flags=lambda rank: ["--train_data", f"data{rank}.bin", "--eval_freq", "0"]), 60)
        self.assertEqual([end[0] for end in ends], [7, 3], ends)  # the cause keeps its code
        self.assertRegex(ends[1][2], r"\Awarning: data1\.bin[^\n]*\nerror: data1\.bin")  # one bad sequence does not end a run
        self.assertRegex(ends[0][2], r"\Aerror: rank 1 .* failed: data1\.bin")

    # ---- faults ----

    LONG = ["--max_steps", "100000", "--eval_freq", "0"]

    def started(self, ranks, *more, port):
        processes = self.start_each(ranks, *self.LONG, *more, environment=self.torchrun_words(ranks, port))
        while True:  # rank 0 prints its steps
            line = processes[0].stdout.readline()
            self.assertNotEqual(line, "", processes[0].stderr.read() if processes[0].poll() is not None else "")
            if line.startswith("step "):
                return processes

    def test_a_killed_rank_ends_all(self):
        for i in range(TIMES):
            victim = i % 3
            with self.subTest(time=i, victim=victim):
                processes = self.started(3, port=29420 + i)
                processes[victim].kill()
                ends = self.end_of(processes, 10)
                for rank, (code, _, error, _) in enumerate(ends):
                    if rank == victim:
                        continue
                    self.assertEqual(code, 7, error)
                    self.assertRegex(error, rf"error: rank {victim} .*died")

    def test_a_stopped_rank_ends_all(self):
        for i in range(TIMES):
            victim = (i + 1) % 3
            with self.subTest(time=i, victim=victim):
                processes = self.started(3, "--nccl_timeout", "3", port=29460 + i)
                processes[victim].send_signal(signal.SIGSTOP)
                ends = self.end_of([p for rank, p in enumerate(processes) if rank != victim], 3 + 10)
                processes[victim].kill()
                for code, _, error, _ in ends:
                    self.assertEqual(code, 7, error)
                    self.assertRegex(error, rf"error: rank {victim} ")
                processes[victim].communicate()

    def test_a_signal_on_one_rank_saves_on_all(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            processes = self.started(3, "--run_name", f"stop{int(number)}", port=29500 + int(number))
            processes[2].send_signal(number)
            ends = self.end_of(processes, 60)
            self.assertEqual([end[0] for end in ends], [75, 75, 75], ends)
            self.assertIn("saved; resume with", ends[0][1])
            saved = os.listdir(self.folder + f"/checkpoints/stop{int(number)}")
            self.assertTrue(any(name.startswith("step_") for name in saved), saved)

    def test_a_signal_because_a_peer_died_saves_nothing(self):
        processes = self.started(3, port=29540)
        processes[1].kill()
        processes[0].send_signal(signal.SIGTERM)  # as mpirun does a second later
        processes[2].send_signal(signal.SIGTERM)
        ends = self.end_of(processes, 10)
        self.assertEqual([ends[0][0], ends[2][0]], [7, 7], ends)
        self.assertEqual(glob.glob(self.folder + "/checkpoints/*/step_*"), [])

    def test_gpus_forwards_a_signal_and_ends_with_its_ranks(self):
        process = subprocess.Popen([PROGRAM, *self.arguments(2, *self.LONG), "--gpus", "2"], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not process.stdout.readline().startswith("step "):
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, out[-500:] + error)


if __name__ == "__main__":
    unittest.main()
