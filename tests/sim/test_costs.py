import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.sim.costs import CostModel


def test_prefill_alone_pays_for_its_tokens():
    costs = CostModel(prefill_token_s=0.001, decode_step_s=0.5, decode_lane_s=0.01, context_token_s=0.0001)
    assert costs.step_s(50, 0, 0) == pytest.approx(0.05)


def test_decode_pays_for_the_step_its_lanes_and_their_context():
    costs = CostModel(decode_step_s=0.5, decode_lane_s=0.01, context_token_s=0.0001)
    assert costs.step_s(0, 4, 1000) == pytest.approx(0.5 + 0.04 + 0.1)


def test_mixed_forward_pays_for_both():
    costs = CostModel(prefill_token_s=0.001, decode_step_s=0.5, forward_s=0.25)
    assert costs.step_s(10, 1, 9) == pytest.approx(0.25 + 0.01 + 0.5)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"decode_lane_s": -0.1}, "`decode_lane_s` is -0.1, a number of seconds from 0 on is needed"),
        (
            {"prefill_token_s": float("nan")},
            "`prefill_token_s` is nan, a number of seconds from 0 on is needed",
        ),
        ({"decode_step_s": 0.0}, "a decode takes no time with these costs, the clock would stand still"),
        ({"prefill_token_s": 0.0}, "a prefill takes no time with these costs, the clock would stand still"),
    ],
)
def test_costs_that_are_refused(costs, message):
    with pytest.raises(UsageError) as caught:
        CostModel(**costs)
    assert str(caught.value) == message
