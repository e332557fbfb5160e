"""Joining encoder and decoder queries so that one attention call reads the KV once (ICaRus, section 3, algorithm 3).

Grouped-query attention sends query head h to KV head h // G, G = H / Hkv. Joined queries must keep that: each KV head's
group holds its G encoder heads and then its G decoder heads, 2G in all. A plain [encoder heads | decoder heads] would
send half of the queries to the wrong KV head.
"""

from __future__ import annotations

import torch


def join_heads(encoder: torch.Tensor, decoder: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[B, H, d], [B, H, d] -> [B, 2H, d], joined inside each KV head's group; any one dtype, contiguous.

    Raises:
        ValueError: the shapes differ, or H is no multiple of kv_heads.
    """
    if encoder.shape != decoder.shape:
        raise ValueError(f"Encoder queries {tuple(encoder.shape)} and decoder queries {tuple(decoder.shape)} differ.")
    batch, heads, dim = encoder.shape
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot be grouped over {kv_heads} KV heads.")
    grouped = (batch, kv_heads, heads // kv_heads, dim)
    return torch.cat([encoder.reshape(grouped), decoder.reshape(grouped)], dim=2).reshape(batch, 2 * heads, dim)


def split_heads(joined: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, 2H, d] -> [B, H, d], [B, H, d]: the inverse of `join_heads`, for queries or for attention's output."""
    batch, heads, dim = joined.shape
    encoder, decoder = joined.reshape(batch, kv_heads, heads // kv_heads, dim).chunk(2, dim=2)
    return encoder.reshape(batch, heads // 2, dim), decoder.reshape(batch, heads // 2, dim)
