from __future__ import annotations

from stages.finetune_report import _baseline, _limits, class_counts


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


def test_what_a_reader_of_the_figures_must_know_is_said() -> None:
    counts = {"train": {"a": 9, "b": 1}, "dev": {"a": 1, "b": 3}}
    described = {"objective": "classification", "class_counts": counts, "dev": {"rows": 4}}
    good = {"metric": "accuracy", "dev": {"accuracy": 0.9}, "notes": {}}
    assert _limits(described, good) == []
    bad = good | {"dev": {"accuracy": 0.75}}
    assert "no better than always saying" in _limits(described, bad)[0]
    shared = described | {"dev": {"rows": 4, "rows_in_train": 2}}
    assert _limits(shared, good) == ["2 of the 4 dev rows stand in train too"]
    numbers = {"objective": "regression", "class_counts": {}, "dev": {"rows": 1}}
    alone = {"metric": "pearson", "dev": {}, "notes": {"pearson": "there is one row"}}
    assert "there is one row" in _limits(numbers, alone)[0]
