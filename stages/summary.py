"""What a person reads when a run ends: plain lines from the figures of the manifests."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.stage import Json

Figures = Mapping[str, Json]


def summary_lines(figures: Mapping[str, Figures]) -> list[str]:
    """Lines for the nodes that are there; nothing for those that are not."""
    lines: list[str] = []
    for node, values in figures.items():
        if node.startswith("pairs/"):
            lines += _pairs(node, values)
        elif node.startswith("mask/") and not node.endswith("-heldout"):
            lines += _mask(node, values)
    if "evaluate" in figures:
        lines += _evaluate(figures["evaluate"])
    if "export" in figures:
        lines.append(f"exported  {figures['export'].get('folder')}")
    return lines


def _pairs(node: str, f: Figures) -> list[str]:
    rows = f.get("rows/train", 0)
    if "not_next_share/train" not in f:
        return [f"{node}  {rows:,} rows of full sentences"]
    return [
        f"{node}  {rows:,} pairs, NotNext {100 * f['not_next_share/train']:.3f} % "
        f"({f['not_next/train']:,}); in the worst shard IsNext and NotNext differ by "
        f"{f['worst_shard_difference/train']}"
    ]


def _mask(node: str, f: Figures) -> list[str]:
    off = f["rows_under_rule"] + f["rows_over_rule"]
    rule = "each as the rule says" if off == 0 else f"{off:,} not as the rule says"
    return [
        f"{node}  {100 * f['masked_share']:.2f} % of {f['tokens']:,} tokens predicted in "
        f"{f['rows']:,} rows, {rule}; [MASK] {100 * f['share/mask']:.2f} %, "
        f"random {100 * f['share/random']:.2f} %, kept {100 * f['share/original']:.2f} %"
    ]


def _evaluate(f: Figures) -> list[str]:
    lines = []
    if "mlm_loss_mask_tokens" in f:
        lines.append(
            f"held-out MLM loss on [MASK] alone {f['mlm_loss_mask_tokens']:.3f} nats, unigram "
            f"baseline {f['unigram_loss_mask_tokens']:.3f}: "
            f"{f['nats_under_unigram_mask_tokens']:.3f} under it "
            f"({f['labels_mask_tokens']:,} labels; over all labels {f['mlm_loss']:.3f} against "
            f"{f['unigram_loss']:.3f})"
        )
    if "nsp_accuracy" in f:
        lines.append(
            f"held-out NSP accuracy {f['nsp_accuracy']:.3f}, 95 % interval "
            f"{f['nsp_accuracy_low']:.3f} to {f['nsp_accuracy_high']:.3f}, majority share "
            f"{f['nsp_majority_share']:.3f} ({f['nsp_pairs']:,} pairs)"
        )
    for sentence, answers in f.get("filled", []):
        lines.append(f"  {sentence}  ->  {', '.join(answers)}")
    return lines
