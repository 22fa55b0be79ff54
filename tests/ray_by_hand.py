"""A Ray that somebody started by hand, with the token that Ray wants: `ray start` of each node."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

TOKEN = "0123456789abcdef" * 4


class RayByHand:
    """Nodes on this machine.

    Args:
        home: an empty folder, home of the nodes and of those who join: the token lies there.

    Attributes:
        address: HOST:PORT that a run joins.
        environment: of a run that joins; it finds the token in `home`.
        token: instead of that, variables that say it.
        path: a folder on the path of the workers, for what a test wants to run there.
        session: where Ray keeps its files.
        nodes: the processes of `ray start`, the head first.
    """

    def __init__(self, home: Path) -> None:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self._port, self._client_port = (s.getsockname()[1] for s in (one, other))
        self.address = f"127.0.0.1:{self._port}"
        (home / ".ray").mkdir()
        (home / ".ray/auth_token").write_text(TOKEN)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.environment: Mapping[str, str] = kept | {"HOME": str(home)}
        self.token: Mapping[str, str] = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        self.path = home / "path"
        self.path.mkdir()
        # Short, because of the length of socket paths.
        self.session = Path(tempfile.mkdtemp(prefix="clz", dir="/tmp"))
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, cpus: int, gpus: int = 0) -> None:
        """Start one more node and wait for it; the first is the head.

        Ray takes our word for its GPUs.
        """
        if self.nodes:
            words = ["--address", self.address]
        else:
            words = ["--head", "--port", str(self._port), "--include-dashboard", "false"]
            words += ["--temp-dir", str(self.session)]
            # Two heads on one machine would both take the default; without grpc there is no server.
            if importlib.util.find_spec("grpc") is not None:
                words += ["--ray-client-server-port", str(self._client_port)]
        node = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words),
                *("--num-cpus", str(cpus), "--num-gpus", str(gpus)),
                *("--object-store-memory", "100000000"),
                *("--min-worker-port", "0", "--max-worker-port", "0"),
                *("--dashboard-agent-listen-port", "0", "--disable-usage-stats"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**self.environment, "RAY_AUTH_MODE": "token", "PYTHONPATH": str(self.path)},
        )
        self.nodes.append(node)
        deadline = time.monotonic() + 60
        while len(list(self.session.glob("session_2*/sockets/raylet*"))) < len(self.nodes):
            assert node.poll() is None and time.monotonic() < deadline, "the node did not start"
            time.sleep(0.1)

    def processes(self, number: int) -> list[psutil.Process]:
        """Of one node, those that are there now."""
        try:
            head = psutil.Process(self.nodes[number].pid)
            return [*head.children(recursive=True), head]
        except psutil.NoSuchProcess:
            return []

    def nodes_that_run(self, title: str) -> set[int]:
        """Numbers of the nodes that have a process of this title now."""
        found = set()
        for number in range(len(self.nodes)):
            for process in self.processes(number):
                try:
                    if title in " ".join(process.cmdline()):
                        found.add(number)
                except psutil.Error:
                    continue
        return found

    def runs(self) -> bool:
        """Whether every node still does."""
        return all(node.poll() is None for node in self.nodes)

    def stop(self) -> None:
        """End every process of all nodes, by their ids: workers have sessions of their own.

        `start` may be called again.
        """
        for process in [p for number in range(len(self.nodes)) for p in self.processes(number)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for node in self.nodes:
            node.wait()
        self.nodes.clear()
        shutil.rmtree(self.session, ignore_errors=True)
