"""The words at the end of a run."""

from __future__ import annotations

from stages.summary import summary_lines

EVALUATE = {
    "mlm_loss_mask_tokens": 5.353,
    "unigram_loss_mask_tokens": 6.084,
    "nats_under_unigram_mask_tokens": 0.731,
    "nats_under_unigram_mask_tokens_low": 0.702,
    "nats_under_unigram_mask_tokens_high": 0.760,
    "documents": 31,
    "labels_mask_tokens": 22_680,
    "labels": 28_432,
    "mlm_loss": 4.998,
    "unigram_loss": 6.097,
    "nsp_accuracy": 0.712,
    "nsp_accuracy_low": 0.690,
    "nsp_accuracy_high": 0.734,
    "nsp_majority_share": 0.5,
    "nsp_pairs": 1676,
    "filled": [["The default is [MASK].", ["none", "."]]],
}


def test_a_model_that_learnt() -> None:
    text = "\n".join(summary_lines({"evaluate": EVALUATE, "export": {"path": "/models/mine"}}))
    assert "0.731 under the unigram baseline of 6.084" in text and "nothing is learnt" not in text
    assert "95 % interval 0.702 to 0.760 under it, across 31 documents" in text
    assert "71.2 % of 1,676 held-out pairs, 95 % interval 69.0 to 73.4 %" in text
    assert "better than the majority label" in text and "no better" not in text
    assert "[MASK] = none  ." in text and "/models/mine" in text


def test_a_model_that_did_not() -> None:
    worse = EVALUATE | {"nats_under_unigram_mask_tokens": -0.122, "nsp_accuracy_low": 0.423}
    text = "\n".join(summary_lines({"evaluate": worse}))
    assert "0.122 over the unigram baseline" in text and "nothing is learnt yet" in text
    assert "no better than the majority label" in text


def test_sentence_order_goes_by_its_own_name() -> None:
    order = {k.replace("nsp_", "sentence_order_"): v for k, v in EVALUATE.items()}
    text = "\n".join(summary_lines({"evaluate": order}))
    assert "sentence order accuracy  71.2 % of 1,676 held-out pairs" in text
    assert "better than the majority label" in text and "NSP" not in text


def test_lines_are_short_enough_for_a_terminal() -> None:
    pairs = {
        "rows/train": 60_471,
        "not_next/train": 30_234,
        "not_next_share/train": 0.49998,
        "worst_shard_difference/train": 1,
    }
    mask = {
        "rows": 60_471,
        "tokens": 6_738_277,
        "masked_share": 0.1487,
        "rows_under_rule": 0,
        "rows_over_rule": 0,
        "share/mask": 0.8,
        "share/random": 0.1,
        "share/original": 0.1,
    }
    lines = summary_lines({"pairs/128": pairs, "mask/128": mask, "evaluate": EVALUATE})
    assert max(map(len, lines)) <= 105
    assert summary_lines({}) == []
