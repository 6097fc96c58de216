"""The commands of several attempts are classified at the same time, on several threads."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import threading
from holdfast.engine.safety.classify import classify

def work():
    for _ in range(25):
        classify("for one in 1 2 3; do echo $one | sed s/a/b/ > x; done; rm -rf a b; make;" * 10,
                 cwd=b"/", root=b"/x", env={})

threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print("done")
"""


def test_that_does_not_crash_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
