"""The operations of SGLang's own kernels that `kvcanary bench --vs-sglang` times."""

from __future__ import annotations

import pytest

from kvcanary_cli.bench.cases import Case
from kvcanary_cli.bench.inputs import make_inputs

CASES = [
    Case(name="bytes", lanes=3, prefix=6, extend=2, num_sources=2, source_bytes=144),
    Case(name="decode", lanes=5, prefix=9, extend=1),
    Case(name="prefill", lanes=5, prefix=0, extend=7),
]


@pytest.mark.parametrize("max_lanes", [4096, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_peer_computes_what_numpy_computes(installed, device, monkeypatch, case, max_lanes):
    import torch

    from kvcanary_cli.bench import peer
    from kvcanary_cli.bench.equality import differences
    from kvcanary_cli.bench.gpu import GpuCase

    assert peer.peer_problem() == ""
    monkeypatch.setattr(peer, "MAX_LANES", max_lanes)
    gpu_case = GpuCase(case, make_inputs(case, "random"), torch.device(device))
    peer_case = peer.PeerCase(gpu_case)
    launches = {"plan_verify": peer_case.plan_and_verify, "write_each": peer_case.write_each}
    found = {name: differences(gpu_case, name, launch) for name, launch in launches.items()}
    assert found == dict.fromkeys(launches, "")
