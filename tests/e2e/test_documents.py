#!/usr/bin/env python3
"""Runs every command of README.md, data/README.md, docs/*.md and the configs' comments, as a newcomer would type it.

    tests/e2e/test_documents.py TRAINER PREPARE_DATA

Commands are the lines of ```sh blocks and the comments `#   ./...` of the option files. They run in order, each document
in a folder of its own that looks like the tree, with small data where downloads would have put it, and training
commands get a tiny model and few steps. A line is not run if its comment says so (`# needs a GPU`, `# needs a network`,
`# needs a cluster`), or if it builds or tests the tree itself.
"""
import glob
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXCUSE = re.compile(r"#.*\bneeds a (GPU|network|cluster)\b")
BUILDS_OR_TESTS = ("cmake", "ctest", "build/", ".ci/run", "tools/run_tests.py")
STARTS_OF_COMMANDS = ("./", "bin/", "tools/", "make", "cmake", "ctest", "python3 ", "pip ", "mpirun ", "torchrun ", "srun ",
                      "tensorboard ")
TINY = ["--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8", "--batch_size", "2",
        "--target_batch_size", "4", "--eval_sequences", "4", "--sample_tokens", "4",
        "--threads", "1"]
ACTIONS = ("--eval_only", "--help", "--help_all", "--completion", "--man_page", "--list_checkpoints", "--plan", "--print_config",
           "--version")
STEPS = 2
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")


def document(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def commands_of(path):
    """Whole commands with their comments: lines that end in | or \\ go on."""
    if path.endswith(".toml"):
        return re.findall(r"^#   (\./.*)$", document(path), re.MULTILINE)
    commands = []
    for block in re.findall(r"^```sh\n(.*?)^```$", document(path), re.MULTILINE | re.DOTALL):
        whole = re.sub(r"(\\|(?<=\|))\n\s*", " ", block)
        commands += [line for line in whole.splitlines() if line.strip() and not line.startswith("#")]
    return commands


def documents():
    pages = ["README.md", "data/README.md"] + sorted(glob.glob("docs/*.md", root_dir=ROOT))
    return pages + sorted(glob.glob("configs/*.toml", root_dir=ROOT))


class Documents(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_documents_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        self.environment.update(CUDA_VISIBLE_DEVICES="", GPT2_TOKENIZER=TABLES, ASAN_OPTIONS="detect_leaks=0",
                                PYTHONPATH=os.path.join(ROOT, "tests", "stand_ins"),
                                WANDB_STAND_IN=os.path.join(self.folder, "wandb.jsonl"), PYTHONDONTWRITEBYTECODE="1",
                                PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
        for name in ("configs", "tools", "tests/parity", "docs/data", "cmake"):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(self.folder, name))
        shutil.copy(os.path.join(ROOT, "CMakeLists.txt"), self.folder)
        os.makedirs(os.path.join(self.folder, "bin"))
        os.symlink(TRAINER, os.path.join(self.folder, "train_gpt2_fp8"))
        for tool in glob.glob(os.path.join(os.path.dirname(PREPARE_DATA), "*")):
            os.symlink(tool, os.path.join(self.folder, "bin", os.path.basename(tool)))
        if os.path.isdir(os.path.join(ROOT, ".deps")):
            os.symlink(os.path.join(ROOT, ".deps"), os.path.join(self.folder, ".deps"))
        self.steps = STEPS

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def downloads(self, text):
        """What the commands that need a network would have left, in small; rare data sets only where `text` asks for them."""
        speeches = [f"Speaker {number}: a speech of some words, and number {number} of many.\n" for number in range(2400)]
        self.write("input.txt", "\n".join(speeches[:100]))  # TinyShakespeare: blank lines between speeches
        self.write("book1.txt", "".join(speeches[:50]))
        self.write("book2.txt", "".join(speeches[50:100]))
        self.write("data/hellaswag/hellaswag_val.jsonl", '{"ctx": "A dog", "endings": ["runs.", "is a boat."], "label": 0}\n' * 3)
        self.write("hub/input.txt", "\n".join(speeches[:100]))
        hub = {"tinyshakespeare": None, "fineweb-edu": "sample/10BT", "fineweb-edu-100B": "sample/100BT", "openwebtext": "plain_text"}
        for name, folder in hub.items():
            if f'dataset = "{name}"' not in text and name not in ("tinyshakespeare", "fineweb-edu"):
                continue
            if folder:
                self.write(f"hub/{folder}/000_00000.parquet", "".join(speeches))
            self.bash(f"bin/prepare_data --dataset {name} --from hub")

    def bash(self, command):
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=self.folder, env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-2000:]}{done.stderr}")

    def train(self, command):
        words = shlex.split(command, comments=True)
        if any(word in ACTIONS for word in words):
            return self.bash(command)
        extra = ["--max_steps", str(self.steps)]
        if "--resume" in words:
            self.steps += 1
            extra = ["--max_steps", str(self.steps)]
        else:
            extra += TINY
        self.bash(shlex.join(words + extra))

    def serve(self, command):
        """TensorBoard does not end by itself: it is well when it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = shlex.split(command, comments=True)
        if words[0] == "tensorboard":  # the wheel of the tree, where none is installed
            words[0] = shutil.which("tensorboard") or os.path.join(ROOT, ".deps/venv/bin/tensorboard")
        server = subprocess.Popen(words + ["--host", "127.0.0.1", "--port", str(port)], cwd=self.folder,
                                  env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait, 30)
        self.addCleanup(server.terminate)
        for _ in range(120):
            self.assertIsNone(server.poll(), "it ended by itself")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
                    self.assertIn("TensorBoard", page.read().decode())
                return
            except urllib.error.URLError:
                time.sleep(0.5)
        self.fail("no answer from TensorBoard within a minute")

    def run_command(self, command):
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, env=self.environment, check=True,
                           stdout=subprocess.DEVNULL)
        elif words[0].startswith(BUILDS_OR_TESTS) or EXCUSE.search(command):
            return
        elif words[0] in ("tensorboard", "tools/start_tensorboard.sh"):
            if not TENSORBOARD:
                self.skipTest("no tensorboard")
            self.serve(command)
        elif words[0] == "./train_gpt2_fp8":
            self.train(command)
        elif words[0] == "bin/compare" and "--" in words:  # what follows is the trainer's
            self.bash(shlex.join([*words, *TINY, "--max_steps", str(STEPS)]))
        elif words[0] == "bin/doctor":
            self.bash(shlex.join(words + TINY))
        else:
            self.bash(command)

    def run_document(self, path):
        self.downloads(document(path))
        for command in commands_of(path):
            with self.subTest(command):
                self.run_command(command)


def add_tests():
    for path in documents():
        name = "test_" + re.sub(r"\W+", "_", path).lower()
        setattr(Documents, name, lambda self, path=path: self.run_document(path))


class Blocks(unittest.TestCase):
    def test_commands_are_found(self):
        self.assertGreater(len(commands_of("README.md")), 8)
        self.assertGreater(len(commands_of("data/README.md")), 6)
        for path in glob.glob("configs/*.toml", root_dir=ROOT):
            self.assertEqual(len(commands_of(path)), 1, path)

    def test_the_first_commands_are_the_documented_ones(self):
        shown = [shlex.split(command, comments=True) for command in commands_of("README.md")]
        for command in ("./train_gpt2_fp8 --use_fp8 --fp8_format hybrid", "mpirun -np 8 ./train_gpt2_fp8 --use_fp8",
                        "./train_gpt2_fp8 --resume latest", "tensorboard --logdir runs"):
            self.assertIn(command.split(), shown[:6])

    def test_no_command_hides_in_an_indented_block(self):
        for path in documents():
            for line in re.findall(r"^    (\S.*)$", document(path), re.MULTILINE):
                self.assertFalse(line.startswith(STARTS_OF_COMMANDS) and "FILE..." not in line, f"{path}: {line}")


    def test_links_and_named_files_are_there(self):
        pages = [page for page in documents() if page.endswith(".md")]
        for path in pages + ["configs/README.md", "docs/data/README.md", *glob.glob("docs/notes/*.md", root_dir=ROOT)]:
            for target, anchor in re.findall(r"\]\(([^)#: ]*)(?:#([^)]*))?\)", document(path)):
                linked = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
                self.assertTrue(os.path.exists(os.path.join(ROOT, linked)), f"{path}: {target}")
                if anchor:
                    headings = re.findall(r"^#+ (.*)$", document(linked), re.MULTILINE)
                    self.assertIn(anchor, [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], path)
            if path.startswith("docs/notes/"):
                continue  # a journal keeps the names of its day
            for name in re.findall(r"`((?:engine|kernels|tests|tools|configs|docs)/[\w./-]+\.\w+)`", document(path)):
                self.assertTrue(os.path.exists(os.path.join(ROOT, name)), f"{path}: {name}")


class Troubleshooting(unittest.TestCase):
    """docs/troubleshooting.md knows every exit code, and quotes what the programs really say."""

    def test_every_exit_code_has_a_place(self):
        codes = re.findall(r"^  \w+ = (\d+),", document("engine/base/error.h"), re.MULTILINE)
        self.assertEqual(len(codes), 9)
        sections = re.findall(r"^## (\d+)\b", document("docs/troubleshooting.md"), re.MULTILINE)
        self.assertEqual(sorted(sections), sorted(codes))
        for code in codes:
            self.assertRegex(document("docs/troubleshooting.md"), rf"(?m)^\| {code} \|")

    def test_what_it_quotes_is_said(self):
        sources = [path for pattern in ("engine/**/*.cpp", "engine/**/*.h", "engine/**/*.cu", "kernels/**/*.cu", "tools/**/*")
                   for path in glob.glob(pattern, root_dir=ROOT, recursive=True) if os.path.isfile(os.path.join(ROOT, path))]
        said = re.sub(r'"\s*\n?\s*"', "", "\n".join(map(document, sources)))
        quotes = [quote for cell in re.findall(r"^\| (.*?) \|", document("docs/troubleshooting.md"), re.MULTILINE)
                  for quote in re.findall(r"`([^`]+)`", cell)]
        self.assertGreater(len(quotes), 20)
        for quote in quotes:
            for words in quote.split("..."):
                words = re.sub(r"^[ (,:]+|[ (),:;]+$", "", words)
                self.assertTrue(words in said, f"nobody says {words!r} ({quote})")


if __name__ == "__main__":
    TRAINER, PREPARE_DATA = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    TABLES = os.environ.get("GPT2_TOKENIZER") or os.path.join(ROOT, ".deps", "gpt2_bpe")
    TENSORBOARD = shutil.which("tensorboard") or os.path.exists(os.path.join(ROOT, ".deps/venv/bin/tensorboard"))
    if not os.path.exists(os.path.join(TABLES, "vocab.bpe")):
        print("skipped: no tokenizer tables")
        sys.exit(77)
    add_tests()
    unittest.main(verbosity=1)
