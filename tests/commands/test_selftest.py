"""`kvcanary selftest` as a user meets it: report, exit codes, and words that are not known."""

from __future__ import annotations

import json
import shlex

import jsonschema
import pytest

from kvcanary_cli.report.frame import render_text
from kvcanary_cli.report.selftest import build_selftest, render_selftest
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.selftest.matrix import CLEAN, Plan, Trial
from tests.cli import ROOT, call

CPU = DeviceChoice(kind="cpu", index=0, name="cpu", reason="")
BACKEND = {"name": "numba", "device": "cpu", "reason": ""}
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def selftest(capsys, *argv: str):
    return call(capsys, "selftest", "--device", "cpu", "--scenarios", "decode", *argv)


class TestRuns:
    def test_pass(self, capsys):
        done = selftest(capsys, "--kinds", "k07,K21,K07")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("selftest   2 kinds x 1 scenario x 1 seed, 40 steps each\n")
        assert "  clean runs: 1, findings in them: 0\n" in done.out
        assert done.out.splitlines()[-1] == (
            "kvcanary: PASS selftest planted=2 found=2 named=2 false=0 kinds=2/2 exit=0"
        )

    def test_a_kind_without_a_place_is_incomplete_and_says_where_it_has_one(self, capsys):
        done = selftest(capsys, "--kinds", "K14")
        assert done.code == 4
        assert "status: INCOMPLETE   what was planted was found and named; 1 kind had no place" in done.out
        assert "next:   kvcanary selftest --kinds K14 --scenarios all\n" in done.out
        assert done.out.splitlines()[-1].endswith("kinds=0/1 exit=4")

    def test_json(self, capsys):
        done = selftest(capsys, "--kinds", "K14", "--format", "json")
        report = json.loads(done.out)
        jsonschema.Draft202012Validator(SCHEMA).validate(report)
        assert report["kinds"] == [
            {
                "kind": "K14",
                "planted": 0,
                "found": 0,
                "named_right": 0,
                "median_latency_steps": None,
                "false_findings": 0,
            }
        ]
        assert report["hints"] == ["kvcanary selftest --kinds K14 --scenarios all"]


class TestUnmet:
    """What a user is told when the tool would not have seen a fault."""

    def report(self, *trials: Trial):
        plan = Plan(kinds=("K07",), scenarios=("decode",), seeds=(3,), steps=50, device=CPU)
        return build_selftest(plan, list(trials), BACKEND, 1.0)

    def test_not_found(self):
        report = self.report(Trial(kind="K07", scenario="decode", seed=3))
        text = render_text(report, render_selftest(report))
        assert (report["status"], report["exit_code"]) == ("fail", 1)
        assert "  K07 in decode, seed 3: not found\n" in text
        assert (
            "next:   kvcanary synth t.jsonl --scenario decode --steps 50 --seed 3 --fault K07\n"
            "        kvcanary replay t.jsonl --expect t.faults.json\n"
        ) in text

    def test_findings_in_a_clean_run(self):
        report = self.report(Trial(kind=CLEAN, scenario="decode", seed=3, spare=2, detail="K01, K01"))
        text = render_text(report, render_selftest(report))
        assert "  clean runs: 1, findings in them: 2\n" in text
        assert "next:   kvcanary synth t.jsonl --scenario decode --steps 50 --seed 3\n" in text

    def test_innocents_and_wrong_slots_are_named(self):
        trial = Trial(
            kind="K07", scenario="decode", seed=3, found=True, named_right=True, false_slots=1, blamed=("A",)
        )
        report = self.report(trial)
        text = render_text(report, render_selftest(report))
        assert "  K07 in decode, seed 3: 1 slot wrongly called damaged; innocent: A\n" in text
        assert "false=1" in text.splitlines()[-1]

    def test_the_commands_reproduce_the_trial(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        report = self.report(Trial(kind="K07", scenario="decode", seed=3))
        codes = [call(capsys, *shlex.split(hint)[1:]).code for hint in report["hints"]]
        assert codes == [0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kinds", "K99"], "`--kinds` names 'K99', known are all, the codes of a fault"),
        (["--kinds", ","], "`--kinds` names nothing"),
        (["--scenarios", "deocde"], "did you mean decode?"),
        (["--scenarios", ""], "`--scenarios` names nothing, known are all, decode, prefill"),
        (["--seeds", "0"], "'--seeds'"),
        (["--steps", "39"], "'--steps'"),
        (["--jobs", "0"], "'--jobs'"),
        (["--device", "tpu"], "known are auto, cpu, cuda"),
    ],
)
def test_words_that_are_not_known(capsys, options, words):
    done = call(capsys, "selftest", *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
