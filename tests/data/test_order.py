import numpy as np
import pytest

from raybench.data.dataset import batches, epoch_order, shard, worker_share


def test_epoch_order_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    order = epoch_order(100, seed=3, epoch=2)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(100))
    np.testing.assert_array_equal(order, epoch_order(100, seed=3, epoch=2))
    assert (order != epoch_order(100, seed=4, epoch=2)).any()
    assert (order != epoch_order(100, seed=3, epoch=3)).any()
    assert (epoch_order(100, seed=1, epoch=2) != epoch_order(100, seed=2, epoch=1)).any()


def test_epoch_order_is_pinned():
    # Another numpy or platform must give the same order, or records cannot be compared.
    assert epoch_order(8, seed=0, epoch=0).tolist() == [5, 0, 1, 4, 2, 6, 3, 7]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 5, 7, 8, 64])
def test_shares_of_all_ranks_are_the_batch(size, num_workers):
    batch = epoch_order(size, seed=0, epoch=0)
    shares = [
        worker_share(batch, rank=rank, num_workers=num_workers) for rank in range(num_workers)
    ]
    np.testing.assert_array_equal(np.concatenate(shares), batch)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if size % num_workers == 0:
        assert len(set(sizes)) == 1


@pytest.mark.parametrize("repeat", [1, 3])
def test_two_workers_see_the_batches_of_one_with_twice_the_batch_size(repeat):
    num_samples = 50 * repeat
    order = epoch_order(num_samples, seed=1, epoch=0)
    assert np.bincount(order % 50).tolist() == [repeat] * 50
    for start in range(0, num_samples, 2 * 16):
        batch = order[start : start + 2 * 16]
        one = worker_share(batch, rank=0, num_workers=1)
        two = [worker_share(batch, rank=rank, num_workers=2) for rank in range(2)]
        assert set(one) == set(two[0]) | set(two[1])
        assert max(len(share) for share in two) <= 16


@pytest.mark.parametrize(
    ("num_samples", "least", "ends"),
    [(24, 4, [8, 16, 24]), (28, 4, [8, 16, 24, 28]), (27, 4, [8, 16, 27]), (3, 4, [3])],
)
def test_a_remainder_that_is_too_small_joins_the_batch_before(num_samples, least, ends):
    found = list(batches(num_samples, size=8, least=least))
    assert [one.stop for one in found] == ends
    assert [one.start for one in found] == [0, *ends[:-1]]
    later = batches(num_samples, size=8, least=least, first=ends[0])
    assert list(later) == found[1:], "a run that goes on has the same"


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_shards_cover_the_validation_set_once(num_workers):
    rows = np.arange(20)
    parts = [rows[shard(20, rank=rank, num_workers=num_workers)] for rank in range(num_workers)]
    np.testing.assert_array_equal(np.concatenate(parts), rows)
