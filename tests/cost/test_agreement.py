"""The measures of agreement between predictions and measurements, on known examples."""

import pytest

from benchmarks.costs import agreement


def rows(measured: list[float], predicted: list[float], nodes: int = 1) -> list[dict[str, object]]:
    return [{"us": m, "class": p, "nodes": nodes} for m, p in zip(measured, predicted, strict=True)]


def test_the_same_order_is_a_rank_of_one():
    found = agreement(rows([1.0, 5.0, 20.0, 100.0], [2.0, 10.0, 40.0, 200.0]), "class")
    assert found == pytest.approx({"rank": 1.0, "median_error": 1.0, "p90_error": 1.0, "of_total": 2.0})


def test_the_opposite_order_is_minus_one():
    assert agreement(rows([1.0, 2.0, 3.0], [9.0, 8.0, 7.0]), "class")["rank"] == pytest.approx(-1.0)


def test_equal_values_share_their_rank():
    """Spearman's coefficient of (1, 2, 2, 4) and (1, 2, 3, 4), worked out by hand."""
    assert agreement(rows([1.0, 2.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]), "class")["rank"] == pytest.approx(0.9486833)


def test_totals_count_every_node():
    found = agreement([*rows([10.0], [20.0], nodes=3), *rows([30.0], [30.0])], "class")
    assert found["of_total"] == pytest.approx(90 / 60)
