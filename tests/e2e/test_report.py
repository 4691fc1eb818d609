#!/usr/bin/env python3
"""bin/report from outside, its page in a real browser, bin/watch. Usage: test_report.py TRAIN_GPT2_FP8 REPORT WATCH

Without a Chromium the browser's part is skipped. REPORT_SCREENSHOTS=FOLDER keeps pictures of what it saw."""
import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser, find_browser  # noqa: E402
from terminal import Terminal  # noqa: E402

WATCH = os.path.abspath(sys.argv.pop(3))
REPORT = os.path.abspath(sys.argv.pop(2))
PROGRAM = os.path.abspath(sys.argv.pop(1))
TINY = ["--device", "cpu", "--model", "nano", "--layers", "2", "--heads", "1", "--channels", "16", "--seq_len", "16", "--threads", "1",
        "--batch_size", "2", "--target_batch_size", "2", "--eval_sequences", "4", "--no-use_tensorboard", "--max_steps", "60"]
RUNS = {
    "fp8": ["--precision", "fp8", "--fp8_detail", "--histogram_freq", "10", "--eval_freq", "20", "--sample_freq", "20",
            "--sample_tokens", "8", "--checkpoint_freq", "30"],
    "fp32": ["--precision", "fp32", "--eval_freq", "20", "--max_lr", "1e-3", "--sample_tokens", "0"],
    "plain": ["--precision", "fp32", "--eval_freq", "0", "--sample_tokens", "0", "--checkpoint_freq", "0"],
}


def lines_of(path, kind):
    with open(path) as file:
        return [line for line in map(json.loads, file) if line["type"] == kind]


def setUpModule():
    global TRAINED
    TRAINED = tempfile.mkdtemp(prefix="test_report_")
    unittest.addModuleCleanup(shutil.rmtree, TRAINED)
    for name, flags in RUNS.items():
        subprocess.run([PROGRAM, *TINY, "--run_name", name, *flags], cwd=TRAINED, check=True, stdout=subprocess.DEVNULL)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="test_report_")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        shutil.copytree(os.path.join(TRAINED, "runs"), os.path.join(cls.folder, "runs"))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def metrics(self, run, kind):
        return lines_of(self.path("runs", run, "metrics.jsonl"), kind)

    def report(self, *arguments, code=0):
        done = subprocess.run([REPORT, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def fail_with(self, code, *arguments, says):
        error = self.report(*arguments, code=code)
        self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
        self.assertIn(says, error)

    def copy_of(self, run, name):
        """Its metrics alone, as a run of another name; the lines, to be written back."""
        os.makedirs(self.path("runs", name), exist_ok=True)
        with open(self.path("runs", run, "metrics.jsonl")) as file:
            lines = file.readlines()
        self.write(name, lines)
        self.addCleanup(shutil.rmtree, self.path("runs", name))
        return lines

    def write(self, name, lines):
        path = self.path("runs", name, "metrics.jsonl")
        with open(path + ".new", "w") as file:
            file.writelines(lines)
        os.replace(path + ".new", path)  # somebody may be reading

    @contextlib.contextmanager
    def training(self, name):
        """As if a run were writing there."""
        with open(self.path("runs", name, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        os.remove(self.path("runs", name, ".lock"))

    @contextlib.contextmanager
    def started(self, *arguments):
        process = subprocess.Popen([REPORT, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()


class CommandLine(Runs):
    def test_where_it_is_written(self):
        self.assertRegex(self.report("fp8"), r"\Aruns/fp8/report.html: [0-9.]+ KB\n\Z")
        self.report("runs/fp8/", "-o", "a page.html")
        self.report("fp8", "fp32")
        os.symlink("b.html", self.path("link.html"))
        self.report("fp8", "--log_dir", self.path("runs"), "-o", "link.html")
        self.assertTrue(os.path.islink(self.path("link.html")))
        for page in ("runs/fp8/report.html", "a page.html", "runs/report.html", "b.html"):
            with open(self.path(page)) as file:
                text = file.read()
            self.assertTrue(text.endswith("</html>\n"))
            self.assertNotRegex(text, r"(src|href)=[\"']?(https?:)?//")
        self.assertEqual([name for name in os.listdir(self.path("runs/fp8")) if name.startswith("report")], ["report.html"])

    def test_wrong_usage(self):
        self.assertIn("--watch", self.report("--help"))
        self.fail_with(2, "fp8", "--lost", says="--help")
        self.fail_with(2, "fp8", "--watch", "0", says="--watch")
        self.fail_with(2, "fp8", "--serve", "70000", says="not a port")
        self.fail_with(2, "fp8", "--serve", "-o", "x.html", says="--serve writes no file")
        self.fail_with(3, "fp9", says="did you mean fp8?")
        self.fail_with(3, "runs", says="there is no metrics.jsonl in runs")
        self.fail_with(8, "fp8", "-o", "nowhere/page.html", says="nowhere")

    def test_bad_files(self):
        lines = self.copy_of("fp32", "bad")
        self.write("bad", [])
        self.fail_with(3, "bad", says="holds no `run` line")
        with open(self.path("runs/bad/.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a run that has not come to its first line
            self.fail_with(3, "bad", says="is starting and has logged nothing yet")
        os.remove(self.path("runs/bad/.lock"))
        self.write("bad", [*lines[:4], "Killed\n", *lines[4:]])
        self.fail_with(3, "bad", says="runs/bad/metrics.jsonl:5 is not a line of metrics: it is not JSON")
        self.write("bad", [*lines[:4], lines[4][:40]])  # a machine that lost its power, or a line being written
        self.report("bad")

    def test_watch_writes_until_the_run_ends(self):
        lines = self.copy_of("fp32", "watched")
        self.write("watched", lines[:10])
        page = self.path("runs/watched/report.html")
        with self.training("watched"), self.started("watched", "--watch", "0.2") as process:
            self.assertIn("report.html", process.stdout.readline())
            with open(page) as file:
                self.assertIn('"how":"reload"', file.read())
            self.write("watched", lines)
            for _ in range(3):
                process.stdout.readline()
            self.assertIsNone(process.poll())
            os.remove(self.path("runs/watched/.lock"))
            open(self.path("runs/watched/.lock"), "w").close()
            self.assertEqual(process.wait(timeout=60), 0)
        with open(page) as file:
            text = file.read()
        self.assertIn('"how":"none"', text)
        self.assertIn('"state":"done"', text)

    def test_a_file_of_others_stays(self):
        with open(self.path("runs/fp32/metrics.jsonl")) as file:
            before = file.read()
        self.fail_with(2, "fp32", "-o", "runs/fp32/metrics.jsonl", says="metrics.jsonl exists, and it is not a page of bin/report")
        with open(self.path("runs/fp32/metrics.jsonl")) as file:
            self.assertEqual(file.read(), before)
        with open(self.path("thesis.txt"), "w") as file:
            file.write("mine")
        self.fail_with(2, "fp32", "-o", "thesis.txt", says="--overwrite")
        self.report("fp32", "-o", "thesis.txt", "--overwrite")
        self.report("fp32", "-o", "thesis.txt")  # its own

    def test_a_run_named_like_a_mark_of_the_page(self):
        self.copy_of("fp32", "@DATA@")
        self.report("@DATA@")
        with open(self.path("runs/@DATA@/report.html")) as file:
            page = file.read()
        self.assertIn("<title>@DATA@</title>", page)
        data = json.loads(re.search(r'<script type="application/json" id="data">(.*)</script>', page).group(1))
        self.assertEqual(data["runs"][0]["name"], "@DATA@")

    def test_a_line_of_a_gigabyte_names_its_file(self):
        lines = self.copy_of("fp32", "huge")
        os.truncate(self.path("runs/huge/metrics.jsonl"), 1_200_000_000)  # zeros, that take no disk
        self.fail_with(3, "huge", says=f"runs/huge/metrics.jsonl:{len(lines) + 1} is not a line of metrics: it has more than")

    def test_idle_connections_do_not_keep_others_out(self):
        with self.started("--serve", "0", "fp32") as process:
            port = int(re.search(r"127\.0\.0\.1:(\d+)/", process.stdout.readline()).group(1))
            idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
            for connection in idle[::2]:
                connection.send(b"GET / HT")  # half of a request
            begin = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
            connection.request("GET", "/data.json")
            self.assertEqual(connection.getresponse().status, 200)
            self.assertLess(time.monotonic() - begin, 5)  # not the 20 s that an idle one may stay
            for request, status in ((b"GET / HTTP/1.1\r\nhOsT:\tlocalhost:6007\r\n\r\n", b"200"),
                                    (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"403"),
                                    (b"GET / HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", b"403"),
                                    (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:x\r\n\r\n", b"403"),
                                    (b"GET / HTTP/1.1\r\nX-Host: localhost\r\n\r\n", b"403"),
                                    (b"GET / HTTP/1.1\r\n\r\n", b"403"), (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
                                    (b"GET  HTTP/1.1\r\n\r\n", b"405"), (b"\r\n\r\n", b"405"),
                                    (b"GET /" + b"a" * 15000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
                                    (b"A" * 20000, b"431")):
                with socket.create_connection(("127.0.0.1", port), timeout=15) as one:
                    one.sendall(request)
                    self.assertEqual(one.recv(12)[9:12], status, request[:60])
            for one in (*idle, connection):
                one.close()

    def test_served_on_this_machine_alone(self):
        self.copy_of("fp32", "served")
        with self.training("served"), self.started("--serve", "0", "served") as process:
            line = process.stdout.readline()
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])

            def get(path, host=None, method="GET"):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
                return answer.status, body

            status, page = get("/")
            self.assertEqual(status, 200)
            self.assertTrue(page.startswith(b"<!DOCTYPE html>"))
            data = json.loads(get("/data.json")[1])
            self.assertEqual(data["runs"][0]["state"], "running")
            self.assertEqual(get(f"/data.json?have={data['version']}")[0], 204)
            self.assertEqual(get("/etc/passwd")[0], 404)
            self.assertEqual(get("/", host="evil.example")[0], 403)
            self.assertEqual(get("/", method="POST")[0], 405)
            self.fail_with(7, "served", "--serve", str(port), says="is in use")
            with open(self.path("runs/served/metrics.jsonl"), "a") as file:
                file.write("not ours\n")
            status, text = get("/data.json")
            self.assertEqual(status, 503)
            self.assertIn(b"is not a line of metrics", text)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 0)


class States(Runs):
    """What bin/report says about runs that a signal ended."""

    def state_after(self, name, number, *flags, victim=lambda process: process.pid):
        metrics = self.path("runs", name, "metrics.jsonl")
        process = subprocess.Popen([PROGRAM, *TINY, "--run_name", name, "--max_steps", "1000000", "--eval_freq", "0", "--sample_tokens", "0",
                                    "--precision", "fp32", *flags], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(metrics) or len(lines_of_growing(metrics)) < 5:
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        os.kill(victim(process), number)
        process.wait(timeout=60)
        self.report(name)
        with open(self.path("runs", name, "report.html")) as file:
            return re.search(r'"state":"(\w+)"', file.read())[1]

    def test_a_signal_stops_a_run_and_a_kill_fails_it(self):
        self.assertEqual(self.state_after("asked", signal.SIGTERM), "stopped")
        self.assertEqual(self.state_after("killed", signal.SIGKILL), "failed")

    def test_a_killed_rank_fails_the_run(self):
        def rank_1(process):
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                return int(file.read().split()[-1])  # rank 0 is the first child, or the process itself

        self.assertEqual(self.state_after("ranks", signal.SIGKILL, "--gpus", "2", "--batch_size", "1", victim=rank_1), "failed")


def lines_of_growing(path):
    with open(path) as file:
        return file.readlines()


class InTheTerminal(Runs):
    def test_once(self):
        for arguments in (["fp8"], ["--log_dir", self.path("runs")]):  # the newest without a name
            done = subprocess.run([WATCH, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("step 60 of 60 (100.0 %)", done.stdout)
            self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
            self.assertNotIn("\x1b", done.stdout)
        for arguments in (["fp9"], ["--log_dir", "nowhere"]):
            done = subprocess.run([WATCH, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 3)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")

    def test_the_whole_screen_in_color(self):
        for columns, rows in ((80, 24), (120, 40)):
            terminal = Terminal([WATCH, "fp8"], self.folder, {**os.environ, "TERM": "xterm"}, columns, rows)
            self.assertEqual(terminal.end(60), 0)
            self.assertIn("\x1b[32mdone\x1b[0m", terminal.text)
            lines = terminal.lines()
            self.assertEqual(lines.pop(), "")  # the prompt's
            self.assertEqual(len(lines), rows - 1)
            self.assertEqual(max(map(len, lines)), columns)
            for words in ("train loss", "(mean of the last 20 steps)", "validation loss", "gradient norm", "tokens/s", "learning rate", "worst tensor: "):
                self.assertIn(words, "\n".join(lines))
        plain = Terminal([WATCH, "fp8"], self.folder, {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}, 80, 24)
        self.assertEqual(plain.end(60), 0)
        self.assertNotIn("m", "".join(re.findall(r"\x1b\[[0-9;]*([A-Za-z])", plain.text)))

    def test_follows_a_run_until_ctrl_c(self):
        lines = self.copy_of("fp32", "followed")
        self.write("followed", lines[:20])
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        seen = ""

        def wait_for(words):
            nonlocal seen
            deadline = time.monotonic() + 60
            while words not in seen:
                if time.monotonic() > deadline:
                    self.fail(f"no {words!r} in {seen!r}")
                if select.select([leader], [], [], 0.1)[0]:
                    seen += os.read(leader, 1 << 16).decode(errors="replace")

        with self.training("followed"):
            process = subprocess.Popen([WATCH, "followed", "--every", "0.1"], cwd=self.folder, stdin=follower, stdout=follower,
                                       stderr=follower, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"})
            os.close(follower)
            wait_for("running")
            self.assertNotIn("step 60 of 60", seen)
            self.write("followed", lines)
            wait_for("step 60 of 60")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 0)


@unittest.skipUnless(find_browser(), "no Chromium here (tools/install_deps.sh test)")
class InABrowser(Runs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def page(self, *runs, width=1280, dark=False):
        self.report(*runs, "-o", "page.html")
        page = self.browser.page("file://" + self.path("page.html"), width=width, dark=dark)
        self.addCleanup(page.close)
        self.addCleanup(lambda: self.assertEqual(page.problems(), []))
        self.keep(page, "_".join([*runs, str(width)] + ["dark"] * dark))
        return page

    def keep(self, page, name):
        folder = os.environ.get("REPORT_SCREENSHOTS")
        if folder:
            with open(os.path.join(folder, name + ".png"), "wb") as file:
                file.write(page.picture())

    def place(self, page, panel, x, share=0.5):
        """Where in the window a value of the x axis is, at a share of the panel's height."""
        return page.evaluate(f"""(() => {{
            const panel = view.panels.find((p) => p.node.id === "{panel}"), f = panel.frame();
            panel.node.scrollIntoView({{ block: "center" }});
            const box = panel.svg.getBoundingClientRect(), scale = box.width / panel.width;
            return [box.left + f.x({x}) * scale, box.top + (f.top + {share} * (f.bottom - f.top)) * scale];
        }})()""")

    def told(self, page, series):
        return page.evaluate(f"document.querySelector('#tooltip [data-series=\"{series}\"]').textContent")

    def test_asks_for_nothing_and_fits_a_phone(self):
        for runs in (["fp8"], ["fp8", "fp32", "plain"]):
            page = self.page(*runs, width=390)
            self.assertEqual(page.requests(), ["file://" + self.path("page.html")])
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 390)
            cut = page.evaluate("""[...document.querySelectorAll('.plot text')].filter((t) => {
                const box = t.getBoundingClientRect();
                return box.left < 0 || box.right > innerWidth;
            }).map((t) => t.textContent)""")
            self.assertEqual(cut, [])

    def test_values_under_the_cursor_are_those_of_the_metrics(self):
        page = self.page("fp8")
        for step in self.metrics("fp8", "step")[6::19]:
            page.mouse("mouseMoved", *self.place(page, "loss", step["step"]))
            self.assertAlmostEqual(float(self.told(page, "train")), step["loss"], delta=1e-4 * step["loss"])
            self.assertIn(f"step {step['step']} ", page.evaluate("document.getElementById('tooltip').textContent"))
        measured = self.metrics("fp8", "validation")[1]
        page.mouse("mouseMoved", *self.place(page, "loss", measured["step"]))
        self.assertAlmostEqual(float(self.told(page, "validation")), measured["val_loss"], delta=1e-4 * measured["val_loss"])

        worst = max(t["amax"] for t in self.metrics("fp8", "fp8_tensor") if t["step"] == 30 and t["tensor"].startswith("h.1/"))
        page.mouse("mouseMoved", *self.place(page, "heat-amax", 28, share=0.5))  # layers 0, 1 and the head
        self.assertAlmostEqual(float(self.told(page, "amax")), worst, delta=0.06 * worst)  # two digits

    def test_what_gelu_leaves_near_zero_hides_no_other_flushed_tensor(self):
        lines = self.copy_of("fp8", "long")
        tensors = [json.loads(line) for line in lines if '"fp8_tensor"' in line]
        for tensor in tensors:  # as after thousands of steps
            if tensor["tensor"].endswith("fcproj/act"):
                tensor["flushed"] = 0.6
                tensor["gelu_tail"] = tensor["tensor"].startswith("h.1/")  # h.0: by the scale of an outlier
        self.write("long", [line for line in lines if '"fp8_tensor"' not in line] + [json.dumps(t) + "\n" for t in tensors])
        page = self.page("long")
        told = lambda: page.evaluate("document.getElementById('tooltip').textContent")  # noqa: E731
        page.mouse("mouseMoved", *self.place(page, "heat-flushed", 28))
        self.assertNotIn("h.1/fcproj/act", told())
        self.assertIn("h.1/", told())
        page.mouse("mouseMoved", *self.place(page, "heat-flushed", 28, share=0.15))
        self.assertIn("h.0/fcproj/act: 60", told())
        page.evaluate("""(() => {
            const kinds = document.querySelector("#fp8 select");
            kinds.value = "fcproj/act";
            kinds.dispatchEvent(new Event("change"));
        })()""")
        page.mouse("mouseMoved", *self.place(page, "heat-flushed", 28))
        self.assertIn("h.1/fcproj/act: 60", told())  # by itself it is shown

    def test_the_header_in_numbers(self):
        page = self.page("fp8")
        text = page.evaluate("document.getElementById('header').innerText")
        self.assertIn("nano, 2 layers, 16 channels, ", text)
        losses = [step["loss"] for step in self.metrics("fp8", "step")][-20:]
        self.assertIn(f"{sum(losses) / 20:.4f}\nmean of the last 20 steps", text)
        self.assertIn("each cell covers the steps since the previous record", page.evaluate("document.getElementById('fp8').textContent"))
        lines = [json.loads(line) for line in self.copy_of("fp32", "peak")]
        self.write("peak", [json.dumps({**line, "speed_of_light": 0.93} if line["type"] == "step" else line) + "\n" for line in lines])
        page = self.page("peak")
        self.assertIn("tokens/s, 93 % of peak", page.evaluate("document.getElementById('header').textContent"))
        self.assertIn("Share of peak", page.evaluate("document.getElementById('curves').textContent"))

    def test_both_ends_are_smoothed_alike(self):
        page = self.page("fp8")
        noisy = [3 + 0.01 * i + (0.5 if i % 2 else -0.5) for i in range(200)]
        smooth = page.evaluate(f"smoothed({noisy}, 6)")
        turned = page.evaluate(f"smoothed({noisy[::-1]}, 6)")
        for i in range(200):
            self.assertAlmostEqual(smooth[i], turned[199 - i], places=9)
            self.assertAlmostEqual(smooth[i], 3 + 0.01 * i, delta=0.15)  # no end is the raw step, 0.5 away
        line = page.evaluate("smoothed([...Array(50).keys()], 4)")
        for i in range(50):
            self.assertAlmostEqual(line[i], i, places=9)  # no lag
        with_gap = page.evaluate("smoothed([1, 1, null, 1, 1, 1, 1, 1], 2)")
        self.assertEqual([v if v is None else round(v, 9) for v in with_gap], [1, 1, None, 1, 1, 1, 1, 1])

    def test_opens_after_the_first_fall(self):
        page = self.page("fp8")
        high = "view.panels[0].yRange(view.panels[0].frame())[1]"
        first = self.metrics("fp8", "step")[0]["loss"]
        self.assertEqual(page.evaluate("document.querySelector('input[name=loss-axis]:checked').value"), "close")
        self.assertLess(page.evaluate(high), first)
        page.evaluate("document.querySelector('input[value=whole]').click()")
        self.assertGreater(page.evaluate(high), first)

    def test_a_resume_is_labelled(self):
        lines = self.copy_of("fp32", "resumed")
        at = next(i for i, line in enumerate(lines) if '"step":31,' in line)
        self.write("resumed", [*lines[:at], json.dumps({**json.loads(lines[0]), "event": "resume", "step": 30}) + "\n", *lines[at:]])
        page = self.page("resumed")
        self.assertEqual(page.evaluate("[...document.querySelectorAll('#loss .mark-label')].map((t) => t.textContent)"), ["resumed at step 30"])
        self.assertIn("resumed once", page.evaluate("document.getElementById('header').textContent"))

    def test_coinciding_curves_are_told_apart(self):
        self.copy_of("fp32", "twin")
        page = self.page("fp32", "twin")
        dashes = page.evaluate("view.panels[0].shown().map((s) => s.dash)")
        self.assertEqual(len(dashes), 4)
        self.assertEqual(dashes[0], dashes[1])  # validation as its run
        self.assertNotEqual(dashes[0], dashes[2])
        self.assertEqual(page.evaluate("document.querySelectorAll('#loss path[stroke-dasharray]').length"), 2)
        self.assertEqual(page.evaluate("[...document.querySelectorAll('.legend .swatch')].map((s) => s.className)"),
                         2 * ["swatch", "swatch dash"])  # toolbar and print

        page = self.page("fp32", "plain")
        losses = [{line["step"]: line["loss"] for line in self.metrics(name, "step")} for name in ("fp32", "plain")]
        page.mouse("mouseMoved", *self.place(page, "difference", 40))
        self.assertAlmostEqual(float(self.told(page, "plain").replace("−", "-")), losses[1][40] - losses[0][40], delta=1e-4)

    def test_zoom_by_mouse_and_keyboard(self):
        page = self.page("fp8")
        reach = lambda: page.evaluate("view.range()")  # noqa: E731
        whole = reach()
        self.assertEqual(whole, [1, 60])
        x1, y = self.place(page, "loss", 20)
        x2, _ = self.place(page, "loss", 40)
        page.mouse("mousePressed", x1, y, button="left", clickCount=1)
        page.mouse("mouseMoved", (x1 + x2) / 2, y, button="left")
        page.mouse("mouseReleased", x2, y, button="left", clickCount=1)
        for end, wanted in zip(reach(), (20, 40)):
            self.assertAlmostEqual(end, wanted, delta=0.2)
        self.assertFalse(page.evaluate("document.getElementById('reset').disabled"))
        labels = page.evaluate("[...document.querySelectorAll('#loss text')].map((t) => t.textContent)")
        self.assertIn("30", labels)
        self.assertNotIn("50", labels)
        page.evaluate("document.querySelector('input[value=tokens]').click()")  # the same stretch on another axis
        tokens = {s["step"]: s["tokens"] for s in self.metrics("fp8", "step")}
        self.assertEqual(reach(), [tokens[20], tokens[40]])
        page.evaluate("document.querySelector('input[value=seconds]').click()")
        page.evaluate("document.querySelector('input[value=step]').click()")
        for count in (1, 2):
            page.mouse("mousePressed", x1, y, button="left", clickCount=count)
            page.mouse("mouseReleased", x1, y, button="left", clickCount=count)
        self.assertEqual(reach(), whole)

        page.evaluate("document.getElementById('loss').focus()")
        page.key("End")
        last = self.metrics("fp8", "step")[-1]["loss"]
        self.assertAlmostEqual(float(self.told(page, "train")), last, delta=1e-4 * last)
        page.key("ArrowLeft")
        self.assertEqual(page.evaluate("view.cursor"), 59)
        page.key("+")
        self.assertGreater(reach()[0], 30)
        page.key("0")
        self.assertEqual(reach(), whole)

    def test_dark_and_print(self):
        page = self.page("fp8", "fp32", dark=True)
        color = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
        self.assertEqual(color(), "rgb(21, 24, 28)")
        page.emulate(dark=True, medium="print")
        self.assertEqual(color(), "rgb(255, 255, 255)")
        self.assertEqual(page.evaluate("getComputedStyle(document.getElementById('toolbar')).display"), "none")
        self.keep(page, "print")
        pdf = page.pdf()
        self.assertTrue(pdf.startswith(b"%PDF"))
        self.assertGreater(len(re.findall(rb"/Type\s*/Page\b", pdf)), 1)

    def test_what_is_not_there_is_said(self):
        page = self.page("plain")
        text = page.evaluate("document.body.innerText")
        self.assertIn("not evaluated (--eval_freq 0)", text)
        self.assertIn("No FP8 data: this run trained in FP32.", text)
        self.assertIn("No samples (--sample_freq, --sample_tokens).", text)
        lines = self.copy_of("plain", "begun")
        self.write("begun", lines[:1])
        self.assertIn("no step yet", self.page("begun").evaluate("document.body.textContent"))
        self.write("begun", lines[:2])
        self.page("begun")

    def test_hostile_texts_are_texts(self):
        lines = self.copy_of("fp8", "<img src=x onerror=alert(1)>")
        attack = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
        for kind, field in (("sample", "text"), ("event", "text")):
            lines.append(json.dumps({"type": kind, "step": 60, "seconds": 9, "timestamp": attack, "event": "skip", field: attack}) + "\n")
        self.write("<img src=x onerror=alert(1)>", lines)
        page = self.page("<img src=x onerror=alert(1)>")
        self.assertNotEqual(page.evaluate("document.title"), "taken")
        self.assertEqual(page.evaluate("document.images.length"), 0)
        self.assertIn("</script>", page.evaluate("document.getElementById('samples').textContent"))

    def test_several_runs(self):
        page = self.page("fp8", "fp32", "plain")
        rows = page.evaluate("[...document.querySelectorAll('#settings td.name')].map((t) => t.textContent)")
        self.assertLessEqual({"precision", "max_lr", "eval_freq"}, set(rows))
        self.assertNotIn("seed", rows[:rows.index("max_lr")])
        curves = "view.panels[0].shown().map((s) => s.name)"
        self.assertEqual(page.evaluate(curves), ["fp8", "fp8, validation", "fp32", "fp32, validation", "plain"])
        page.evaluate("document.querySelectorAll('.legend input')[0].click()")
        self.assertEqual(page.evaluate(curves), ["fp32", "fp32, validation", "plain"])

    def test_live_keeps_the_zoom(self):
        lines = self.copy_of("fp32", "live")
        self.write("live", lines[:30])
        with self.training("live"), self.started("live", "--serve", "0") as process:
            address = re.search(r"http://\S+", process.stdout.readline())[0]
            page = self.browser.page(address)
            self.addCleanup(page.close)
            self.assertIn("running", page.evaluate("document.getElementById('header').textContent"))
            shown = page.evaluate("view.full()[1]")
            page.evaluate("view.zoom(5, 15)")
            self.write("live", lines)
            page.evaluate("fetchMore()")
            self.assertEqual(page.evaluate("view.full()[1]"), 60)
            self.assertLess(shown, 60)
            self.assertEqual(page.evaluate("view.range()"), [5, 15])
            self.assertEqual(page.problems(), [])
            self.assertTrue(all(url.startswith(address) for url in page.requests()), page.requests())
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            page.evaluate("fetchMore()")
            self.assertIn("does not answer", page.evaluate("document.getElementById('live').textContent"))

    def test_watched_file_loads_itself_again_with_the_zoom(self):
        lines = self.copy_of("fp32", "watched")
        self.write("watched", lines[:30])
        with self.training("watched"), self.started("watched", "--watch", "1") as process:
            process.stdout.readline()
            page = self.browser.page("file://" + self.path("runs/watched/report.html"))
            self.addCleanup(page.close)
            page.wait_for("view.zoom(5, 15), view.range()[0] === 5")  # it may be loading just now
            self.write("watched", lines)
            page.wait_for("view.full()[1] === 60 && view.range()[0] === 5 && view.range()[1] === 15")


if __name__ == "__main__":
    unittest.main()
