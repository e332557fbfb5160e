"""The compiled CPU operators against plain torch, which defines them, and plain attention against its formula.

float32 agrees to 1e-5; bfloat16, whose results are rounded, to 1 part in 64.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descant.kernels.cpu import compiled, operators, plain
from descant.runtime.cache import cache_dir

FEW = settings(max_examples=40, deadline=None, derandomize=True)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    assert compiled.build() is None, "the operators must compile where the tests run"


def agree(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1 / 64
    torch.testing.assert_close(got.float(), wanted.float(), rtol=tolerance, atol=tolerance)


def wide(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [t.float() if t is not None and t.is_floating_point() else t for t in tensors]


@FEW
@given(
    dtype=DTYPES,
    rows=st.sampled_from([1, 2, 3, 4, 5, 7, 16, 32, 33, 70]),
    into=st.sampled_from([8, 20, 64, 100]),
    out=st.sampled_from([1, 5, 24, 66]),
    ranks=st.lists(st.sampled_from([0, 1, 4, 8, 12]), min_size=3, max_size=3),
    stacks=st.integers(1, 3),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear_with_adapters_of_any_rank_on_any_rows(dtype, rows, into, out, ranks, stacks, bias, seed) -> None:
    torch.manual_seed(seed)
    x, w = torch.randn(rows, into).to(dtype), (torch.randn(out, into) / into**0.5).to(dtype)
    offset = torch.randn(out).to(dtype) if bias else None
    a = (torch.randn(3, stacks * 12, into) / into**0.5).to(dtype)
    b = (torch.randn(3, out, 12) / 4).to(dtype)
    slots = torch.randint(0, 3, (rows,), dtype=torch.int32)
    ends = [*sorted(torch.randint(0, out + 1, (stacks - 1,)).tolist()), out]
    adapters = (a, b, slots, torch.tensor(ranks, dtype=torch.int32), torch.tensor([0.5, 1.0, 2.0]), ends)
    wanted = plain.linear(*wide(x, w, offset, a, b), *adapters[2:])
    agree(compiled.linear(x, w, offset, *adapters), wanted, dtype)
    agree(
        compiled.linear(x, w, offset, None, None, None, None, None, []),
        plain.linear(*wide(x, w, offset), *[None] * 5, []),
        dtype,
    )


@FEW
@given(
    dtype=DTYPES,
    shape=st.sampled_from([(1, 1, 16), (3, 3, 64), (9, 3, 64), (12, 1, 20), (8, 2, 80), (10, 2, 128), (4, 4, 256)]),
    requests=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 200)), min_size=1, max_size=5),
    copies=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_attention_of_new_tokens_over_a_scattered_pool(dtype, shape, requests, copies, seed) -> None:
    heads, kv_heads, dim = shape
    torch.manual_seed(seed)
    lengths = torch.tensor([new + cached for new, cached in requests])
    counts = torch.tensor([new for new, _ in requests])
    pool = int(lengths.sum()) + 7
    keys = torch.full((pool, kv_heads, dim), math.nan).to(dtype)  # a slot that no request has must not be read
    values = keys.clone()
    free = torch.randperm(pool)
    tables = torch.zeros(len(requests) + 1, int(lengths.max()), dtype=torch.int32)
    places = torch.randperm(len(requests) + 1)[: len(requests)]
    for place, length in zip(places, lengths, strict=True):
        mine, free = free[:length], free[length:]
        tables[place, :length] = mine
        keys[mine] = torch.randn(len(mine), kv_heads, dim).to(dtype)
        values[mine] = torch.randn(len(mine), kv_heads, dim).to(dtype)
    q = torch.randn(int(counts.sum()) * copies, heads, dim).to(dtype)
    rest = (tables, places, lengths, counts, copies, dim**-0.5)
    agree(
        compiled.attention(q, None, None, None, keys, values, *rest),
        plain.attention(*wide(q, None, None, None, keys, values), *rest),
        dtype,
    )


@pytest.mark.parametrize("length", [511, 512, 513, 3000])
def test_attention_of_few_queries_over_many_keys_is_split_and_merged(length: int) -> None:
    torch.manual_seed(length)
    keys, values = torch.randn(2, 3100, 3, 64).unbind()
    q = torch.randn(5, 9, 64) * 3  # sharp: splits have maxima far apart
    tables = torch.randperm(3100, dtype=torch.int32)[None]
    rest = (tables, torch.tensor([0, 0]), torch.tensor([length, 4]), torch.tensor([3, 2]), 1, 0.125)
    agree(
        compiled.attention(q, None, None, None, keys, values, *rest),
        plain.attention(q, None, None, None, keys, values, *rest),
        torch.float32,
    )


def test_plain_attention_is_the_formula() -> None:
    torch.manual_seed(0)
    keys, values, q = torch.randn(12, 2, 8), torch.randn(12, 2, 8), torch.randn(3, 4, 8)
    tables = torch.tensor([[7, 2, 9, 4, 11]], dtype=torch.int32)
    got = plain.attention(
        q, None, None, None, keys, values, tables, torch.tensor([0]), torch.tensor([5]), torch.tensor([3]), 1, 0.3
    )
    for i in range(3):
        seen = tables[0, : 3 + i].long()
        for head in range(4):
            weights = (keys[seen, head // 2] @ q[i, head] * 0.3).softmax(0)
            agree(got[i, head], weights @ values[seen, head // 2], torch.float32)


@pytest.mark.parametrize("copies", [1, 2])
def test_new_keys_and_values_are_written_before_they_are_read(copies: int) -> None:
    """Decode of three requests, k and v slices of wider rows; of a pair's two rows, the first is the encoder's."""
    torch.manual_seed(copies)
    q, k, v = torch.randn(3 * copies, 3 * 8).unflatten(1, (3, 2, 4)).unbind(1)
    ours = torch.randn(2, 9, 2, 4)
    theirs = ours.clone()
    tables = torch.tensor([[1, 5, 4], [2, 0, 0], [7, 3, 8]], dtype=torch.int32)
    slots, lengths = torch.tensor([4, 0, 3]), torch.tensor([3, 2, 2])
    rest = (tables, torch.arange(3), lengths, torch.ones(3, dtype=torch.int64), copies, 0.5)
    got = compiled.attention(q, k, v, slots, *ours, *rest)
    agree(got, plain.attention(q, k, v, slots, *theirs, *rest), torch.float32)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[0, 4], k[0])
    assert torch.equal(ours[1, 3], v[2 * copies])


@FEW
@given(dtype=DTYPES, rows=st.sampled_from([1, 2, 33, 70]), dim=st.sampled_from([4, 64, 77]), residual=st.booleans())
def test_rms_norm_and_its_residual(dtype, rows, dim, residual) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, dim).to(dtype), torch.randn(dim).to(dtype)
    kept = torch.randn(rows, dim).to(dtype) if residual else None
    sums = kept.clone().float() if kept is not None else None
    wanted = plain.rms_norm(x.float(), sums, weight.float(), 1e-5)
    agree(compiled.rms_norm(x, kept, weight, 1e-5), wanted, dtype)
    if kept is not None and sums is not None:
        agree(kept, sums, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_of_heads_inside_wider_rows(dtype: torch.dtype) -> None:
    """Qwen3 normalises the heads of q, which is a slice of q, k and v side by side."""
    rows = torch.randn(5, 96).to(dtype)[:, 16:80]
    heads = rows.reshape(-1, 16)
    weight = torch.ones(16, dtype=dtype)
    agree(compiled.rms_norm(heads, None, weight, 1e-6), plain.rms_norm(heads, None, weight, 1e-6), dtype)
    cube = rows.unflatten(1, (4, 16))
    agree(compiled.rms_norm(cube, None, weight, 1e-6), plain.rms_norm(cube, None, weight, 1e-6), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 8, 77])
def test_silu_mul_of_all_magnitudes(dtype: torch.dtype, dim: int) -> None:
    x = (torch.randn(9, 2 * dim) * torch.tensor([1e-3, 1, 30, 90, 200, 1e4, 1e-30, 5, 0])[:, None]).to(dtype)
    agree(compiled.silu_mul(x), plain.silu_mul(x), dtype)
    assert compiled.silu_mul(torch.tensor([[math.nan] * 16])).isnan().all()


@FEW
@given(
    dtype=DTYPES,
    cache=DTYPES,
    dim=st.sampled_from([4, 16, 64, 80]),
    part=st.sampled_from([1.0, 0.5]),
    neox=st.booleans(),
    rows=st.sampled_from([1, 3, 40]),
)
def test_rotation_of_slices_in_place(dtype, cache, dim, part, neox, rows) -> None:
    torch.manual_seed(dim)
    rotary = int(dim * part) // 2 * 2
    angles = torch.rand(50, rotary // 2) * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).to(cache)
    positions = torch.randint(0, 50, (rows,))
    whole = torch.randn(rows, 5 * dim).to(dtype)
    ours, theirs = whole.clone(), whole.float()
    compiled.rotate_(ours[:, dim : 4 * dim], positions, cos_sin, dim, neox)
    plain.rotate_(theirs[:, dim : 4 * dim], positions, cos_sin.float(), dim, neox)
    agree(ours, theirs, dtype)
    assert torch.equal(ours[:, :dim], whole[:, :dim])


ONE = (torch.zeros(1, 3, dtype=torch.int32), torch.zeros(1), torch.ones(1), torch.ones(1), 1, 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: compiled.linear(torch.zeros(2, 3), torch.zeros(4, 5), *[None] * 6, []),
        lambda: compiled.linear(torch.zeros(2, 3).double(), torch.zeros(4, 3).double(), *[None] * 6, []),
        lambda: compiled.rotate_(torch.zeros(2, 8), torch.zeros(3).long(), torch.zeros(4, 4), 4, True),
        lambda: compiled.attention(*torch.zeros(3, 3, 2, 4), torch.zeros(2).long(), *torch.zeros(2, 9, 2, 4), *ONE),
    ],
    ids=["width", "dtype", "positions", "slots"],
)
def test_what_does_not_fit_is_refused(call) -> None:
    with pytest.raises(RuntimeError, match=r"do not fit|compute in"):
        call()


@pytest.mark.parametrize(
    "environment",
    [{}, {"XDG_CACHE_HOME": "/x"}, {"DESCANT_CACHE": "/d"}, {"DESCANT_CACHE": "~/d", "XDG_CACHE_HOME": "/x"}],
)
def test_the_library_lies_where_everything_else_is_cached(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DESCANT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert compiled._cache_dir() == cache_dir()


def choose(**environment: str) -> subprocess.CompletedProcess[str]:
    code = "from descant.kernels.cpu import operators; print(operators().COMPILED)"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )


def test_without_a_compiler_plain_torch_serves_and_says_so(tmp_path) -> None:
    process = choose(CXX="no-such-compiler", DESCANT_CACHE=str(tmp_path))
    assert process.stdout.strip() == "False", process.stderr
    assert "could not be compiled" in process.stderr
    assert "install a C++ compiler" in process.stderr


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path) -> None:
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\n[ $# -le 2 ] && echo 12 && exit 0\necho 'no room on device' >&2\nexit 1\n")
    broken.chmod(0o755)
    process = choose(CXX=str(broken), DESCANT_CACHE=str(tmp_path / "cache"))
    assert process.stdout.strip() == "False", process.stderr
    assert "no room on device" in process.stderr
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(
    "avx512_bf16" not in Path("/proc/cpuinfo").read_text().split(),
    reason="every test here has just run without the instruction",
)
def test_all_of_it_without_the_processors_own_product_of_bfloat16(tmp_path) -> None:
    """What most machines run."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -mno-avx512bf16\n')
    compiler.chmod(0o755)
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not all_of_it"],
        env={**os.environ, "CXX": str(compiler), "DESCANT_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stdout


def test_the_environment_chooses_plain_operators_and_knows_no_others() -> None:
    assert choose(DESCANT_CPU_OPERATORS="plain").stdout.strip() == "False"
    assert "set it to compiled or plain" in choose(DESCANT_CPU_OPERATORS="fast").stderr
    assert operators() is compiled
