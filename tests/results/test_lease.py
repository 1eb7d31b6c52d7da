"""Who may write below a URL."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from raybench.results import lock
from raybench.results.bucket import Bucket
from raybench.results.lock import Lease, LeaseLostError
from raybench.spec.errors import UserError
from tests.s3_server import FAST


def test_a_host_whose_clock_is_wrong_is_no_trouble(url, monkeypatch):
    first = Lease(Bucket(url), "one")
    first.take()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    began = time.monotonic()
    Lease(Bucket(url), "two").take()
    assert time.monotonic() - began > FAST["LEASE_STALE_S"] - 2
    with pytest.raises(lock.LeaseLostError, match="taken over by"):
        first.beat()


def test_a_lease_that_cannot_be_read_ages(url):
    Bucket(url).put(lock.LEASE_KEY, b"nonsense")
    Lease(Bucket(url), "two").take()


def test_one_that_brought_nothing_did_not_write_last(url, monkeypatch):
    first = Lease(Bucket(url), "one")
    assert first.take() is None
    assert json.loads(Bucket(url).get(lock.LEASE_KEY))["who"], "for people"
    first.settle()
    first.release()
    monkeypatch.setattr(lock, "LEASE_LOOK_S", None)  # given back, it is taken at once
    killed = Lease(Bucket(url), "two")
    assert killed.take() == "one"
    assert Lease(Bucket(url), "two").take() == "one", "its next start"
    killed.release()
    assert not json.loads(Bucket(url).get(lock.LEASE_KEY))["released"], "another's by now"


def test_of_two_that_take_it_at_once_one_gets_it(url, monkeypatch):
    monkeypatch.setattr(lock, "SETTLE_S", 1.0)  # a busy machine may hold one of them up
    for number in range(3):
        bucket, together = Bucket(f"{url}/{number}"), threading.Barrier(2)

        def take(name, bucket=bucket, together=together):
            one = Lease(bucket, name)
            together.wait()
            try:
                one.take()
                one.beat()
            except (UserError, LeaseLostError) as error:
                return str(error)
            return name

        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(take, ["one", "two"]))
        assert sorted(len(one) > 3 for one in got) == [False, True], got
        assert re.search("is in use by|was taken over by", max(got, key=len))
