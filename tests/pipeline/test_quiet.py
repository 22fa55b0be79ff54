"""Native chatter goes aside, Python's standard error does not."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from pipeline.quiet import native_stderr_aside, said_aside
print("before", file=sys.stderr)
with native_stderr_aside() as aside:
    os.write(2, b"native chatter\\n")
    subprocess.run(["sh", "-c", "echo a child >&2"])
    print("ours", file=sys.stderr)
    print(said_aside(aside), end="")
os.write(2, b"after\\n")
"""


def test_native_chatter_goes_aside() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == ["before", "ours", "after"]
    assert done.stdout == "native chatter\na child\n"
