"""What a person reads when a run ends: plain lines from the figures of the manifests."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.stage import Json

Figures = Mapping[str, Json]
Line = tuple[str, str]
"""(what, text); an empty `what` goes on with the line before."""


def summary_lines(figures: Mapping[str, Figures]) -> list[str]:
    """Lines for the nodes that are there; nothing for those that are not."""
    lines: list[Line] = []
    for node, values in figures.items():
        if node.startswith("pairs/"):
            lines += _pairs(node, values)
        elif node.startswith("mask/") and not node.endswith("-heldout"):
            lines += _mask(node, values)
    if "evaluate" in figures:
        lines += _evaluate(figures["evaluate"])
    if "export" in figures:
        lines += [
            ("model", str(figures["export"]["path"])),
            ("", "transformers loads it: AutoModelForPreTraining.from_pretrained(that folder)"),
        ]
    for node, values in figures.items():
        if node.startswith("finetune/"):
            lines += _finetune(node, values)
    width = max((len(what) for what, _ in lines), default=0)
    return [f"{what:<{width}}  {text}" for what, text in lines]


def _pairs(node: str, f: Figures) -> list[Line]:
    rows = f.get("rows/train", 0)
    if "not_next_share/train" not in f:
        return [(node, f"{rows:,} rows of full sentences")]
    yes, no = f.get("labels", ("IsNext", "NotNext"))
    return [
        (
            node,
            f"{rows:,} pairs, {no} {100 * f['not_next_share/train']:.3f} % "
            f"({f['not_next/train']:,}); {yes} and {no} differ by at most "
            f"{f['worst_shard_difference/train']:,} a shard",
        )
    ]


def _mask(node: str, f: Figures) -> list[Line]:
    off = f["rows_under_rule"] + f["rows_over_rule"]
    rule = "each as the rule says" if off == 0 else f"{off:,} of them not as the rule says"
    return [
        (
            node,
            f"{100 * f['masked_share']:.2f} % of {f['tokens']:,} tokens to predict, in "
            f"{f['rows']:,} rows, {rule}",
        ),
        (
            "",
            f"shown as [MASK] {100 * f['share/mask']:.2f} %, as a random token "
            f"{100 * f['share/random']:.2f} %, unchanged {100 * f['share/original']:.2f} %",
        ),
    ]


def _evaluate(f: Figures) -> list[Line]:
    lines = []
    if "mlm_loss_mask_tokens" in f:
        under = f["nats_under_unigram_mask_tokens"]
        side = "under" if under >= 0 else "over"
        worse = "" if under > 0 else "; nothing is learnt yet"
        lines += [
            (
                "MLM loss",
                f"{f['mlm_loss_mask_tokens']:.3f} nats on held-out [MASK] alone, "
                f"{abs(under):.3f} {side} the unigram baseline of "
                f"{f['unigram_loss_mask_tokens']:.3f}",
            ),
            (
                "",
                f"({f['labels_mask_tokens']:,} labels; on all {f['labels']:,}, unmasked ones too: "
                f"{f['mlm_loss']:.3f} against {f['unigram_loss']:.3f}){worse}",
            ),
        ]
        if "nats_under_unigram_mask_tokens_low" in f:
            low = f["nats_under_unigram_mask_tokens_low"]
            high = f["nats_under_unigram_mask_tokens_high"]
            least, most = (low, high) if under >= 0 else (-high, -low)
            lines.append(
                (
                    "",
                    f"95 % interval {least:.3f} to {most:.3f} {side} it, across "
                    f"{f['documents']:,} documents",
                )
            )
    for name, words in (("nsp", "NSP accuracy"), ("sentence_order", "sentence order accuracy")):
        if f"{name}_accuracy" in f:
            lines += _pair_accuracy(f, name, words)
    for place, (sentence, answers) in enumerate(f.get("filled", [])):
        lines.append(("" if place else "filled in", sentence))
        lines.append(("", f"  [MASK] = {'  '.join(answers)}"))
    return lines


def _finetune(node: str, f: Figures) -> list[Line]:
    metric = f["metric"]
    value, mean = f.get(f"dev/{metric}"), f.get(f"dev/{metric}_mean")
    said = f"{metric} undefined" if value is None else f"{metric} {value:.4f}"
    if mean is not None:
        deviation = f[f"dev/{metric}_deviation"]
        said += f" (over {f['seeds']} seeds {mean:.4f}, deviation {deviation:.4f})"
    return [
        (node, f"{said} on {f['rows_dev']:,} dev rows"),
        ("", f"model in {f['path']}"),
    ]


def _pair_accuracy(f: Figures, name: str, words: str) -> list[Line]:
    low, high = f[f"{name}_accuracy_low"], f[f"{name}_accuracy_high"]
    chance = f[f"{name}_majority_share"]
    verdict = "better than" if low > chance else "no better than"
    return [
        (
            words,
            f"{100 * f[f'{name}_accuracy']:.1f} % of {f[f'{name}_pairs']:,} held-out pairs, 95 % "
            f"interval {100 * low:.1f} to {100 * high:.1f} %",
        ),
        ("", f"{verdict} the majority label, which is right in {100 * chance:.1f} %"),
    ]
