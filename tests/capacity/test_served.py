"""Needs from the facts of the model are those of the trace that it would write."""

import random

import pytest

from kvcanary_cli.capacity.served import measure_requests
from kvcanary_cli.capacity.workload import measure
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.trace.formats import open_requests
from tests.cli import ROOT


@pytest.fixture
def requests(tmp_path):
    rng, at, rows = random.Random(3), 0, []
    for _ in range(60):
        at += rng.randint(0, 400)
        rows.append(
            f'{{"input_toks": {rng.randint(1, 900)}, "output_toks": {rng.randint(1, 90)}, '
            f'"arrival_time_ns": {at * 1_000_000}}}\n'
        )
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(rows))
    return str(path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scheduler": "vllm", "max_num_seqs": 9},
        {"window": 40, "window_slots": 8000},
        {"draft_tokens": 3},
        {"mixed_chunk": True, "graph_lanes": (4, 8, 12)},
    ],
)
def test_facts_and_events_need_the_same(requests, settings):
    config = SimConfig(pool_slots=8000, row_width=1024, max_running_requests=12, chunk_tokens=512, **settings)
    found = measure_requests(requests, config)
    told = measure(requests, found.format, *simulate(open_requests(requests), config))
    assert found._replace(details={}) == told
    assert found.details["requests"] == 60


def test_progress_is_told_of_every_forward(requests):
    seen = []
    found = measure_requests(
        requests, SimConfig(), on_progress=lambda steps, entries: seen.append((steps, entries))
    )
    assert [steps for steps, _ in seen] == list(range(1, found.steps + 1))
    assert max(entries for _, entries in seen) == dict(found.verify)["full"].need


def test_an_audit_passes_progress_on(requests):
    from kvcanary_cli.capacity.audit import audit
    from kvcanary_cli.capacity.request import make_request

    seen = []
    found = audit(
        make_request(config_path=str(ROOT / "configs/llama-3.1-8b-h100.yaml")),
        requests,
        on_progress=lambda steps, entries: seen.append(steps),
    )
    assert seen[-1] == found.setup.workload.steps == len(seen)


@pytest.mark.parametrize(
    ("flags", "mixed", "lanes"),
    [
        ([], False, 64),
        (["--enable-mixed-chunk"], True, 64),
        (["--disable-cuda-graph"], False, 0),
    ],
)
def test_the_model_batches_as_the_flags_say(flags, mixed, lanes):
    from kvcanary_cli.capacity.audit import audit
    from kvcanary_cli.capacity.request import make_request
    from kvcanary_cli.capacity.served import server_settings

    request = make_request(
        config_path=str(ROOT / "configs/llama-3.1-8b-h100.yaml"),
        command=["--max-running-requests", "64", *flags],
    )
    found = audit(request)
    settings = server_settings(found.setup, found.sizes)
    assert settings["mixed_chunk"] is mixed
    assert max(settings["graph_lanes"], default=0) == lanes
    SimConfig(**settings)
