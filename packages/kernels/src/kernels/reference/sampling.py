"""Sampling in plain torch: penalties, filters, the random choice, log probabilities.

Letters: B rows, V vocabulary, k most likely tokens. Logits are float32; a forbidden token is -inf.
"""

from __future__ import annotations

import torch

from kernels.reference.gumbel import compute_gumbel_noise

_FORBIDDEN = float("-inf")


def nonfinite_rows(logits_BV: torch.Tensor) -> torch.Tensor:
    """Return, per row, whether it has a NaN or +inf, or nothing above -inf to choose from."""
    bad_BV = torch.isnan(logits_BV) | (logits_BV == float("inf"))
    return bad_BV.any(dim=-1) | (logits_BV == _FORBIDDEN).all(dim=-1)


def apply_penalties(
    logits_BV: torch.Tensor,
    prompt_token_mask_BV: torch.Tensor,
    output_counts_BV: torch.Tensor,
    repetition_B: torch.Tensor,
    presence_B: torch.Tensor,
    frequency_B: torch.Tensor,
) -> None:
    """Apply repetition (prompt and output), then frequency and presence (output only) penalties.

    Mutates: logits.
    """
    check_rows(logits_BV, repetition=repetition_B, presence=presence_B, frequency=frequency_B)
    for name, x_BV in (("prompt_token_mask", prompt_token_mask_BV), ("output_counts", output_counts_BV)):
        if x_BV.shape != logits_BV.shape:
            raise ValueError(f"{name}: shape {tuple(x_BV.shape)} must be {tuple(logits_BV.shape)}")
    is_generated_BV = output_counts_BV > 0
    is_seen_BV = prompt_token_mask_BV.bool() | is_generated_BV
    repetition_B1 = repetition_B.float()[:, None]
    repeated_BV = torch.where(logits_BV > 0, logits_BV / repetition_B1, logits_BV * repetition_B1)
    penalised_BV = torch.where(is_seen_BV, repeated_BV, logits_BV)
    penalised_BV = penalised_BV - frequency_B.float()[:, None] * output_counts_BV
    penalised_BV = penalised_BV - presence_B.float()[:, None] * is_generated_BV
    logits_BV.copy_(penalised_BV)


def apply_min_p(logits_BV: torch.Tensor, min_p_B: torch.Tensor) -> None:
    """Forbid tokens whose probability is below min_p times the largest; 0 is off.

    Mutates: logits.
    """
    check_rows(logits_BV, min_p=min_p_B)
    threshold_B1 = logits_BV.amax(dim=-1, keepdim=True) + torch.log(min_p_B.float())[:, None]
    logits_BV.masked_fill_(logits_BV < threshold_B1, _FORBIDDEN)


def apply_top_k_top_p(
    logits_BV: torch.Tensor, top_k_B: torch.Tensor | None, top_p_B: torch.Tensor | None
) -> None:
    """Keep a token if fewer than top_k are likelier and those likelier hold less than top_p of the mass.

    The mass is that of the tokens top-k kept. Equal logits stay or go together, and the likeliest always
    stays: the result does not depend on an order among equals. top_k = V or 0 and top_p = 1 are off.

    Mutates: logits.
    """
    vocab_size = logits_BV.shape[-1]
    sorted_BV = logits_BV.sort(dim=-1, descending=True).values
    if top_k_B is not None:
        check_rows(logits_BV, top_k=top_k_B)
        top_k_B = torch.where(top_k_B <= 0, vocab_size, top_k_B.clamp(max=vocab_size))
        kth_B1 = sorted_BV.gather(1, top_k_B.long()[:, None] - 1)
        logits_BV.masked_fill_(logits_BV < kth_B1, _FORBIDDEN)
        sorted_BV = sorted_BV.masked_fill(sorted_BV < kth_B1, _FORBIDDEN)
    if top_p_B is not None:
        check_rows(logits_BV, top_p=top_p_B)
        cumulative_BV = torch.softmax(sorted_BV.double(), dim=-1).cumsum(dim=-1)
        before_BV = torch.cat([torch.zeros_like(cumulative_BV[:, :1]), cumulative_BV[:, :-1]], dim=-1)
        # The first token of a run of equals has only strictly likelier ones before it; the last one in sorted
        # order whose own place qualifies therefore gives the smallest logit to keep.
        keeps_BV = before_BV < top_p_B.double()[:, None]
        keeps_BV[:, 0] = True
        num_kept_B1 = keeps_BV.sum(dim=-1, keepdim=True)
        smallest_B1 = sorted_BV.gather(1, num_kept_B1 - 1)
        is_on_B1 = top_p_B[:, None] < 1.0
        logits_BV.masked_fill_((logits_BV < smallest_B1) & is_on_B1, _FORBIDDEN)


def gumbel_sample(logits_BV: torch.Tensor, seeds_B: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
    """Return one token per row, drawn from softmax(logits): the Gumbel-max rule, the lowest id wins ties."""
    check_rows(logits_BV, seeds=seeds_B, positions=positions_B)
    noise_BV = compute_gumbel_noise(seeds_B, positions_B, logits_BV.shape[-1])
    return (logits_BV + noise_BV).argmax(dim=-1)


def gather_logprobs(
    logits_BV: torch.Tensor, token_ids_B: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (logprob_B, rank_B, top_ids_Bk, top_logprobs_Bk).

    A rank is 1 + the number of strictly likelier tokens, so that a greedy choice always has rank 1. Equal
    logits are listed by rising id.

    Raises: ValueError for a token id or `num_top` outside the vocabulary.
    """
    check_rows(logits_BV, token_ids=token_ids_B)
    num_rows, vocab_size = logits_BV.shape
    if not 0 <= num_top <= vocab_size:
        raise ValueError(f"num_top: {num_top} must lie in [0, {vocab_size}]")
    if num_rows and (int(token_ids_B.min()) < 0 or int(token_ids_B.max()) >= vocab_size):
        raise ValueError(f"token_ids: ids must lie in [0, {vocab_size})")
    chosen_B1 = logits_BV.gather(1, token_ids_B[:, None])
    normalizer_B1 = torch.logsumexp(logits_BV, dim=-1, keepdim=True)
    ranks_B = (logits_BV > chosen_B1).sum(dim=-1) + 1
    top = logits_BV.sort(dim=-1, descending=True, stable=True)
    top_ids_Bk = top.indices[:, :num_top].contiguous()
    top_logprobs_Bk = top.values[:, :num_top] - normalizer_B1
    return (chosen_B1 - normalizer_B1).squeeze(1), ranks_B, top_ids_Bk, top_logprobs_Bk


def check_rows(logits_BV: torch.Tensor, **columns: torch.Tensor) -> None:
    """Raise ValueError unless logits are float32 rows and each column has one value per row."""
    if logits_BV.dim() != 2 or logits_BV.dtype != torch.float32 or logits_BV.shape[-1] == 0:
        raise ValueError(
            f"logits: must be float32 [rows, vocabulary], not {logits_BV.dtype} {tuple(logits_BV.shape)}"
        )
    for name, column_B in columns.items():
        if column_B.shape != logits_BV.shape[:1]:
            raise ValueError(f"{name}: shape {tuple(column_B.shape)} must be [{logits_BV.shape[0]}]")
