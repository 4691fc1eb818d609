"""A headless Chromium, driven over a pipe by its DevTools protocol; nothing but Python's own library."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
         "--force-color-profile=srgb", "--disable-dev-shm-usage"]


def find_browser():
    """One that starts: some distributions' chromium-browser only says where to get it."""
    for path in filter(None, map(shutil.which, NAMES)):
        if "Chrom" in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    return None


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="browser_")
        ours_in, its_out = os.pipe()
        its_in, ours_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4. High copies first: either may be one of those numbers.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (its_in, its_out)]

        def connect():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen([find_browser(), *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=connect,
                                        close_fds=False)
        for descriptor in (its_in, its_out, *high):
            os.close(descriptor)
        self.input, self.output, self.buffer, self.number = ours_out, ours_in, b"", 0
        self.events = []

    def close(self):
        try:
            self.send("Browser.close")
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        os.close(self.output)
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method, parameters=None, session=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self.input, json.dumps(message).encode() + b"\0")
        return self.number

    def receive(self, seconds):
        """The next message, or None after that time."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.output], [], [], left)[0]:
                return None
            part = os.read(self.output, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, parameters=None, session=None, seconds=120):
        number = self.send(method, parameters, session)
        while True:
            message = self.receive(seconds)
            if message is None:
                raise TimeoutError(method)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def page(self, url, width=1280, height=900, dark=False):
        return Page(self, url, width, height, dark)


class Page:
    """A tab. problems: console errors and exceptions; requests: the addresses that it asked for."""

    def __init__(self, browser, url, width, height, dark):
        self.browser = browser
        self.target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = browser.call("Target.attachToTarget", {"targetId": self.target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.emulate(dark=dark)
        self.open(url)

    def call(self, method, parameters=None):
        return self.browser.call(method, parameters, self.session)

    def emulate(self, dark=False, medium=""):
        self.call("Emulation.setEmulatedMedia", {"media": medium, "features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def open(self, url):
        self.browser.events = [event for event in self.browser.events if event.get("sessionId") != self.session]
        self.call("Page.navigate", {"url": url})
        self.wait_for("document.readyState === 'complete' && document.querySelector('#footer').textContent !== ''")

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, script, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.evaluate(script):
                    return
            except RuntimeError:
                pass  # the page is not there yet
            if time.monotonic() > deadline:
                raise TimeoutError(script)
            time.sleep(0.05)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def key(self, key):
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "text": key if len(key) == 1 else ""})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", "key": key})

    def picture(self):
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        return base64.b64decode(self.call("Page.captureScreenshot", {
            "captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}})["data"])

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", {"printBackground": False, "preferCSSPageSize": True})["data"])

    def ours(self, method):
        return [event["params"] for event in self.browser.events
                if event["method"] == method and event.get("sessionId") == self.session]

    def problems(self):
        self.evaluate("0")  # what happened before it has been said
        return ([entry["entry"]["text"] for entry in self.ours("Log.entryAdded")] +
                [str(call["args"]) for call in self.ours("Runtime.consoleAPICalled") if call["type"] in ("error", "warning")] +
                [json.dumps(thrown["exceptionDetails"]) for thrown in self.ours("Runtime.exceptionThrown")])

    def requests(self):
        self.evaluate("0")
        return [sent["request"]["url"] for sent in self.ours("Network.requestWillBeSent")]

    def close(self):
        self.browser.call("Target.closeTarget", {"targetId": self.target})
