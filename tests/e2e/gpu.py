"""Is there a GPU? Without one a script of `make test-gpu` is skipped."""
import shutil
import subprocess
import sys


def skip_without_gpu():
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        print("skipped: no GPU")
        sys.exit(77)
