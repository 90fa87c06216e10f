"""One rank alone copies what it holds: no collective operation, for which it would wait in vain."""

import pytest
import torch


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_copy_of_a_partial_dtensor_asks_no_other_rank(kind):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from finitude.program import sharding

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        partial = DTensor.from_local(torch.ones(2), mesh, [Partial(kind)], run_check=False)
        with CommDebugMode() as seen:
            copy = sharding.copied(partial)
        assert seen.get_total_counts() == 0 and copy.placements == partial.placements
        assert copy.to_local().tolist() == [1, 1] and copy.to_local().data_ptr() != partial.to_local().data_ptr()
    finally:
        dist.destroy_process_group()
