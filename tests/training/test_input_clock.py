"""The time that training waits: by the host's clock on a CPU, by the device's own on a GPU."""

import time

import pytest

torch = pytest.importorskip("torch")


def test_a_cpu_waits_as_long_as_its_host() -> None:
    from raybench.training.torch.parts import InputClock

    clock = InputClock(torch.device("cpu"))
    assert clock.seconds() == 0
    began = time.perf_counter()
    for _ in range(2):
        with clock.waiting():
            time.sleep(0.02)
    time.sleep(0.05)
    assert 0.04 <= clock.seconds() <= time.perf_counter() - began - 0.05
    assert clock.seconds() == clock.seconds()


class Stream:
    """A device of the test's own: work that is queued begins when all before it is done."""

    def __init__(self) -> None:
        self.host, self.free = 0.0, 0.0

    def work(self, seconds: float) -> None:
        self.free = max(self.free, self.host) + seconds


def test_a_gpu_waits_only_when_it_has_nothing_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from raybench.training.torch.parts import InputClock

    stream = Stream()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, on: Stream) -> None:
            assert on is stream
            self.at = max(stream.free, stream.host)

        def synchronize(self) -> None:
            stream.host = max(stream.host, self.at)

        def elapsed_time(self, other: "Event") -> float:
            return 1000 * (other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    clock = InputClock(torch.device("cuda", 0))
    stream.work(3.0)  # queued in no time
    with clock.waiting():
        stream.host += 2.0  # while the device computes
    assert clock.seconds() == 0
    stream.work(1.0)
    with clock.waiting():
        stream.host += 5.0  # one of these while it computes
        stream.work(0.5)  # the copy of the batch
    assert clock.seconds() == pytest.approx(4.5)
    assert clock.seconds() == pytest.approx(4.5)
