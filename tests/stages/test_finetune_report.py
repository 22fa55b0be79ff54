from __future__ import annotations

from stages.finetune_report import _baseline, class_counts


def test_a_task_without_classes_counts_none() -> None:
    for objective, metric in (("regression", "pearson"), ("answers", "f1")):
        described = {"objective": objective, "class_counts": {}}
        assert class_counts(described, "train") == {}
        assert _baseline(metric, described) is None


def test_the_baseline_is_the_share_of_the_most_frequent_class() -> None:
    counts = {"train": {"a": 9, "b": 1}, "dev": {"a": 1, "b": 3}}
    described = {"objective": "classification", "class_counts": counts}
    assert class_counts(described, "dev") == {"a": 1, "b": 3}
    assert _baseline("accuracy", described) == 0.75
    assert _baseline("f1", described) is None
