#!/usr/bin/env python3
"""Downloads the files of a data set and resumes partial downloads. bin/prepare_data --dataset NAME runs it.

    tools/download_dataset.py --to FOLDER --hub OWNER/NAME --path sample/10BT [--endpoint https://huggingface.co]
    tools/download_dataset.py --to FOLDER --url https://.../input.txt

From a hub: every file below the path, to FOLDER/PATH/..., verified against the hub's size and SHA-256. The endpoint may be
a mirror ($HF_ENDPOINT); $HF_TOKEN is sent to it, not to redirect targets. A file is FILE.part until it is complete;
a broken connection resumes at its last byte.

Prints {"done": bytes, "total": bytes} periodically as JSON lines. A failure prints one line to standard error. Exit codes:
3 failure, 8 full disk, 75 signal. Standard library only.
"""
import argparse
import email.utils
import errno
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

BLOCK = 1 << 20
TIMEOUT = 30  # seconds without a byte
TRIES = 6  # in a row without a byte, 0.5, 1, 2, ... seconds apart
LONGEST_WAIT = 60  # seconds; caps Retry-After


class Failure(Exception):
    def __init__(self, message, code=3):
        super().__init__(message)
        self.code = code


class Progress:
    def __init__(self, total):
        self.total, self.done, self.printed = total, 0, 0.0

    def add(self, count, now=False):
        self.done += count
        if now or time.monotonic() - self.printed > 0.5:
            self.printed = time.monotonic()
            print(json.dumps({"done": self.done, "total": self.total}), flush=True)


def request(url, token=None, offset=0):
    asked = urllib.request.Request(url, headers={"User-Agent": "prepare_data"})
    if token:
        asked.add_unredirected_header("Authorization", "Bearer " + token)
    if offset:
        asked.add_header("Range", f"bytes={offset}-")
    return urllib.request.urlopen(asked, timeout=TIMEOUT)


def wait_of(error, attempt):
    """Seconds until the next try: Retry-After, or exponential backoff."""
    header = error.headers.get("Retry-After") if isinstance(error, urllib.error.HTTPError) and error.headers else None
    try:
        seconds = float(header) if header else 0.5 * 2**attempt
    except ValueError:
        seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
    return min(max(seconds, 0), LONGEST_WAIT)


def is_passing(error):
    """Whether a retry may succeed."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 425, 429) or error.code >= 500
    return True


def words_for(url, error):
    host = urllib.parse.urlsplit(url).netloc
    if isinstance(error, urllib.error.HTTPError):
        hint = {401: " (set HF_TOKEN to a token that may read it)", 403: " (set HF_TOKEN to a token that may read it)",
                404: " (check --from)"}.get(error.code, "")
        return f"{url} answers {error.code} {error.reason}{hint}"
    reason = getattr(error, "reason", error)
    return (f"cannot reach {host}: {reason} (check the network and the proxy, or name a mirror or a folder with --from; "
            "the same command resumes)")


NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def read_json(url, token):
    """A page of a file list and the address of the next page."""
    for attempt in range(3):
        try:
            with request(url, token) as answer:
                following = re.search(r'<([^>]*)>\s*;\s*rel="?next"?', answer.headers.get("Link") or "")
                page = json.loads(answer.read())
                return page, urllib.parse.urljoin(url, following[1]) if following else None
        except NETWORK_ERRORS as error:
            if attempt == 2 or not is_passing(error):
                raise Failure(words_for(url, error))
            time.sleep(wait_of(error, attempt))
        except (ValueError, RecursionError):
            raise Failure(f"{url} does not answer with a list of files (check --from)")


def files_of_hub(endpoint, repository, path, token):
    """(path, size, SHA-256 or None, address) of every file below a path."""
    quoted = urllib.parse.quote(path)
    page = f"{endpoint}/api/datasets/{repository}/tree/main/{quoted}?recursive=true"
    files = []
    while page:
        entries, page = read_json(page, token)
        if not isinstance(entries, list):
            raise Failure(f"{endpoint} does not answer with a list of files (check --from)")
        for entry in entries:
            name = entry.get("path", "")
            if entry.get("type") != "file" or not name.endswith(".parquet"):
                continue
            if name.startswith("/") or ".." in name.split("/"):
                raise Failure(f"{endpoint} lists a file named {name}")
            address = f"{endpoint}/datasets/{repository}/resolve/main/{urllib.parse.quote(name)}"
            files.append((name, entry["size"], (entry.get("lfs") or {}).get("oid"), address))
    if not files:
        raise Failure(f"{endpoint} has no .parquet file in {repository}/{path} (check --from)")
    return sorted(files)


def size_of(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def fetch_some(address, token, part, size, progress):
    """Appends to `part` until the answer ends. Without support for ranges the server sends the file from its start."""
    have = size_of(part)
    with request(address, token, have) as answer:
        if have and answer.status != 206:
            progress.add(-have)
            have = 0
        length = answer.headers.get("Content-Length")
        if size is not None and length is not None and have + int(length) != size:
            raise Failure(f"{address} has {have + int(length)} bytes, the list of files says {size}")
        with open(part, "r+b" if have else "wb") as out:
            out.seek(have)
            while block := answer.read(BLOCK):
                out.write(block)
                progress.add(len(block))
            out.flush()
            os.fsync(out.fileno())
    if length is not None and size_of(part) < have + int(length):
        raise ConnectionError("the connection broke off")


def fetch(name, size, sha256, address, folder, token, progress):
    whole = os.path.join(folder, name)
    part = whole + ".part"
    if os.path.exists(whole) and size in (None, os.path.getsize(whole)):
        return progress.add(os.path.getsize(whole))
    if os.path.exists(whole):  # only complete files get this name: the hub's file differs or has changed
        raise Failure(f"{whole} has {os.path.getsize(whole)} bytes, the list of files says {size} (remove it to download it again)")
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    if size is not None and size_of(part) > size:
        os.remove(part)
    progress.add(size_of(part))
    tries = 0
    while size is None or size_of(part) < size:
        before = size_of(part)
        try:
            fetch_some(address, token, part, size, progress)
            if size is None:
                break
        except BrokenPipeError:  # our standard output: those of connections are wrapped in a URLError
            raise
        except NETWORK_ERRORS as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 416:  # .part is of another file
                progress.add(-size_of(part))
                os.remove(part)
            elif not is_passing(error):
                raise Failure(words_for(address, error))
            tries = 1 if size_of(part) > before else tries + 1
            if tries >= TRIES:
                raise Failure(words_for(address, error))
            time.sleep(wait_of(error, tries - 1))
    if sha256 and hash_of(part) != sha256:
        os.remove(part)
        raise Failure(f"{name} did not arrive as it was sent: its SHA-256 is not {sha256} (run it again)")
    os.replace(part, whole)


def hash_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def refuse_small_disk(folder, needed):
    os.makedirs(folder, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise Failure(f"{folder} has room for {free / 1e9:.1f} GB, the download needs {needed / 1e9:.1f} GB more", 8)


def download(options):
    token = os.environ.get("HF_TOKEN") if options.hub else None
    if options.hub:
        endpoint = (options.endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        files = files_of_hub(endpoint, options.hub, options.path, token)
    else:
        files = [(os.path.basename(urllib.parse.urlsplit(options.url).path), None, None, options.url)]
    total = sum(size or 0 for _, size, _, _ in files)
    here = sum(max(size_of(path), size_of(path + ".part"))
               for path in (os.path.join(options.to, name) for name, *_ in files))
    refuse_small_disk(options.to, total - here)
    progress = Progress(total)
    for name, size, sha256, address in files:
        fetch(name, size, sha256, address, options.to, token, progress)
    progress.add(0, now=True)


def stop(*_):
    sys.exit(75)


def main():
    parser = argparse.ArgumentParser(description="Downloads the files of a dataset.")
    parser.add_argument("--to", required=True, metavar="FOLDER")
    parser.add_argument("--hub", metavar="OWNER/NAME", help="a dataset of the hub")
    parser.add_argument("--path", default="", help="the folder in it")
    parser.add_argument("--endpoint", help="the hub or a mirror (default: $HF_ENDPOINT, else https://huggingface.co)")
    parser.add_argument("--url", help="one file instead")
    options = parser.parse_args()
    if bool(options.hub) == bool(options.url):
        parser.error("give --hub or --url")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        download(options)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(failure.code)
    except BrokenPipeError:  # the reader has exited and printed the reason
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(75)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        print(f"error: cannot write {error.filename or options.to}: {error.strerror}"
              + (" (free some disk space: the same command resumes)" if full else ""), file=sys.stderr)
        sys.exit(8)


if __name__ == "__main__":
    main()
