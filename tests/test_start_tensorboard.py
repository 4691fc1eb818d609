#!/usr/bin/env python3
"""tools/start_tensorboard.sh with stand-ins for what it starts and installs; e2e/test_documents.py starts the real one."""
import os
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools", "start_tensorboard.sh")
SAYS_ARGUMENTS = '#!/bin/sh\necho "{name}:" "$@"\n'


class StartTensorboard(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_tensorboard_")
        self.addCleanup(shutil.rmtree, self.folder)
        os.makedirs(os.path.join(self.folder, "tools"))
        shutil.copy(SCRIPT, os.path.join(self.folder, "tools"))
        self.program("tools/install_deps.sh", "#!/bin/sh\nexit 1\n")

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def start(self, *arguments):
        path = os.path.join(self.folder, "path") + ":/usr/bin:/bin"
        return subprocess.run(["tools/start_tensorboard.sh", *arguments], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "PATH": path}, timeout=30)

    def test_one_on_the_path_comes_first(self):
        self.program("path/tensorboard", SAYS_ARGUMENTS.format(name="path"))
        self.program(".deps/venv/bin/tensorboard", SAYS_ARGUMENTS.format(name="venv"))
        self.assertEqual(self.start().stdout, "path: --logdir runs\n")

    def test_arguments_are_passed_on(self):
        self.program(".deps/venv/bin/tensorboard", SAYS_ARGUMENTS.format(name="venv"))
        self.assertEqual(self.start("--port", "0").stdout, "venv: --logdir runs --port 0\n")
        self.assertEqual(self.start("--logdir", "elsewhere").stdout, "venv: --logdir elsewhere\n")
        self.assertEqual(self.start("--logdir=elsewhere").stdout, "venv: --logdir=elsewhere\n")

    def test_it_is_installed_if_need_be(self):
        self.program("ready", SAYS_ARGUMENTS.format(name="new"))
        self.program("tools/install_deps.sh", '#!/bin/sh\nmkdir -p .deps/venv/bin && cp ready .deps/venv/bin/"$1"\n')
        done = self.start()
        self.assertEqual((done.returncode, done.stdout), (0, "new: --logdir runs\n"))

    def test_no_network(self):
        done = self.start()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Aerror: there is no tensorboard[^\n]*network[^\n]*\n\Z")


if __name__ == "__main__":
    unittest.main(verbosity=1)
