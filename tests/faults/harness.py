"""What every fault test needs: a tiny run in a folder of its own, faults put into it, and one table at the end.

A test is a function of a Bench, registered with @test; what it strikes are cases, and a case fails by an AssertionError.
"""
import contextlib
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy

LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_", "GPT2_", "TORCHELASTIC_")
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A constant rate: where a run ends does not change its steps, so that any two runs can be compared bit for bit.
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "16",
        "--target_batch_size", "4", "--threads", "1", "--lr_schedule", "constant", "--warmup_steps", "0",
        "--train_data", "train.bin", "--eval_freq", "0", "--sample_tokens", "0", "--histogram_freq", "0", "--log_freq", "1",
        "--nccl_timeout", "20"]
FOLDERS = ["--checkpoint_dir", "checkpoints", "--log_dir", "runs"]
LIMIT = 60  # seconds until a run counts as hanging
STEP_FOLDER = re.compile(r"step_(\d{8})")
# What two runs of the same steps may differ in: names, options, and what an evaluation in between found.
OF_THE_RUN = re.compile(r"run_name|options|written|val_loss|val_step|manifest|time|date|host|program_version")

TESTS = []


def test(title, full, reduced):
    """Registers a test: how many cases, all in all or of each kind, `make faults` and `make test` ask for."""
    def register(function):
        TESTS.append((function.__name__, title, full, reduced, function))
        return function
    return register


class Done:
    def __init__(self, code, out, error, seconds):
        self.code, self.out, self.error, self.seconds = code, out, error, seconds

    def __str__(self):
        last_lines = "\n".join(self.out.splitlines()[-3:])
        return f"exit {self.code} after {self.seconds:.1f} s\n{last_lines}\n{self.error[-600:]}"

    def resumed_at(self):
        found = re.search(r"^resumed \S+ at step (\d+)", self.out, re.MULTILINE)
        return int(found.group(1)) if found else None

    def last_step(self):
        steps = re.findall(r"^step +(\d+) \| epoch", self.out, re.MULTILINE)
        return int(steps[-1]) if steps else 0


def token_shard(name, tokens=8001, highest=2000):
    numbers = random.Random(name)
    ids = [numbers.randrange(highest) for _ in range(tokens)]
    return struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1012) + struct.pack(f"<{len(ids)}H", *ids)


class World:
    """A folder in which runs take place."""

    def __init__(self, bench, folder):
        self.bench, self.folder = bench, folder

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def environment(self, faults=(), log=None, clock=None, malloc=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        environment.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        environment["GPT2_TOKENIZER"] = self.bench.tokenizer
        if faults or clock is not None or malloc is not None:
            environment.update(LD_PRELOAD=self.bench.shim, FAULTS=";".join(faults))
        if log:
            environment["FAULTS_LOG"] = self.path(log)
        if clock is not None:
            environment["FAULTS_CLOCK"] = str(clock)
        if malloc is not None:
            environment["FAULTS_MALLOC"] = malloc
        return environment

    def start(self, *arguments, faults=(), log=None, clock=None, malloc=None, program=None, before=()):
        """In a process group of its own, which a `crash` takes down whole."""
        return subprocess.Popen([*before, program or self.bench.program, *arguments], cwd=self.folder, text=True,
                                env=self.environment(faults, log, clock, malloc), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)

    def finish(self, process, limit=LIMIT):
        begin = time.monotonic()
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, error = process.communicate()
            raise AssertionError(f"still running after {limit} s: {out[-500:]} {error[-500:]}") from None
        return Done(process.returncode, out, error, time.monotonic() - begin)

    def run(self, *arguments, limit=LIMIT, **how):
        return self.finish(self.start(*arguments, **how), limit)

    def train(self, steps, *more, freq=4, **how):
        return self.run(*TINY, *FOLDERS, "--run_name", "run", "--max_steps", str(steps), "--checkpoint_freq", str(freq),
                        *more, **how)

    def resume(self, *more, **how):
        return self.run("--resume", "latest", *FOLDERS, *more, **how)

    # ---- what is on the disk ----

    def checkpoints(self):
        """{step: folder} of those whose name says that they are whole, over all runs."""
        found = {}
        for path in glob.glob(self.path("checkpoints", "**", "step_*"), recursive=True):
            if STEP_FOLDER.fullmatch(os.path.basename(path)):
                found[int(STEP_FOLDER.fullmatch(os.path.basename(path)).group(1))] = path
        return found

    def unfinished(self):
        return glob.glob(self.path("checkpoints", "**", "step_*.tmp-*"), recursive=True)

    def losses(self, run="run"):
        """{step: loss as it is written} of metrics.jsonl; a torn last line is no line."""
        losses = {}
        with contextlib.suppress(FileNotFoundError), open(self.path("runs", run, "metrics.jsonl")) as lines:
            for line in lines:
                if line.endswith("\n") and json.loads(line)["type"] == "step":
                    entry = json.loads(line)
                    assert entry["step"] not in losses, f"step {entry['step']} stands twice in metrics.jsonl"
                    losses[entry["step"]] = entry["loss"]
        return losses


def state_of(checkpoint):
    """{name: digest} of all that must be the same in two checkpoints of the same step."""
    state = {}

    def visit(file, name, item):
        if isinstance(item, h5py.Dataset) and not OF_THE_RUN.search(name):
            value = item[()]
            bytes_of = value.tobytes() if isinstance(value, (numpy.ndarray, numpy.generic)) else bytes(value)
            begin = int(item.attrs.get("begin", 0))
            state[f"{os.path.basename(file)}:{name}:{begin}"] = hashlib.blake2b(bytes_of, digest_size=16).hexdigest()

    for path in sorted(glob.glob(checkpoint + "/*.h5")):
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, item: visit(path, name, item))
    assert state, f"{checkpoint} holds no state"
    return state


def difference(one, other):
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


class Bench:
    def __init__(self, build, full, seed):
        self.build = os.path.abspath(build)
        self.program = os.path.join(self.build, "train_gpt2_fp8")
        self.ckpt = os.path.join(self.build, "bin", "ckpt")
        self.shim = os.path.join(self.build, "tests", "fault_shim.so")
        self.tokenizer = os.path.join(os.environ.get("GPT2_DEPS_DIR", os.path.join(REPOSITORY, ".deps")), "gpt2_bpe")
        self.full, self.random = full, random.Random(seed)
        self.count = self.passed = 0
        self.failures, self.notes = [], []
        memory = "/dev/shm"  # no disk wears out, and no test waits for one
        roomy = os.path.isdir(memory) and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
        self.root = tempfile.mkdtemp(prefix="gpt2_faults_", dir=memory if roomy else None)
        self.worlds = 0
        self.lock = threading.Lock()
        self.workers = os.cpu_count()

    @contextlib.contextmanager
    def world(self, template=None):
        """A new folder, as `template` is if given."""
        with self.lock:
            self.worlds += 1
            folder = os.path.join(self.root, f"w{self.worlds}")
        if template:
            shutil.copytree(template.folder, folder, symlinks=True)
        else:
            os.mkdir(folder)
            for name in ("train", "val"):
                with open(os.path.join(folder, name + ".bin"), "wb") as file:
                    file.write(token_shard(name))
        try:
            yield World(self, folder)
        finally:
            subprocess.run(["chmod", "-R", "u+rwX", folder], stderr=subprocess.DEVNULL)
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def case(self, name):
        try:
            yield
            why = None
        except (AssertionError, OSError, ValueError, KeyError) as failure:
            why = str(failure) or repr(failure)
        with self.lock:
            self.count += 1
            if why is None:
                self.passed += 1
            else:
                self.failures.append((name, why))

    def for_each(self, items, function):
        """function(item) for all of them, on all cores."""
        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(function, items))

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def spread(self, items, reduced):
        """All of them in a full bench; otherwise `reduced`, spread evenly, the first and the last among them."""
        items = list(items)
        if self.full or len(items) <= reduced:
            return items
        return [items[round(i * (len(items) - 1) / (reduced - 1))] for i in range(reduced)]


def run_tests(bench, wanted, count=None):
    """The table; True if every case passed."""
    rows, failures = [], []
    unknown = set(wanted) - {name for name, *_ in TESTS}
    if unknown:
        sys.exit(f"error: no test {', '.join(sorted(unknown))} (hint: {', '.join(name for name, *_ in TESTS)})")
    try:
        for name, title, full, reduced, function in TESTS:
            if wanted and name not in wanted:
                continue
            bench.count = bench.passed = 0
            bench.failures = []
            begin = time.monotonic()
            try:
                function(bench, count or (full if bench.full else reduced))
            except AssertionError as failure:  # of what the cases stand on
                bench.count += 1
                bench.failures.append(("its preparation", str(failure)))
            rows.append((name, title, bench.count, bench.passed, time.monotonic() - begin))
            failures += [(name, *failure) for failure in bench.failures]
            print(f"{name}: {bench.passed} of {bench.count}, {rows[-1][-1]:.1f} s", flush=True)
    finally:
        shutil.rmtree(bench.root, ignore_errors=True)
    print()
    width = max(len(title) for _, title, *_ in rows)
    print(f"{'test':{width}} {'cases':>7} {'passed':>7} {'seconds':>8}")
    for _, title, count, passed, seconds in rows:
        print(f"{title:{width}} {count:7} {passed:7} {seconds:8.1f}{'' if passed == count else '   FAILED'}")
    for note in bench.notes:
        print("note: " + note)
    shown = {}
    for name, case, why in failures:
        shown[name] = shown.get(name, 0) + 1
        if shown[name] <= 8:
            print(f"\nFAILED {name}: {case}\n" + "\n".join("    " + line for line in why.strip().splitlines()[:12]))
        elif shown[name] == 9:
            print(f"\nFAILED {name}: and more of them")
    return not failures
