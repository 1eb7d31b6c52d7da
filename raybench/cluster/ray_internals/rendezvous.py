"""Rendezvous of workers, by which they connect: torch's process groups and TensorFlow's TF_CONFIG.

Torch workers on one host meet through a file, because torch's default, a store on rank 0, listens
on all addresses of the machine without authentication.

Workers on several hosts use a network interface that is chosen and tested first. If hosts cannot
reach each other, Gloo and TensorFlow hang for minutes without a message, or report only that a mesh
was not established. Therefore every worker first connects to every other worker over the interface
that the group will use, so that each pair of hosts is tested in both directions. Gloo is configured
with the name of an interface, NCCL with prefixes of names (or an exact name after `=`), and
TensorFlow with the addresses of all workers. By default, each library guesses, and on a host with
several interfaces it may choose a container's bridge or the loopback interface.

Both kinds of rendezvous are implemented by extending the method `on_start` of Ray Train's backends.
"""

import importlib
import ipaddress
import json
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray

from raybench.training.base import find_part

INTERFACE_VARIABLE = "RAYBENCH_INTERFACE"
"""Environment variable with the name of the network interface. If set on the driver, it applies to
all hosts; if set on a host, only to that host."""
DISCARD_PORT = 9
"""Port for a UDP socket that is only used to look up a route; connecting it sends no packet."""


class NoInterface(LookupError):  # noqa: N818 (a result that becomes a sentence, not a bug)
    """Raised if a host lacks the interface or has no route to an address; the message says
    which."""


@dataclass(frozen=True)
class Place:
    """Network address at which the other workers of a group reach a worker."""

    host: str
    """Name of the worker's host."""
    interface: str
    """Name of the host's network interface."""
    address: str
    """IP address of the interface."""
    port: int = 0
    """Port on which the worker listens during the test before training."""
    node: str = ""
    """IP address of the host as registered in Ray."""


def route_to(address: str) -> tuple[str, str]:
    """Return the network interface of this host from which packets to `address` are sent, and the
    interface's address; raise NoInterface if there is none."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, DISCARD_PORT))
        except OSError as error:
            raise NoInterface(f"there is no route to {address} ({error.strerror})") from None
        local_address: str = probe.getsockname()[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == local_address for entry in entries):
            return name, local_address
    raise NoInterface(
        f"no network interface has the address {local_address}, from which {address} is reached"
    )


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, or its IPv6 address if it has no other.

    Raises:
        NoInterface: There is no such interface, or it has no address.
    """
    interfaces = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in interfaces.get(interface, []):
            if entry.family == family:
                return entry.address.split("%")[0]
    raise NoInterface(
        f"there is no network interface {interface} that has an address (available: "
        f"{', '.join(interfaces)})"
    )


def find_place(rank_0: str, named: str | None) -> Place:
    """Return host name, network interface and address for a worker on this host.

    Args:
        rank_0: Address of rank 0; by default, the interface with a route to it is used.
        named: Interface that the user has set on the driver; None if not set. RAYBENCH_INTERFACE on
            this host takes precedence.

    Raises:
        NoInterface: There is no such interface, or no route to `rank_0`.
    """
    named = os.environ.get(INTERFACE_VARIABLE) or named
    host = socket.gethostname()
    if named:
        return Place(host, named, address_of(named))
    return Place(host, *route_to(rank_0))


def interface_variables(place: Place, *, is_named: bool) -> dict[str, str]:
    """Return the environment variables that set the interface for Gloo and NCCL.

    Variables that are already set on this host are left out, so that they keep their values, unless
    the user has chosen the interface (`is_named`).
    """
    name = place.interface
    wanted = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return {name: value for name, value in wanted.items() if is_named or not os.environ.get(name)}


def replace_hosts(cluster: list[str], places: list[Place]) -> list[str]:
    """Return TensorFlow's list of workers (`host:port` each) with the hosts replaced by the
    addresses of `places`; the ports stay the same."""
    members = []
    for member, place in zip(cluster, places, strict=True):
        host = f"[{place.address}]" if ":" in place.address else place.address
        members.append(f"{host}:{member.rpartition(':')[2]}")
    return members


REACH_TIMEOUT_S = 10.0
"""Timeout in seconds of the test connection from one worker to another."""
UNREACHED = "the workers cannot reach each other: "
"""Prefix of the error message, used to find the message inside an error raised by Ray."""
MISNAMED = f"{UNREACHED}with {INTERFACE_VARIABLE} set, "
"""Prefix of the error message if the user has set a wrong interface: a retry would not help."""


def listen_at(address: str, size: int) -> socket.socket:
    """Return a socket that listens on `address` on a free port, with a backlog of `size`."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=size)


def connection_problem(rank: int, places: list[Place]) -> str | None:
    """Connect from a rank to all other ranks; return an error message, or None if all answer.

    Args:
        rank: Rank of this worker.
        places: Addresses and ports at which the ranks listen, in rank order.
    """
    place = places[rank]
    for other in (*places[:rank], *places[rank + 1 :]):
        try:
            # Connect from the interface that the group will use: another interface may have a
            # route, too, but Gloo would not use it.
            socket.create_connection(
                (other.address, other.port), REACH_TIMEOUT_S, source_address=(place.address, 0)
            ).close()
        except OSError as error:
            return (
                f"{UNREACHED}host {place.host} on interface {place.interface} ({place.address}) "
                f"cannot connect to {other.address} of host {other.host} "
                f"({error.strerror or error}); open the hosts' ports to each other, or set "
                f"another interface: {INTERFACE_VARIABLE}=NAME."
            )
    return None


def loopback_problem(places: list[Place]) -> str | None:
    """Return an error message if a worker uses a loopback address although there are other hosts;
    otherwise None."""
    for place in places:
        others = {other.node for other in places} - {place.node}
        if others and ipaddress.ip_address(place.address).is_loopback:
            return (
                f"{MISNAMED}host {place.host} uses {place.interface} ({place.address}), which no "
                f"other host can reach; set one with a route to them: {INTERFACE_VARIABLE}=NAME."
            )
    return None


USED = ("execute_single_async", "get_resources_per_worker")
"""Methods of Ray Train's worker group that are called here."""
_listeners: list[socket.socket] = []
"""Socket on which this worker listens during the test of the network; empty outside the test."""


class Unreached(Exception):  # noqa: N818 (a result that becomes a sentence, not a bug)
    """Raised if workers cannot connect to each other; the message names the hosts and says what to
    do."""


def rendezvous_config(
    framework: str, *, file: str | None = None, interface: str | None = None
) -> dict[str, Any]:
    """Return the keyword argument of a Ray Train trainer that sets the rendezvous of its workers.

    Args:
        framework: `torch` or `tensorflow`.
        file: File for the rendezvous of torch workers on one host; None to set and test the
            workers' network interface instead.
        interface: Network interface set by the user; None to detect it on each host.

    Returns:
        `{"torch_config": ...}` or `{"tensorflow_config": ...}`. Empty if Ray lacks the classes that
        are extended here; torch's store then listens on a port, and the frameworks guess the
        interface.
    """
    name = framework.capitalize()
    try:
        stock: Any = importlib.import_module(f"ray.train.{framework}.config")
        config_class: Any = getattr(stock, f"{name}Config")
        backend_class: Any = getattr(stock, f"_{name}Backend")
    except (ImportError, AttributeError):
        return {}

    class RendezvousBackend(backend_class):  # type: ignore[misc, unused-ignore]
        """Ray's backend, extended so that workers meet through a file, or over a network interface
        whose connections were tested first."""

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            """Connect all ranks; called by Ray Train once the workers have started."""
            is_alone = len(worker_group) == 1
            if not all(hasattr(worker_group, name) for name in USED):
                if not (file and is_alone):
                    super().on_start(worker_group, backend_config)
                return
            if framework == "torch":
                _hide_gpus(worker_group)
            if file:
                _meet_in_file(worker_group, file, backend_config.timeout_s)
                return
            places = [] if is_alone else connect(worker_group, interface)
            super().on_start(worker_group, backend_config)
            if framework == "tensorflow" and places:
                call_ranks(worker_group, _use_addresses, [(places,) for _ in places])

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            """Leave the process group, if there is one, and delete the file."""
            if not file or len(worker_group) > 1:
                super().on_shutdown(worker_group, backend_config)
            if file:
                Path(file).unlink(missing_ok=True)

    class RendezvousConfig(config_class):  # type: ignore[misc, unused-ignore]
        """Ray's configuration of the framework, with the backend `RendezvousBackend`."""

        @property
        def backend_cls(self) -> type:
            """Backend class, which connects the workers."""
            return RendezvousBackend

    return {f"{framework}_config": RendezvousConfig()}


def _hide_gpus(worker_group: Any) -> None:
    """Hide all GPUs from workers that have none reserved.

    Ray leaves CUDA_VISIBLE_DEVICES unset for such workers, and asks torch for GPUs before the train
    function `serve` begins.
    """
    if not worker_group.get_resources_per_worker().get("GPU", 0):
        call_ranks(worker_group, _see_no_gpu, [()] * len(worker_group))


def _see_no_gpu() -> None:
    """Hide all GPUs from this process; runs in a worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _meet_in_file(worker_group: Any, file: str, timeout_s: int) -> None:
    """Create torch's process group on all workers, with a new file for the rendezvous; does nothing
    for a single worker."""
    size, gpus = len(worker_group), worker_group.get_resources_per_worker().get("GPU", 0)
    shared = {"backend": "nccl" if gpus else "gloo", "size": size, "file": file}
    calls = [
        worker_group.execute_single_async(rank, _join, member=rank, timeout_s=timeout_s, **shared)
        for rank in range(size)
        if size > 1
    ]
    ray.get(calls)


def _join(**arguments: Any) -> None:
    """Join torch's process group (`torch.world.meet_in_file`); runs in a worker."""
    find_part("torch", "world").meet_in_file(**arguments)


def _use_addresses(places: list[Place]) -> None:
    """Set the addresses of the workers in TF_CONFIG to the tested ones; runs in a worker."""
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"] = replace_hosts(config["cluster"]["worker"], places)
    os.environ["TF_CONFIG"] = json.dumps(config)


def connect(worker_group: Any, interface: str | None) -> list[Place]:
    """Set and test the network interface of every worker; return the address of every rank.

    Args:
        worker_group: Ray Train's worker group.
        interface: Interface set by the user on the driver; None to detect it on each host.

    Raises:
        Unreached: A worker's host lacks the interface, or a worker cannot connect to another one.
    """
    size = len(worker_group)
    rank_0 = ray.get(worker_group.execute_single_async(0, ray.util.get_node_ip_address))
    places = call_ranks(worker_group, _set_interface, [(rank_0, interface, size)] * size)
    _raise_problem(next((answer for answer in places if isinstance(answer, str)), None))
    _raise_problem(loopback_problem(places))
    tried = call_ranks(worker_group, connection_problem, [(rank, places) for rank in range(size)])
    call_ranks(worker_group, _close_listener, [()] * size)
    _raise_problem(next(filter(None, tried), None))
    return places


def call_ranks(worker_group: Any, function: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Call `function(*arguments[r])` on every rank r and return the results in rank order."""
    calls = [
        worker_group.execute_single_async(rank, function, *rank_arguments)
        for rank, rank_arguments in enumerate(arguments)
    ]
    answers: list[Any] = ray.get(calls, timeout=2 * REACH_TIMEOUT_S)
    return answers


def _raise_problem(sentence: str | None) -> None:
    """Raise Unreached with an error message, if there is one."""
    if sentence is not None:
        raise Unreached(sentence)


def _set_interface(rank_0: str, named: str | None, size: int) -> Place | str:
    """Choose the network interface, set it for Gloo and NCCL, and listen on it; runs in a worker.

    Args:
        rank_0: Address of rank 0.
        named: Interface set by the user on the driver; None if not set.
        size: Number of workers.

    Returns:
        The address at which this worker listens, or an error message if there is no such interface.
    """
    is_named = bool(named or os.environ.get(INTERFACE_VARIABLE))
    try:
        place = find_place(rank_0, named)
        listener = listen_at(place.address, size)
    except (NoInterface, OSError) as problem:
        begin = MISNAMED if is_named else UNREACHED
        return (
            f"{begin}on host {socket.gethostname()} {problem}; set an interface of that host: "
            f"{INTERFACE_VARIABLE}=NAME."
        )
    os.environ.update(interface_variables(place, is_named=is_named))
    _listeners[:] = [listener]
    port = int(listener.getsockname()[1])
    return replace(place, port=port, node=ray.util.get_node_ip_address())


def _close_listener() -> None:
    """Close the socket on which this worker listens; runs in a worker."""
    _listeners.pop().close()
