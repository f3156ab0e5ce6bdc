"""A whole engine, overlap scheduling and all, dumps itself: healthy at signals, and with a fault of SGLang's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli import python, spawn

PROGRAM = Path(__file__).parent / "engine_run.py"
ENVIRONMENT = {
    "CANARY": "log",
    "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1",
    "HF_HUB_OFFLINE": "1",
    "TRITON_INTERPRET": "1",
    "PYTHONPATH": "",
}


def dumped_by_engine(folder, **environment):
    """What the engine said, and its dumps."""
    dumps = folder / "dumps"
    env = ENVIRONMENT | {"KVCANARY_DUMP": str(dumps)} | environment
    done = python(str(PROGRAM), str(folder / "model"), env=env, cwd=folder)
    assert "ANSWERS 36" in done.out, done.err[-4000:]
    return done.out + done.err, sorted(dumps.iterdir())


def audited(path):
    done = spawn("audit", str(path), "--device", "cpu", "--format", "json")
    return done.code, json.loads(done.out)


def test_a_healthy_engine_that_is_signalled_at_work_passes(tmp_path):
    said, paths = dumped_by_engine(tmp_path, SIGNALS="5", NEW_TOKENS="40", KVCANARY_DUMP_MAX="4")
    assert re.search(r"kvcanary: SIGUSR2 to process \d+ writes a dump", said)
    assert 1 <= len(paths) <= 4
    entries = 0
    for path in paths:
        code, report = audited(path)
        assert (code, report["incidents"]) == (0, [])
        assert set(report["coverage"]["checks"]) >= {
            "chain_hash",
            "position",
            "verify_token",
            "rows",
            "cache",
        }
        entries += report["coverage"]["entries"]
    assert entries > 100


def test_a_fault_that_sglang_plants_is_dumped_and_found(tmp_path):
    said, paths = dumped_by_engine(
        tmp_path,
        NEW_TOKENS="40",
        SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB="1",
        SGLANG_KV_CANARY_PERTURB_WARMUP_STEPS="30",
    )
    planted = re.findall(r"req_pool_idx=(\d+) position=(\d+) original_slot=\d+ new_slot=(\d+)", said)
    (path,) = paths
    assert path.name.startswith("violation-")
    code, report = audited(path)
    assert code == 1
    assert report["server_log"]["confirmed"] > 0
    found = {
        (incident["rows"][0], incident["positions"][0], incident["slots"][0][0])
        for incident in report["incidents"]
        if len(incident["rows"]) == 1
    }
    assert found & {tuple(map(int, numbers)) for numbers in planted}
