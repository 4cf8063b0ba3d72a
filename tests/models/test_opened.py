"""Which extents of a model's inputs `models.opened` leaves open."""

from __future__ import annotations

from models.classes import CLASSES
from models.opened import opened


def test_extents_that_weights_fix_stay_known() -> None:
    model, sizes = opened(CLASSES["depthwise 3x3"].build(14))
    (image,) = model.graph.input
    dims = image.type.tensor_type.shape.dim
    assert [bool(d.dim_param) for d in dims] == [True, False, True, True]
    assert [sizes[d.dim_param] for d in (dims[0], dims[2], dims[3])] == [1, 14, 14]


def test_an_extent_that_two_inputs_share_is_one_symbol() -> None:
    model, _ = opened(CLASSES["LSTM, one sequence"].build(next(iter(CLASSES["LSTM, one sequence"].sizes))))
    names = [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input]
    assert all(isinstance(each, (int, str)) for dims in names for each in dims)
    assert any(isinstance(each, str) for dims in names for each in dims)
