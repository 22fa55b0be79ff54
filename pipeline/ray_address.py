"""Whether a Ray cluster is there and lets us in, asked before Ray waits long or aborts."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from pipeline.capacity import read_text
from pipeline.stage import StageError, UserError

CONNECT_SECONDS = 5.0
JOIN_SECONDS = 20.0
NO_TOKEN = (
    "it wants its token: set RAY_AUTH_MODE=token and put the head node's token into "
    "~/.ray/auth_token (or into RAY_AUTH_TOKEN)"
)


def find_address(address: str) -> str:
    """HOST:PORT of the cluster that `cluster.address` means, once something listens there.

    Raises:
        UserError: it is of another form, or nothing listens.
    """
    if address == "auto":
        current = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
        found = os.environ.get("RAY_ADDRESS") or read_text(str(current))
        if not found:
            raise UserError(
                "cluster.address=auto, but no Ray cluster runs on this machine: start one with "
                "`ray start --head`, or name it with cluster.address=HOST:PORT"
            )
        address = found
    match = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d+)", address)
    if match is None:
        raise UserError(
            f"cluster.address={address} is not HOST:PORT or auto (`ray status` on the head node "
            "shows it; the port is 6379 unless set)"
        )
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): check "
            "cluster.address, and `ray status` on the head node"
        ) from error
    return address


def check_token(address: str) -> None:
    """See whether the cluster lets us in, before Ray waits long or aborts this process.

    Ray ends the process when it wants a token and finds none, so a child asks. `RAY_AUTH_MODE`
    is set to token when the cluster wants one, a token is there and nothing else was said.

    Raises:
        StageError: it wants a token that we lack, or it does not answer as Ray does.
    """
    refusal = _probe(address)
    if refusal == NO_TOKEN and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        refusal = _probe(address)
        if refusal is not None:
            del os.environ["RAY_AUTH_MODE"]
        elif (loaded := sys.modules.get("ray._raylet")) is not None:
            # Ray read its environment when it was loaded; this is how its own code renews that.
            loaded.Config.initialize("")
    if refusal is not None:
        raise StageError(f"cannot join the Ray cluster at {address}: {refusal}")


def _probe(address: str) -> str | None:
    """Connect to the cluster in a child process; what went wrong, or None."""
    code = (
        "import sys; from ray._raylet import GcsClient; "
        "GcsClient(address=sys.argv[1]).internal_kv_get(b'session_name', b'session', timeout=10)"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, address],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {JOIN_SECONDS:.0f} s; is it Ray's port?"
    if ended.returncode == 0:
        return None
    if "authentication token" in ended.stderr.lower():
        return NO_TOKEN
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return (lines or ["unknown"])[-1][:300]
