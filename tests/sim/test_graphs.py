import pytest

from kvcanary_cli.sim.forwards import padded
from kvcanary_cli.sim.graphs import captured_lanes


def test_sizes_get_coarser():
    sizes = captured_lanes(256, max_running_requests=4096)
    assert sizes[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert sizes[-2:] == (248, 256)
    assert captured_lanes(512, max_running_requests=4096)[-3:] == (480, 496, 512)


def test_speculative_decoding_has_finer_steps():
    assert captured_lanes(48, max_running_requests=4096, speculative=True) == (
        *range(1, 9),
        *range(10, 33, 2),
        *(40, 44, 48),
    )


@pytest.mark.parametrize(
    ("largest", "running", "last"), [(160, 4096, 160), (256, 100, 100), (8, 9, 8), (30, 30, 30)]
)
def test_largest_batch_is_captured(largest, running, last):
    assert captured_lanes(largest, max_running_requests=running)[-1] == last


def test_batches_are_padded_to_the_next_size():
    sizes = captured_lanes(32, max_running_requests=64)
    assert [padded(sizes, lanes) for lanes in (1, 3, 8, 13, 32, 33)] == [1, 4, 8, 16, 32, 33]
