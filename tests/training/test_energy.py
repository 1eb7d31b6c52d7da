"""Joules of a worker's GPUs and of its share of the host, from counters that are not there."""

import math
import sys
from pathlib import Path

import pytest

from raybench.report.answer import said
from raybench.report.export import export
from raybench.results.store import StudyFiles
from raybench.results.study import Study
from raybench.stats.clock import CpuUse, Ledger
from raybench.training import machine
from raybench.training.machine import Joules
from tests.made_results import results_folder, run_line
from tests.training.fake_gpus import FakeNvml

RANGE_J = 262.0


class Counting(FakeNvml):
    """A driver whose two GPUs have drawn `joules` each so far; None: it does not count."""

    joules: float | None = 0.0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        if self.joules is None:
            raise self.NVMLError
        return int(1000 * self.joules)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of one package with its memory; its cores are in the package, psys has all."""
    for zone, name in (("0", "package-0"), ("0:0", "core"), ("0:1", "dram"), ("1", "psys")):
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text("1000000\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE_J * 1e6:.0f}\n")
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    return tmp_path


def count(powercap: Path, zone: str, joules: float) -> None:
    (powercap / f"intel-rapl:{zone}/energy_uj").write_text(f"{joules * 1e6:.0f}\n")


def test_it_is_of_the_gpus_and_a_share_of_the_host(nvml: Counting, powercap: Path) -> None:
    joules = Joules((0, 1), gpu_share=0.5, host_share=0.25)
    assert joules.so_far() == 0.0
    nvml.joules = 100.0
    for zone, drawn in (("0", 41.0), ("0:0", 30.0), ("0:1", 9.0), ("1", 60.0)):
        count(powercap, zone, drawn)
    assert joules.so_far() == pytest.approx(0.5 * 200 + 0.25 * (40 + 8))
    count(powercap, "0", 11.0)  # which begins anew at its end
    assert joules.so_far() == pytest.approx(112 + 0.25 * (RANGE_J - 30))


def test_where_nobody_tells_nothing_is_known(nvml: Counting, powercap: Path) -> None:
    for file in powercap.glob("*/energy_uj"):
        file.unlink()  # root may read them, so that they are not there is what can be tested
    assert math.isnan(Joules(()).so_far())
    gpu = Joules((0,))
    assert gpu.so_far() == 0.0
    nvml.joules = None
    assert math.isnan(gpu.so_far())
    nvml.joules = 5.0
    assert math.isnan(gpu.so_far()), "what was drawn meanwhile is not known"


def test_a_ledger_has_the_joules_of_training() -> None:
    drawn = iter([CpuUse(joules=one) for one in (10.0, 17.0, 20.0, 21.0)])
    ledger = Ledger("setup", cpu=lambda: next(drawn))
    for phase in ("train", "eval", "train", "report"):
        ledger.enter(phase)
    assert ledger.energy_j == 8.0
    assert "joules" not in ledger.snapshot()
    unknown = Ledger("setup", cpu=lambda: CpuUse(joules=math.nan))
    unknown.enter("train")
    unknown.enter("eval")
    assert unknown.energy_j is None
    drawn = iter([CpuUse(joules=one) for one in (1.0, 2.0)])
    continued = Ledger("setup", cpu=lambda: next(drawn), earlier={"train": 3.0})
    continued.enter("train")
    continued.enter("eval")
    assert continued.energy_j is None


def export_has_energy(results: Study) -> bool:
    table, *_ = export(results, StudyFiles(results.folder))
    return "energy_j" in table.read_text().splitlines()[0]


def test_records_tables_and_answers_have_it(tmp_path: Path) -> None:
    runs = [run_line("0000", 3.0), run_line("0001", 2.0, learning_rate=0.1)]
    plain = results_folder(tmp_path / "plain", runs)
    assert not export_has_energy(plain)
    assert " J" not in " ".join(said(plain).lines)
    known = results_folder(tmp_path / "known", [one | {"energy_j": 340.0} for one in runs])
    assert known.trials["energy_j"].tolist() == [340.0] * 2
    assert export_has_energy(known)
    assert "worker-seconds, 340 J" in " ".join(said(known).lines)
