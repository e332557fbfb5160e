"""Joining encoder and decoder queries so that one attention call reads the KV once (ICaRus, section 3, algorithm 3).

At decode, request b's encoder row is row 2b and its decoder row is row 2b + 1. Grouped-query attention sends query head
h to KV head h // G, G = H / Hkv, and joined queries must keep that: each KV head's group holds its G encoder heads and
then its G decoder heads, 2G in all. A plain [encoder heads | decoder heads] would send half of the queries to the wrong
KV head.
"""

from __future__ import annotations

import torch


def join_rows(rows: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[2B, H, d] interleaved -> [B, 2H, d], joined inside each KV head's group; any one dtype, contiguous.

    Raises:
        ValueError: the rows are no pairs, or H is no multiple of kv_heads.
    """
    total, heads, dim = rows.shape
    if total % 2:
        raise ValueError(f"{total} rows are no pairs of an encoder and a decoder row.")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot be grouped over {kv_heads} KV heads.")
    pairs = rows.reshape(total // 2, 2, kv_heads, heads // kv_heads, dim)
    return pairs.transpose(1, 2).reshape(total // 2, 2 * heads, dim)


def split_rows(joined: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[B, 2H, d] -> [2B, H, d] interleaved: the inverse of `join_rows`, for queries or for attention's output."""
    batch, heads, dim = joined.shape
    groups = joined.reshape(batch, kv_heads, 2, heads // (2 * kv_heads), dim)
    return groups.transpose(1, 2).reshape(2 * batch, heads // 2, dim)
