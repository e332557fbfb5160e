"""A process that stands between us and a server, so that the server's processes end when we do, however we do.

It runs the server as its child and reads its own standard input, a pipe that only we hold open. The kernel closes the
pipe when we close it, exit, crash or are killed with SIGKILL; the guard then ends every process below it. As a child
subreaper (Linux, prctl(2)) it also adopts processes whose parent died first, which a walk over the process tree from
outside, or PR_SET_PDEATHSIG in the server alone, would miss while SGLang's workers are still importing.

    python -m descant.runtime.guard GRACE_SECONDS COMMAND…

Its exit status is the command's, or 128 + N if signal N ended it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    grace = float(sys.argv[1])
    stop = threading.Event()
    # A Ctrl-C is for our owner, who closes the pipe; a SIGTERM to the guard itself must end the tree as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard)
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    threading.Thread(target=_wait_for_child, args=(child, stop), daemon=True).start()
    stop.wait()
    end_tree(child, grace)
    code = child.wait()
    return code if code >= 0 else 128 - code


def end_tree(child: subprocess.Popen[bytes], grace: float) -> None:
    """End all processes below this one: SIGTERM to `child`, and SIGKILL to all that are left `grace` seconds later.

    SGLang's main process ends its workers itself; were they to get the SIGTERM too, it would report a crash.
    """
    child.terminate()
    deadline = time.monotonic() + grace
    while left := [p for p in psutil.Process().children(recursive=True) if not _ended(p, child)]:
        if time.monotonic() > deadline:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        time.sleep(0.05)


def _ended(process: psutil.Process, child: subprocess.Popen[bytes]) -> bool:
    if process.pid == child.pid:
        return child.poll() is not None
    with suppress(psutil.NoSuchProcess):
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        with suppress(ChildProcessError):  # not adopted: its parent is still there to reap it
            os.waitpid(process.pid, os.WNOHANG)
    return True


def _wait_for_end_of_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # unbuffered: a buffer's lock would abort the interpreter's exit
        pass
    stop.set()


def _wait_for_child(child: subprocess.Popen[bytes], stop: threading.Event) -> None:
    child.wait()
    stop.set()


def _die_with_guard() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
