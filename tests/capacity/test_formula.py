"""Each formula alone, against numbers worked by hand."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacity import formula


@pytest.mark.parametrize(
    ("max_running", "attn_dp", "tokens", "context", "expected"),
    [
        (None, 1, 1_000_000, 131_072, (3906, "estimate")),
        (None, 1, 400_000, 131_072, (2048, "low")),
        (None, 1, 524_288, 131_072, (2048, "estimate")),
        (None, 1, 1_048_576, 131_072, (4096, "estimate")),
        (None, 1, 1_048_832, 131_072, (4096, "high")),
        (None, 1, 4095, 131_072, (2047, "pool")),
        (None, 1, 4096, 131_072, (2048, "low")),
        (512, 1, 400_000, 131_072, (512, "flag")),
        (5000, 1, 400_000, 131_072, (5000, "flag")),
        (5000, 1, 9000, 131_072, (4500, "pool")),
        (2048, 8, 400_000, 131_072, (256, "flag")),
        (7, 8, 400_000, 131_072, (1, "flag")),
    ],
)
def test_running_requests(max_running, attn_dp, tokens, context, expected):
    found = formula.running_requests(max_running=max_running, attn_dp=attn_dp, tokens=tokens, context=context)
    assert (found.requests, found.by) == expected


@pytest.mark.parametrize(
    ("write_req", "draft", "max_prefill", "chunk", "expected"),
    [
        (512, 4, 16_384, 8192, 8192),
        (4096, 4, 16_384, 8192, 16_384),
        (512, 1, 16_384, 32_768, 16_384),
        (512, 1, 16_384, -1, 16_384),
        (512, 1, 16_384, 0, 512),
        (512, 1, 256, 8192, 512),
    ],
)
def test_write_entries(write_req, draft, max_prefill, chunk, expected):
    found = formula.write_entries(
        write_req=write_req, draft_tokens=draft, max_prefill=max_prefill, chunk=chunk
    )
    assert found == expected


def test_workspace_by_hand():
    one = 32 * 1_200_000 + 8 + 16 * 2048 + 12 + 16 * 8192 + 32 * 2048
    assert (
        formula.workspace_bytes(groups=1, verify=1_200_000, write_req=2048, write_entry=8192)
        == one
        == 38_629_396
    )
    two = 2 * (32 * 1_200_000 + 8 + 16 * 2048 + 12) + 16 * 8192 + 32 * 2048
    assert formula.workspace_bytes(groups=2, verify=1_200_000, write_req=2048, write_entry=8192) == two


def test_buffers_by_hand():
    assert formula.buffer_bytes(tokens=1000, page_size=64, swa_tokens=None) == 128 * 1064
    assert formula.buffer_bytes(tokens=1000, page_size=64, swa_tokens=512) == 128 * (1064 + 576)


def test_fixed_by_hand():
    assert formula.fixed_bytes(runners=2, ring_capacity=1024) == 2 * (65_536 + 192 + 32_776)


def test_pages():
    assert formula.floor_page(2_243_474, 64) == 2_243_456
    assert formula.swa_pool_tokens(375_360, 0.8, 64) == 300_288


def kv_token(kv_heads, head_dim, attn_tp, layers, dtype, v_head_dim=None):
    elements = formula.row_elements(
        kv_heads=kv_heads, head_dim=head_dim, v_head_dim=v_head_dim, attn_tp=attn_tp
    )
    units = elements * formula.element_units(dtype)
    return formula.kv_bytes(row_units=units, full_layers=layers, tokens=1, swa_layers=0, swa_tokens=0)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 128, 1, 32, "bf16"), 131_072),
        ((8, 128, 1, 32, "fp8_e4m3"), 65_536),
        ((8, 128, 1, 32, "mxfp8"), 67_584),
        ((8, 128, 1, 32, "nvfp4"), 36_864),
        ((8, 128, 8, 80, "bf16"), 40_960),
        ((8, 128, 8, 80, "fp8"), 20_480),
        ((4, 128, 4, 94, "bf16"), 48_128),
        ((4, 128, 8, 94, "bf16"), 48_128),
        ((8, 128, 1, 36, "bf16"), 147_456),
        ((8, 128, 1, 64, "bf16"), 262_144),
        ((16, 128, 1, 62, "bf16"), 507_904),
        ((8, 192, 1, 1, "bf16", 128), 8 * 320 * 2),
    ],
)
def test_kv_bytes_of_a_token(shape, expected):
    assert kv_token(*shape) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bf16", 70_272), ("fp8", 35_136), ("fp4_mx_block16", 19_764)]
)
def test_kv_bytes_of_a_latent_token(dtype, expected):
    units = 576 * formula.element_units(dtype)
    found = formula.kv_bytes(row_units=units, full_layers=61, tokens=1, swa_layers=0, swa_tokens=0)
    assert found == expected


def test_kv_bytes_of_a_hybrid_pool():
    units = 8 * 128 * formula.element_units("bf16")
    found = formula.kv_bytes(row_units=units, full_layers=18, tokens=10, swa_layers=18, swa_tokens=8)
    assert found == 10 * 36_864 + 8 * 36_864


def test_stages_and_window_only_buffers():
    assert [formula.stage_layers(61, pp) for pp in (1, 2, 4, 61)] == [61, 31, 16, 1]
    assert formula.window_only_buffer_bytes(1000) == 64_000
    assert formula.element_units("int3") is None
