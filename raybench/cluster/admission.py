"""Who may run now: worker groups, the trials that wait for them, and what must close for whom.

Pure bookkeeping without Ray, so that it is tested on thousands of fake trials. Trials are
admitted first come, first served, by the sum of the workers they need: a wide trial at the
head of the queue is never overtaken, so it cannot starve, and nothing that was admitted waits
for anything else, so nothing can deadlock.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """What a worker group is: groups of one shape are interchangeable."""

    framework: str
    num_workers: int
    cpus_per_worker: int = 1
    gpus_per_worker: int = 0

    @property
    def cpus(self) -> int:
        """CPU cores of the whole group."""
        return self.num_workers * self.cpus_per_worker

    @property
    def gpus(self) -> int:
        """GPUs of the whole group."""
        return self.num_workers * self.gpus_per_worker


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A trial may run: in which group, whether that is new, and what must close first."""

    trial: str
    group: int
    shape: Shape
    is_new: bool
    evict: tuple[int, ...] = ()


@dataclass
class _Group:
    shape: Shape
    trial: str | None
    last_used: int = 0


@dataclass
class Admission:
    """The pool's state.

    `idle_holds_cpus`: whether an idle group keeps its cores reserved (it does where several
    nodes share them out; on one node its processes merely sleep). GPUs are always held,
    because their memory is. `max_workers` bounds the processes alive, idle ones included.
    """

    cpus: int
    gpus: int = 0
    max_workers: int = 10**9
    idle_holds_cpus: bool = False
    groups: dict[int, _Group] = field(default_factory=dict)
    waiting: list[tuple[str, Shape]] = field(default_factory=list)
    _clock: int = 0
    _next_group: int = 0

    def fits(self, shape: Shape) -> bool:
        """Whether the shape fits an otherwise empty cluster."""
        return shape.cpus <= self.cpus and shape.gpus <= self.gpus

    def submit(self, trial: str, shape: Shape) -> None:
        """Put a trial at the end of the queue."""
        assert self.fits(shape), f"{shape} can never fit: refuse it before the search starts"
        self.waiting.append((trial, shape))

    def cancel(self, trial: str) -> None:
        """Take a waiting trial out of the queue."""
        self.waiting = [entry for entry in self.waiting if entry[0] != trial]

    def admit(self) -> list[Grant]:
        """Grant groups to as many trials from the head of the queue as fit now."""
        grants = []
        while self.waiting:
            grant = self._place(*self.waiting[0])
            if grant is None:
                break
            self.waiting.pop(0)
            grants.append(grant)
        return grants

    def release(self, trial: str) -> int | None:
        """Mark the trial's group idle; return the group, None if it had none."""
        self._clock += 1
        for number, group in self.groups.items():
            if group.trial == trial:
                group.trial, group.last_used = None, self._clock
                return number
        return None

    def remove(self, group: int) -> None:
        """Forget a group that closed or crashed."""
        self.groups.pop(group, None)

    def busy(self) -> list[str]:
        """Trials that hold a group now."""
        return [group.trial for group in self.groups.values() if group.trial is not None]

    def _place(self, trial: str, shape: Shape) -> Grant | None:
        idle = sorted(
            (number for number, group in self.groups.items() if group.trial is None),
            key=lambda number: self.groups[number].last_used,
        )
        for number in reversed(idle):
            if self.groups[number].shape == shape:
                if not self._has_room(shape, reused=number):
                    return None
                self.groups[number].trial = trial
                return Grant(trial=trial, group=number, shape=shape, is_new=False)
        evict: list[int] = []
        while not self._has_room(shape, evicted=evict):
            if not idle:
                return None
            evict.append(idle.pop(0))
        # Oldest first may have named groups whose end frees nothing that was missing.
        for number in list(evict):
            others = [other for other in evict if other != number]
            if self._has_room(shape, evicted=others):
                evict = others
        for number in evict:
            del self.groups[number]
        number = self._next_group
        self._next_group += 1
        self.groups[number] = _Group(shape, trial)
        return Grant(trial=trial, group=number, shape=shape, is_new=True, evict=tuple(evict))

    def _has_room(
        self, shape: Shape, *, reused: int | None = None, evicted: list[int] | None = None
    ) -> bool:
        cpus, gpus, workers = shape.cpus, shape.gpus, shape.num_workers
        for number, group in self.groups.items():
            if number == reused or number in (evicted or []):
                continue
            active = group.trial is not None
            cpus += group.shape.cpus if active or self.idle_holds_cpus else 0
            gpus += group.shape.gpus
            workers += group.shape.num_workers
        return (
            cpus <= self.cpus
            and gpus <= self.gpus
            and workers <= max(self.max_workers, shape.num_workers)
        )
