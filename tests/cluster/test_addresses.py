"""Interfaces by the route to rank 0, on a host with several; nothing here needs a network."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import pytest

from raybench.cluster import connectivity
from raybench.cluster.connectivity import (
    VARIABLE,
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

CARDS = {
    "lo": [(socket.AF_INET, "127.0.0.1")],
    "docker0": [(socket.AF_INET, "172.17.0.1")],
    "eth0": [(socket.AF_INET, "10.77.0.2"), (socket.AF_INET6, "fe80::2%eth0")],
    "ib0": [(socket.AF_INET6, "fd00::2"), (socket.AF_INET, "10.88.0.2")],
    "tap": [],
}
ROUTES = {"10.77.0.1": "10.77.0.2", "10.88.0.9": "10.88.0.2", "fe80::1": "fe80::2"}


class FakeSocket:
    """Knows the routes above; sends nothing."""

    def __init__(self, family: int, kind: int) -> None:
        assert kind == socket.SOCK_DGRAM, "anything else would send"
        self.family = family

    def __enter__(self) -> "FakeSocket":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def connect(self, where: tuple[str, int]) -> None:
        if where[0] not in ROUTES and where[0] != "10.99.0.1":
            raise OSError(101, "Network is unreachable")
        assert self.family == (socket.AF_INET6 if ":" in where[0] else socket.AF_INET)
        self.own = ROUTES.get(where[0], "192.0.2.1")

    def getsockname(self) -> tuple[str, int]:
        return self.own, 1


@pytest.fixture
def _several_cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cards = {
        name: [SimpleNamespace(family=family, address=address) for family, address in each]
        for name, each in CARDS.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: cards)
    monkeypatch.setattr(connectivity.socket, "socket", FakeSocket)
    monkeypatch.setattr(connectivity.socket, "gethostname", lambda: "b")
    for name in (VARIABLE, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    return


@pytest.mark.usefixtures("_several_cards")
class TestInterfaces:
    @pytest.mark.parametrize(
        ("rank_0", "name"), [("10.77.0.1", "eth0"), ("10.88.0.9", "ib0"), ("fe80::1", "eth0")]
    )
    def test_it_leads_to_rank_0(self, rank_0: str, name: str) -> None:
        assert route_to(rank_0) == (name, ROUTES[rank_0])

    def test_without_a_route_it_says_so(self) -> None:
        for rank_0, named in (("10.66.0.1", "10.66.0.1"), ("10.99.0.1", "192.0.2.1")):
            with pytest.raises(NoInterface) as missing:
                route_to(rank_0)
            assert named in str(missing.value)

    def test_a_named_one_goes_before_the_route(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert find_place("10.77.0.1", None) == Place("b", "eth0", "10.77.0.2")
        assert find_place("10.77.0.1", "ib0") == Place("b", "ib0", "10.88.0.2")
        monkeypatch.setenv(VARIABLE, "docker0")  # on this host itself
        assert find_place("10.77.0.1", "ib0") == Place("b", "docker0", "172.17.0.1")

    @pytest.mark.parametrize("name", ["ib7", "tap"])
    def test_one_that_is_not_there_names_those_that_are(self, name: str) -> None:
        with pytest.raises(NoInterface) as missing:
            address_of(name)
        assert all(one in str(missing.value) for one in (name, "docker0, eth0, ib0"))

    def test_gloo_gets_the_name_and_nccl_exactly_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        place = Place("b", "eth0", "10.77.0.2")
        both = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
        assert interface_variables(place, is_named=False) == both
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^lo")  # the host's own says
        assert interface_variables(place, is_named=False) == {"GLOO_SOCKET_IFNAME": "eth0"}
        assert interface_variables(place, is_named=True) == both


def test_tensorflow_meets_at_the_places_ports_kept() -> None:
    places = [Place("a", "eth0", "10.77.0.1"), Place("b", "eth0", "fd00::2")]
    assert replace_hosts(["192.0.2.1:7001", "[::1]:7002"], places) == [
        "10.77.0.1:7001",
        "[fd00::2]:7002",
    ]


def meet(size: int, *, lost: int = -1) -> list[str | None]:
    """Let `size` workers of this host try each other; nobody listens for `lost`."""
    with ExitStack() as opened:
        listeners = [opened.enter_context(listen_at("127.0.0.1", size)) for _ in range(size)]
        places = [
            Place(f"host{rank}", "lo", "127.0.0.1", one.getsockname()[1])
            for rank, one in enumerate(listeners)
        ]
        if lost >= 0:
            listeners[lost].close()
        return [connection_problem(rank, places) for rank in range(size) if rank != lost]


def test_every_worker_reaches_the_others() -> None:
    assert meet(3) == [None] * 3


def test_one_that_cannot_be_reached_is_named_with_what_to_set() -> None:
    for sentence in meet(3, lost=1):
        assert sentence is not None
        assert sentence.startswith(connectivity.UNREACHED)
        assert all(name in sentence for name in (" lo ", "127.0.0.1", "host1", VARIABLE))
        assert "\n" not in sentence


def test_what_no_other_host_can_reach_is_said_without_trying() -> None:
    here, there = (Place(f"rb{n}", "lo", "127.0.0.1", node=f"10.77.0.{n}") for n in (1, 2))
    sentence = connectivity.loopback_problem([here, there])
    assert sentence is not None
    assert sentence.startswith(connectivity.MISNAMED)
    assert all(name in sentence for name in ("rb1", " lo ", "127.0.0.1"))
    assert connectivity.loopback_problem([here, here]) is None, "two workers of one host"
    out = Place("rb2", "eth0", "10.77.0.2", node="10.77.0.2")
    assert (
        connectivity.loopback_problem([out, Place("rb1", "eth0", "10.77.0.1", node="10.77.0.1")])
        is None
    )
