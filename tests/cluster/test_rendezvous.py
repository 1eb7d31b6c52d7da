"""Choice of the network interface on a host with several interfaces. No network is needed."""

import socket
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import pytest

from raybench.cluster.ray_internals import rendezvous
from raybench.cluster.ray_internals.rendezvous import (
    INTERFACE_VARIABLE,
    NoInterface,
    Place,
    address_of,
    connection_problem,
    find_place,
    interface_variables,
    listen_at,
    replace_hosts,
    route_to,
)

INTERFACES = {
    "lo": [(socket.AF_INET, "127.0.0.1")],
    "docker0": [(socket.AF_INET, "172.17.0.1")],
    "eth0": [(socket.AF_INET, "10.77.0.2"), (socket.AF_INET6, "fe80::2%eth0")],
    "ib0": [(socket.AF_INET6, "fd00::2"), (socket.AF_INET, "10.88.0.2")],
    "tap": [],
}
ROUTES = {"10.77.0.1": "10.77.0.2", "10.88.0.9": "10.88.0.2", "fe80::1": "fe80::2"}


class FakeSocket:
    """Fake UDP socket that knows `ROUTES` and sends nothing."""

    def __init__(self, family: int, kind: int) -> None:
        assert kind == socket.SOCK_DGRAM, "anything else would send"
        self.family = family

    def __enter__(self) -> "FakeSocket":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def connect(self, address: tuple[str, int]) -> None:
        host = address[0]
        if host not in ROUTES and host != "10.99.0.1":
            raise OSError(101, "Network is unreachable")
        assert self.family == (socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.own_address = ROUTES.get(host, "192.0.2.1")

    def getsockname(self) -> tuple[str, int]:
        return self.own_address, 1


@pytest.fixture
def several_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this host "b", with the interfaces and routes above."""
    interfaces = {
        name: [SimpleNamespace(family=family, address=address) for family, address in addresses]
        for name, addresses in INTERFACES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(rendezvous.socket, "socket", FakeSocket)
    monkeypatch.setattr(rendezvous.socket, "gethostname", lambda: "b")
    for name in (INTERFACE_VARIABLE, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("several_interfaces")
class TestInterfaces:
    @pytest.mark.parametrize(
        ("rank_0", "name"), [("10.77.0.1", "eth0"), ("10.88.0.9", "ib0"), ("fe80::1", "eth0")]
    )
    def test_interface_is_the_one_on_the_route_to_rank_0(self, rank_0, name):
        assert route_to(rank_0) == (name, ROUTES[rank_0])

    def test_address_without_usable_route_is_named(self):
        for rank_0, named_address in (("10.66.0.1", "10.66.0.1"), ("10.99.0.1", "192.0.2.1")):
            with pytest.raises(NoInterface) as caught:
                route_to(rank_0)
            assert named_address in str(caught.value)

    def test_named_interface_takes_precedence_over_the_route(self, monkeypatch):
        assert find_place("10.77.0.1", None) == Place("b", "eth0", "10.77.0.2")
        assert find_place("10.77.0.1", "ib0") == Place("b", "ib0", "10.88.0.2")
        monkeypatch.setenv(INTERFACE_VARIABLE, "docker0")  # the variable of a host wins
        assert find_place("10.77.0.1", "ib0") == Place("b", "docker0", "172.17.0.1")

    @pytest.mark.parametrize("name", ["ib7", "tap"])
    def test_unknown_interface_lists_the_existing_ones(self, name):
        with pytest.raises(NoInterface) as caught:
            address_of(name)
        assert name in str(caught.value)
        assert "docker0, eth0, ib0" in str(caught.value)

    def test_interface_variables_of_gloo_and_nccl(self, monkeypatch):
        place = Place("b", "eth0", "10.77.0.2")
        both = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
        assert interface_variables(place, is_named=False) == both
        # A variable set on the host is kept, unless an interface is named.
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^lo")
        assert interface_variables(place, is_named=False) == {"GLOO_SOCKET_IFNAME": "eth0"}
        assert interface_variables(place, is_named=True) == both


def test_replace_hosts_keeps_ports():
    places = [Place("a", "eth0", "10.77.0.1"), Place("b", "eth0", "fd00::2")]
    assert replace_hosts(["192.0.2.1:7001", "[::1]:7002"], places) == [
        "10.77.0.1:7001",
        "[fd00::2]:7002",
    ]


def test_unreachable_worker_is_named_with_the_variable_to_set():
    with ExitStack() as opened:
        listeners = [opened.enter_context(listen_at("127.0.0.1", 3)) for _ in range(3)]
        places = [
            Place(f"host{rank}", "lo", "127.0.0.1", listener.getsockname()[1])
            for rank, listener in enumerate(listeners)
        ]
        assert [connection_problem(rank, places) for rank in range(3)] == [None] * 3
        listeners[1].close()
        for rank in (0, 2):
            (sentence,) = (connection_problem(rank, places) or "").splitlines()
            assert sentence.startswith(rendezvous.UNREACHED)
            names = (" lo ", "127.0.0.1", "host1", INTERFACE_VARIABLE)
            assert all(name in sentence for name in names)


def test_loopback_address_on_two_hosts_is_reported_without_connecting():
    loopback = [Place(f"rb{n}", "lo", "127.0.0.1", node=f"10.77.0.{n}") for n in (1, 2)]
    sentence = rendezvous.loopback_problem(loopback)
    assert sentence.startswith(rendezvous.MISNAMED)
    assert all(name in sentence for name in ("rb1", " lo ", "127.0.0.1"))
    assert rendezvous.loopback_problem([loopback[0]] * 2) is None, "two workers of one host"
    routable = [Place(f"rb{n}", "eth0", f"10.77.0.{n}", node=f"10.77.0.{n}") for n in (2, 1)]
    assert rendezvous.loopback_problem(routable) is None
