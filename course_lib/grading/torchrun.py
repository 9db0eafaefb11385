"""Run the text of a training script under real torchrun, as a process tree that always ends.

Used inside a rank of world size 1 by `repair_ddp_script`. Nothing is trusted to stop: there is a limit on
time (longer on a busy machine), on doing nothing and on CPU time, and every process dies with its parent.
The rendezvous takes a free port of the loopback; a script that insists on a port of its own is caught at
that port.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import psutil

from course_lib.ranks import rank

LIMIT_S = 75.0  # without what its processes wait for a core that others use
MOST_WAITED_S = 3 * LIMIT_S  # of that waiting, no more is left out
IDLE_S = 10.0  # all processes asleep for that long: they wait for each other
_MAX_REPORT_BYTES = 1_000_000
_CONSEQUENCE = ("Connection closed by peer", "Connection reset", "Broken pipe", "recvValue failed", "SIGTERM")
_MAX_LOG_BYTES = 20_000
_AGENT = "from course_lib.grading.torchrun_agent import main; main()"
_TORCHS_SEED = 67_280_421_310_721  # torch's, where nobody has set one
_LOGS = "logs/*/attempt_0"  # where torchrun puts a folder a worker
_LAUNCHED = "launched"  # torchrun_agent's count in it; importing that module stops garbage collection
_BUSY = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_WAKING)  # not asleep, ended, stopped
Process: TypeAlias = "subprocess.Popen[bytes] | Waiting"
_STALE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class Waiting:
    """What is to be torchrun: a fork of a rank, made before the rank has anything of a check.

    Loading torch is most of what torchrun costs. It has the methods of `subprocess.Popen` that are called here.
    """

    returncode: int | None = None

    def __init__(self, follow: Callable[[], None]) -> None:
        """Fork; the fork calls `follow` when it begins."""
        waits, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _wait_and_be_torchrun(waits, follow)
        os.close(waits)

    def begin(self, arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        """Let it begin, with torchrun's arguments."""
        text = json.dumps([list(arguments), str(folder), environment]).encode()
        with os.fdopen(self._tell, "wb") as told:
            told.write(text)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status. Raises: subprocess.TimeoutExpired."""
        end_s = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("torchrun", timeout or 0.0)
            else:
                time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        """End it."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


waiting: Waiting | None = None  # in a rank whose program starts torchrun


def _wait_and_be_torchrun(waits: int, follow: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        os.dup2(waits, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(3, "rb") as told:
            text = told.read()
        if text:
            arguments, folder, environment = json.loads(text)
            follow()
            _forget_the_rank()
            _redirect(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["-c", *arguments]
            importlib.import_module("course_lib.grading.torchrun_agent").main()
            status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _redirect(folder: str) -> None:
    os.chdir(folder)
    output = os.open("agent.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, fd in ((0, nothing), (1, output), (2, output)):
        os.dup2(fd, number)
    for fd in (output, nothing):
        os.close(fd)


def _forget_the_rank() -> None:
    """Be as a fresh interpreter is, in what a rank sets before it joins a group."""
    rank.is_rank = False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.modules["torch"].default_generator.manual_seed(_TORCHS_SEED)
    me: Any = multiprocessing.current_process()
    me._config.pop("tempdir", None)  # of the judge's worker, where no rank can write
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_alive_fd = server._forkserver_address = server._inherited_fds = None
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None


def run_script(text: str, num_processes: int, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run `text` on `num_processes` processes; process r leaves `rank<r>.json` in its own `folder`/r.

    In `arguments` torchrun replaces `${local_rank}` by the number of the process.

    Returns plain data: status ("ok", "syntax", "failed", "idle", "timeout", "port"), error, line, rank, and
    for each process what it wrote (`reports`) and how many collectives, sends and receives it launched
    (`launched`), None where that is not known.
    """
    try:
        compile(text, "train.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return _result("syntax", f"{type(error).__name__}: {getattr(error, 'msg', error)}", line=line)
    for rank in range(num_processes):
        (folder / str(rank)).mkdir(exist_ok=True)
    (folder / "train.py").write_text(text, encoding="utf-8")
    with _listening(_ports_in(text)) as sockets, _torchrun(folder, num_processes, arguments) as agent:
        status = _watch(agent, sockets)
    reports = [_read_report(folder / str(r) / f"rank{r}.json") for r in range(num_processes)]
    found = _first_error(folder, num_processes) if status != "ok" else None
    if status in ("idle", "timeout") and found is not None:  # a thread raised, say, and others wait for it
        after = "all processes waited" if status == "idle" else "time ran out"
        status, found["error"] = "failed", f"{found['error']} (after that, {after})"
    if status == "failed" and found is None:
        # No process raised. Reports count, not exit codes: one may have aborted after its work was done.
        status = "ok" if None not in reports else "failed"
        found = {"error": f"a process ended without a traceback (exit code {agent.returncode})"}
    launched = [_read_count(folder, r) for r in range(num_processes)]
    return {**_result(status, **(found or {})), "reports": reports, "launched": launched}


def _result(status: str, error: str = "", line: int | None = None, rank: int | None = None) -> dict[str, Any]:
    return {"status": status, "error": error, "line": line, "rank": rank, "reports": [], "launched": []}


@contextlib.contextmanager
def _torchrun(
    folder: Path, num_processes: int, arguments: Sequence[str]
) -> Iterator[Process]:
    """Start torchrun on a free port of the loopback; end its whole tree on leaving."""
    environment = {
        k: v for k, v in os.environ.items() if k not in _STALE and not k.startswith("TORCHELASTIC")
    }
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={uuid.uuid4().hex}"]
    where = ["--nnodes=1", f"--nproc-per-node={num_processes}", "--local-addr=127.0.0.1", "--max-restarts=0"]
    logs = [f"--log-dir={folder / 'logs'}", "--redirects=3"]
    script = [str(folder / "train.py"), *arguments]
    words = [*rendezvous, *where, *logs, *script]
    agent: Process
    if waiting is not None and waiting.returncode is None:
        agent = waiting
        agent.begin(words, folder, environment)
    else:
        with open(folder / "agent.txt", "wb") as output:
            agent = subprocess.Popen(
                [sys.executable, "-c", _AGENT, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
            )
    try:
        yield agent
    finally:
        below = _below(agent)
        agent.kill()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        agent.wait()


def _below(agent: Process, direct: bool = False) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(agent.pid).children(recursive=not direct)
    return []


def _workers(agent: Process) -> list[psutil.Process]:
    """The agent's children are its fork server and multiprocessing's tracker; below them is the script."""
    own = _below(agent, direct=True)
    return [process for process in _below(agent) if process not in own]


def _watch(agent: Process, sockets: list[socket.socket]) -> str:
    """Wait for torchrun; "ok" or "failed" by itself, "timeout", "idle" or "port" if it must be ended."""
    started_s = quiet_since_s = time.monotonic()
    seen_cpu_s = waited_s = 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return "ok" if agent.wait(0.1) == 0 else "failed"
        now_s, workers = time.monotonic(), _workers(agent)
        if any(_own_visitor(sock, workers) for sock in sockets):
            return "port"
        cpu_s, asleep = _activity(workers)
        if not asleep or abs(cpu_s - seen_cpu_s) > 0.3:
            quiet_since_s, seen_cpu_s = now_s, cpu_s
        if now_s - quiet_since_s > IDLE_S:
            return "idle"
        waited_s = max(waited_s, _waited_s([agent.pid, *(process.pid for process in _below(agent))]))
        if now_s - started_s - min(waited_s, MOST_WAITED_S) > LIMIT_S:
            return "timeout"


def _activity(workers: list[psutil.Process]) -> tuple[float, bool]:
    """CPU seconds of all workers, and whether there are some and none has anything to do."""
    cpu_s, states = 0.0, []
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            cpu_s += sum(worker.cpu_times()[:2])
            states.append(worker.status())
    return cpu_s, bool(states) and not any(s in _BUSY for s in states)


def _waited_s(pids: Sequence[int]) -> float:
    """Seconds that processes were ready and had no core; 0 where the system does not count them."""
    waited_s = 0.0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited_s += int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return waited_s


def _ports_in(text: str) -> list[int]:
    """Numbers in the source that could be ports."""
    return sorted(
        {int(word) for word in re.findall(r"(?<!\d)\d{4,5}(?!\d)", text) if 1023 < int(word) < 65536}
    )[:8]


@contextlib.contextmanager
def _listening(ports: list[int]) -> Iterator[list[socket.socket]]:
    """Occupy these ports where they are free: what calls there does not use torchrun's."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for port in ports:
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                sock.listen()
                sockets.append(sock)
        yield sockets


def _own_visitor(sock: socket.socket, workers: list[psutil.Process]) -> bool:
    """True if one of our processes called at this port (another check on this machine may do so too)."""
    try:
        connection, peer = sock.accept()
    except OSError:
        return False
    with connection:
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                if any(c.laddr and c.laddr.port == peer[1] for c in worker.net_connections("tcp")):
                    return True
    return False


def _first_error(folder: Path, num_processes: int) -> dict[str, Any] | None:
    """The error to read first: not one that only says that another process has gone."""
    found = []
    for rank in range(num_processes):
        for path in folder.glob(f"{_LOGS}/{rank}/stderr.log"):
            error = _parse(_read_end(path), str(folder / "train.py"))
            if error is not None:
                found.append({**error, "rank": rank})
    own = [e for e in found if not any(words in e["error"] for words in _CONSEQUENCE)]
    for error in [] if own else found:
        error["error"] += " (another process has ended: does each reach the same collectives?)"
    return next(iter(own or found), None)


def _read_end(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_LOG_BYTES))
        return file.read(_MAX_LOG_BYTES).decode(errors="replace")


def _parse(log: str, script: str) -> dict[str, Any] | None:
    """Line of the script and message of the last traceback."""
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in log.splitlines()]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if not starts:
        return None
    block = lines[starts[-1] + 1 :]
    message = next((line for line in block if line and not line[0].isspace()), "")
    if message.startswith("SystemExit: ") and starts[-1] > 0 and ": error: " in lines[starts[-1] - 1]:
        message = lines[starts[-1] - 1]  # argparse says what was wrong before it leaves
    last = [m for line in block if (m := re.match(rf'\s+File "{re.escape(script)}", line (\d+)', line))]
    return {"error": message[:300], "line": int(last[-1].group(1)) if last else None}


def _read_report(path: Path) -> Any:
    """What a process wrote; None if nothing or nothing readable."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_MAX_REPORT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _read_count(folder: Path, rank: int) -> int | None:
    """How often a process has communicated, None if it was killed."""
    for path in folder.glob(f"{_LOGS}/{rank}/{_LAUNCHED}"):
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text(encoding="ascii"))
    return None
