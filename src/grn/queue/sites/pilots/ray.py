"""The adapter of Ray: pilots are detached actors, found again by name; streams are their calls.

A child process of the queue. The only file that imports Ray, which must be of the same version as
the cluster's. It keeps no state and may be killed at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import importlib.metadata
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grn import __version__, paths
from grn.daemon.lockfile import make_own
from grn.errors import GrnError, UsageError
from grn.model.text import counted
from grn.queue.sites.agent.pipe import OFFERED
from grn.queue.sites.pilots import ray_actor, ray_rules
from grn.queue.sites.pilots.ray_actor import CHUNK, MAX_CALLS, WINDOW, PilotOrder
from grn.queue.sites.pilots.ray_cluster import (
    ClusterAway,
    PilotCut,
    PilotDead,
    PilotHandle,
    PilotRefused,
)
from grn.queue.sites.pilots.ray_pilots import PilotKeeper
from grn.sites import SiteConfig

CONNECT_S = 5.0
INIT_S = 40.0
AGAIN_S = 5.0
SWEEP_S = 60.0
HANG_UP_S = 2.0
CHECKED_NODES = 16
MAX_UNHEARD = 32  # calls; their order is kept by numbers
OLD_PILOT = b"an earlier grn started this pilot: `grn cancel --now` gives up the jobs in it\n"
NOT_INSTALLED = "Ray is not installed beside grn here: `pip install ray`, of the cluster's version"
NO_CLIENT = (
    "addresses of ray:// are not supported: `ray start --address=HEAD:6379 --num-gpus=0` makes this"
    " machine a node of the cluster, then use --ray auto"
)


class Unusable(Exception):
    """Why the cluster cannot be used, in one line."""


class LineWriter:
    """Lines of JSON on a descriptor of their own: Ray prints to standard output at any time."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def line(self, text: str) -> None:
        """Write one line; the queue may be gone."""
        with contextlib.suppress(OSError):
            rest = memoryview(text.encode() + b"\n")
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def say(self, said: dict[str, Any]) -> None:
        """Write one message."""
        self.line(json.dumps(said))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the adapter until the queue ends, or tell what is at a site."""
    parser = argparse.ArgumentParser(prog="python -m grn.queue.sites.pilots.ray")
    parser.add_argument("--queue", help="the identity of the queue")
    parser.add_argument("--site", required=True, help="the site, as JSON")
    parser.add_argument("--check", action="store_true", help="print one line about the site")
    arguments = parser.parse_args(argv)
    site, speaker = SiteConfig.from_json(arguments.site), LineWriter()
    if arguments.check:
        return _check(site, speaker)
    try:
        ray = _patiently(site, arguments.queue, speaker)
        if ray is not None:
            asyncio.run(_serve(ray, site, arguments.queue, speaker))
    except KeyboardInterrupt:
        pass
    return 0


# --- reaching the cluster ----------------------------------------------------------------------


def _patiently(site: SiteConfig, queue_id: str, speaker: LineWriter) -> Any:
    """Connect to the cluster, however long that takes.

    None when the queue has ended, or when another Ray was installed: a process cannot load two, and
    the queue starts another.
    """
    before = _installed()
    while True:
        try:
            return _connect(site, ray_rules.namespace_of(queue_id), speaker)
        except Unusable as error:
            speaker.say({"trouble": str(error)})
        deadline = time.monotonic() + AGAIN_S
        while (left_s := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([0], [], [], left_s)
            if ready and not os.read(0, 1 << 16):
                return None
        if (now := _installed()) and now != before:
            return None


def _installed() -> str:
    """Return which Ray is installed, which need not be the one that this process has loaded."""
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _connect(site: SiteConfig, namespace: str, speaker: LineWriter) -> Any:
    """Return the module of Ray, connected; raise Unusable."""
    if site.address.startswith("ray://"):
        raise Unusable(NO_CLIENT)
    try:
        ray_rules.resources(site.gpus, site.options)
    except UsageError as error:
        raise Unusable(f"{error.message} {error.hint}") from error
    _probe(site.address)
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise Unusable(NOT_INSTALLED) from error
    if not hasattr(ray.runtime_context.RuntimeContext, "get_session_name"):
        raise Unusable(f"Ray {ray.__version__} is too old: 2.54 is needed")

    def give_up() -> None:  # Ray tries for minutes, and cannot be interrupted
        speaker.say({"trouble": ray_rules.no_cluster(site.address, f"no answer in {INIT_S:.0f} s")})
        print(ray_rules.no_cluster(site.address, "it does not answer"), file=sys.stderr)
        os._exit(1)

    timer = threading.Timer(INIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        ray.init(address=site.address, namespace=namespace, log_to_driver=False,
                 configure_logging=False)  # fmt: skip
    except Exception as error:  # Ray documents none of its own; the adapter tries again
        raise Unusable(ray_rules.why_unreachable(site.address, error)) from error
    finally:
        timer.cancel()
    ray.cloudpickle.register_pickle_by_value(ray_actor)
    return ray


def _probe(address: str) -> None:
    """Raise Unusable unless something listens at an address: Ray itself tries for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except ValueError as error:
        raise Unusable(
            f"{address!r} is not an address of a Ray cluster: auto, or host:port"
        ) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise Unusable(ray_rules.no_cluster(address, why)) from error


# --- calls of Ray ----------------------------------------------------------------------------


class ActorHandle:
    """One pilot's actor."""

    def __init__(self, ray: Any, name: str, actor: Any) -> None:
        self._name = name
        self._ray = ray
        self._errors = ray.exceptions
        self._actor = actor

    async def watch(self, seen: str) -> dict[str, str]:
        said: dict[str, str] = await self._call(self._actor.watch.remote(seen))
        return said

    async def drain(self) -> None:
        await self._call(self._actor.drain.remote())

    def relay(self, pipe: socket.socket) -> None:
        with pipe:
            if not hasattr(self._actor, "took"):
                _say(pipe, OLD_PILOT)
                return
            try:
                with self._in_our_words():
                    stream = int(self._ray.get(self._actor.open.remote(__version__)))
            except (PilotCut, PilotRefused, PilotDead) as error:
                _say(pipe, str(error).replace("\n", " ").encode() + b"\n")
                return
            _say(pipe, OFFERED)
            threading.Thread(target=self._read, args=(stream, pipe), daemon=True).start()
            with contextlib.suppress(OSError, self._errors.RayError):
                self._write(stream, pipe)
            with contextlib.suppress(self._errors.RayError):
                self._ray.get(self._actor.close.remote(stream), timeout=HANG_UP_S)

    def _write(self, stream: int, pipe: socket.socket) -> None:
        """Pass on the bytes of a pipe until its end, as pieces that do not wait for each other."""
        # Ray answers no call of these: an answer costs as much as the call, and wakes two threads.
        write = self._actor.write.options(num_returns=0)
        number = size = 0
        passed = None
        while data := pipe.recv(CHUNK):
            write.remote(stream, number, data)
            number, size = number + 1, size + len(data)
            if size >= WINDOW // 2 or number % MAX_UNHEARD == 0:
                if passed is not None:
                    self._ray.get(passed)
                passed, size = self._actor.passed.remote(stream, number), 0

    def _read(self, stream: int, pipe: socket.socket) -> None:
        """Write the bytes of a stream to its pipe until its end."""
        # One call for all of them: what a generator yields costs Ray half as much as a call.
        took = self._actor.took.options(num_returns=0)
        taken = told = 0
        with contextlib.suppress(OSError, self._errors.RayError):
            for answer in self._actor.read.options(num_returns="streaming").remote(stream):
                data = self._ray.get(answer)
                pipe.sendall(data)
                taken += len(data)
                if taken - told >= WINDOW // 2:
                    took.remote(stream, taken)
                    told = taken
        with contextlib.suppress(OSError):
            pipe.shutdown(socket.SHUT_RDWR)

    async def _call(self, answer: Any) -> Any:
        with self._in_our_words():
            return await answer

    @contextlib.contextmanager
    def _in_our_words(self) -> Iterator[None]:
        """Raise what Ray raises as an error of the role."""
        errors = self._errors
        try:
            yield
        except errors.ActorDiedError as error:
            raise PilotDead(ray_rules.why_dead(self._name, str(error))) from error
        except errors.RayTaskError as error:
            raise PilotRefused(str(error.cause)) from error
        except errors.RayError as error:
            raise PilotCut(str(error).partition("\n")[0]) from error


def _say(pipe: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the queue does not wait any more
        pipe.sendall(data)


@dataclass(frozen=True, slots=True)
class GivenWorker:
    """The process that Ray gave a pilot; empty where that is not known."""

    node: str = ""
    pid: int = 0


class RayCluster:
    """The cluster, for the pilots of one queue."""

    def __init__(self, ray: Any, site: SiteConfig, order: Callable[[str], PilotOrder]) -> None:
        self._ray = ray
        self._site = site
        self._order = order
        self.mark = ray_rules.mark_of(ray.get_runtime_context().get_session_name())
        self._actor = ray.remote(_actor_class(ray))
        self._options = {
            "lifetime": "detached", "max_restarts": 0, "max_task_retries": 0,
            "max_concurrency": MAX_CALLS,
            "enable_task_events": False,  # the head would keep a record of each call
            **ray_rules.resources(site.gpus, site.options),
        }  # fmt: skip
        self._sweep = ray.remote(ray_actor.sweep)
        self._ids: dict[str, str] = {}  # of the actors, by the names of pilots

    async def names(self) -> list[str]:
        found: list[str] = await self._in_thread(self._ray.util.list_named_actors)
        return found

    async def start(self, name: str) -> PilotHandle:
        def start() -> Any:
            return self._actor.options(name=name, **self._options).remote(self._order(name))

        return self._handle(name, await self._in_thread(start))

    async def find(self, name: str) -> PilotHandle | None:
        try:
            actor = await self._in_thread(self._ray.get_actor, name)
        except ValueError:  # it has ended meanwhile
            return None
        return self._handle(name, actor)

    def _handle(self, name: str, actor: Any) -> PilotHandle:
        self._ids[name] = actor._actor_id.hex()
        return ActorHandle(self._ray, name, actor)

    async def kill(self, name: str) -> None:
        def kill() -> None:
            with contextlib.suppress(ValueError):  # it has ended
                self._ray.kill(self._ray.get_actor(name))

        await self._in_thread(kill)

    async def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._in_thread(self._ray.nodes)
        return found

    async def sweep(self, name: str, node: str) -> str | None:
        given = GivenWorker() if node else await self._in_thread(self._worker_of, name)
        if given is None:
            return ""
        asked, is_seen = ray_rules.sweepers(await self.nodes(), node or given.node)
        workers = {given.node: given.pid}
        said = await asyncio.gather(
            *(self._sweep_at(one, name, workers.get(one, 0)) for one in asked)
        )
        left = "; ".join(filter(None, said))
        return left if left or is_seen else None

    def _worker_of(self, name: str) -> GivenWorker | None:
        """Return the worker of a pilot that has never answered; None if Ray gave it none."""
        with contextlib.suppress(AttributeError, LookupError):  # no public call of Ray tells it
            told = self._ray._private.state.actors(self._ids[name])
            pid = int(told["Pid"])
            return GivenWorker(str(told["Address"]["NodeID"]), pid) if pid else None
        return GivenWorker()

    async def _sweep_at(self, node: str, name: str, worker: int) -> str:
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node, soft=False
        )
        task = self._sweep.options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)
        try:
            return str(await asyncio.wait_for(task.remote(self._order(name), worker), SWEEP_S))
        except asyncio.TimeoutError:
            return f"no answer from its node in {SWEEP_S:.0f} s"
        except self._ray.exceptions.RayError as error:  # its node may just have died
            return str(error).partition("\n")[0]

    async def _in_thread(self, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, call, *given)
        except (self._ray.exceptions.RayError, OSError, RuntimeError) as error:
            raise ClusterAway(f"the cluster does not answer: {error}".partition("\n")[0]) from error


def _actor_class(ray: Any) -> type:
    class GrnPilot(ray_actor.PilotActor):
        def __init__(self, order: PilotOrder) -> None:
            gpus = ",".join(map(str, ray.get_gpu_ids()))
            super().__init__(order, ray.get_runtime_context().get_node_id(), gpus)

    return GrnPilot


# --- the adapter -----------------------------------------------------------------------------


async def _serve(ray: Any, site: SiteConfig, queue_id: str, speaker: LineWriter) -> None:
    def order(name: str) -> PilotOrder:
        return PilotOrder(name, queue_id, site.python, site.idle_s, dict(site.env))

    folder = _own_folder(queue_id, site.name)
    keeper = PilotKeeper(RayCluster(ray, site, order), site, folder, speaker.say)
    listening = asyncio.create_task(_listen(keeper))
    keeping = asyncio.create_task(keeper.run())
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, listening.cancel)
    await asyncio.wait([listening, keeping], return_when=asyncio.FIRST_COMPLETED)
    if keeping.done():
        keeping.result()
    keeping.cancel()
    await keeper.close()
    os._exit(0)  # Ray would take its time, and pilots that were placed stay


async def _listen(keeper: PilotKeeper) -> None:
    """Pass on the lines of the queue until it ends."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(0, "rb", 0))
    while line := await reader.readline():
        keeper.hear(json.loads(line))


def _own_folder(queue_id: str, site: str) -> str:
    """Return a folder for sockets that only this user can enter, without those of a killed one."""
    folder = f"{os.path.dirname(paths.queue_socket())}-ray-{queue_id[:12]}"
    make_own(folder, "runtime", "GRN_RUNTIME_DIR")
    for entry in os.scandir(folder):
        if ray_rules.is_pilot(site, entry.name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
    return folder


# --- a look at a site ------------------------------------------------------------------------


def _check(site: SiteConfig, speaker: LineWriter) -> int:
    """Print what is at a site in one line, or why it cannot be used."""
    try:
        ray = _connect(site, "grn-check", speaker)
        speaker.line(_facts(ray, site))
    except (Unusable, GrnError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _facts(ray: Any, site: SiteConfig) -> str:
    nodes = ray.nodes()
    count, gpus, most = ray_rules.gpus_of(nodes)
    versions = _versions(ray, site, [one["NodeID"] for one in nodes if one["Alive"]])
    wrong = sorted({text for text in versions if text != __version__})
    if wrong:
        raise Unusable(
            f"grn {__version__} is here, and on {counted(len(wrong), 'node')}: {wrong[0]}"
        )
    found = f"Ray {ray.__version__}, {counted(count, 'node')} with {counted(gpus, 'GPU')}"
    note = "" if most >= site.gpus else f"; none has {counted(site.gpus, 'GPU')} for a pilot now"
    return f"{found}, grn {__version__} there{note}"


def _versions(ray: Any, site: SiteConfig, nodes: Sequence[str]) -> list[str]:
    """Return the version of grn on some nodes, or why there is none."""
    pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    order = PilotOrder("check", "0" * 12, site.python, site.idle_s, dict(site.env))
    look = ray.remote(ray_actor.version)
    asked = [
        look.options(num_cpus=0, scheduling_strategy=pinned(node, soft=False)).remote(order)
        for node in nodes[:CHECKED_NODES]
    ]
    try:
        return list(ray.get(asked, timeout=INIT_S))
    except ray.exceptions.RayError as error:
        raise Unusable(f"the nodes do not answer: {error}".partition("\n")[0]) from error


if __name__ == "__main__":
    sys.exit(main())
