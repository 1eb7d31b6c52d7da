"""One driver at a time below a URL: who waits, who is refused, who is told that it lost."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from raybench.results import lease
from raybench.results.lease import LEASE_KEY, Lease, LeaseLostError
from raybench.spec.errors import ErrorCode, UserError
from tests.below_url import FakeBucket
from tests.refusals import refused


@pytest.fixture
def bucket(monkeypatch):
    for name, value in {"STALE_S": 1.0, "SETTLE_S": 0.0, "LOOK_S": 0.1}.items():
        monkeypatch.setattr(lease, name, value)
    return FakeBucket()


def test_a_dead_owner_is_waited_for_whatever_the_clocks_say(bucket, monkeypatch):
    first, said = Lease(bucket, "one"), []
    first.take()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    began = time.monotonic()
    Lease(bucket, "two", said.append).take()
    assert time.monotonic() - began >= 1.0
    assert len(said) == 1
    with pytest.raises(LeaseLostError):
        first.beat()
    first.release()
    assert b'"is_released": false' in bucket.objects[LEASE_KEY], "another's by now"


def test_an_owner_that_lives_is_named(bucket, monkeypatch):
    monkeypatch.setattr(lease, "STALE_S", 60.0)
    first = Lease(bucket, "one")
    first.take()
    with refused(ErrorCode.STUDY_IN_USE, bucket.url):
        Lease(bucket, "two", lambda sentence: first.beat()).take()


def test_one_that_was_given_back_or_is_of_the_same_machine_is_taken_at_once(bucket, monkeypatch):
    monkeypatch.setattr(lease, "LOOK_S", None)  # nobody waits
    first = Lease(bucket, "one")
    first.take()
    second = Lease(bucket, "one")
    second.take()
    second.release()
    Lease(bucket, "two").take()


def test_one_that_is_given_back_is_waited_for_no_longer(bucket, monkeypatch):
    monkeypatch.setattr(lease, "STALE_S", 60.0)
    first = Lease(bucket, "one")
    first.take()
    Lease(bucket, "two", lambda sentence: first.release()).take()


def test_a_lease_that_cannot_be_read_ages(bucket):
    bucket.put(LEASE_KEY, b"nonsense")
    Lease(bucket, "two").take()
    bucket.objects[LEASE_KEY] = b'{"another": "version"}'
    Lease(bucket, "two").take()


def test_of_two_that_take_it_at_once_one_gets_it(bucket, monkeypatch):
    monkeypatch.setattr(lease, "SETTLE_S", 0.3)
    for _ in range(3):
        bucket.objects.clear()
        together = threading.Barrier(2)

        def take(name, together=together):
            one = Lease(bucket, name)
            together.wait()
            try:
                one.take()
                one.beat()
            except (UserError, LeaseLostError):
                return "refused"
            return name

        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(take, ["one", "two"]))
        assert got.count("refused") == 1, got
