"""A program in a terminal of a given width: what it prints, what it is told by keys, how it ends."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, arguments, folder, environment, columns, rows=40):
        self.text = ""
        self.process, self.master = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            os.execvpe(arguments[0], arguments, environment)

    def _read(self, seconds):
        """False at the end of the output."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            some = os.read(self.master, 65536)
        except OSError:  # Linux: all ends of the terminal are closed
            return False
        self.text += some.decode(errors="replace")
        return bool(some)

    def wait_for(self, pattern, seconds=240):
        """The first match of a regular expression in what has been printed."""
        limit = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            if time.monotonic() > limit or not self._read(0.5):
                raise AssertionError(f"/{pattern}/ was not printed, but:\n{self.text}")
        return found

    def press(self, keys):
        os.write(self.master, keys)

    def end(self, seconds=240):
        """The exit code; negative for the signal that ended it."""
        limit = time.monotonic() + seconds
        while self._read(0.5):
            if time.monotonic() > limit:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                raise AssertionError(f"still running after {seconds} s:\n{self.text}")
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def lines(self):
        """What stays on the screen: without colors, and of a line that was written over, the last state."""
        plain = ESCAPE.sub("", self.text).replace("\r\n", "\n")
        return [line.rsplit("\r", 1)[-1] for line in plain.split("\n")]
