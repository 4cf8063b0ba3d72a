"""Classes of defects that small models showed, each with the test that finds it again.

That a test finds its class was tried by undoing the mend in a copy of the project. These failed, as they should:
Squeeze without axes taken over symbols, constants of one name, links out of the folder followed, a gate merged with
what it gates, negative tolerances, a result nested too deeply, folders of killed runs kept, a hundred thousand threads.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SIZES = "models/test_size_classes.py::test_a_class_of_sizes"
GROWTH = "robust/test_growth.py::test_a_small_model_is_soon_scheduled"
LONE = "robust/test_lone_operators.py::test_a_lone_operator_equals_the_runtime_with_and_without_library"
NETWORKS = "models/test_dynamic_sizes.py::test_one_build_is_right_at_every_size"
USAGE = "cli/test_bad_input.py::test_a_wrong_command_line"
# What went wrong, and the test: a file, a function in it, and what is written in the file for a case of its own.
CLASSES: dict[str, str] = {
    # Models that are right now
    "a large constant that a Slice from 0 cuts is taken for a Reshape": f"{SIZES}[cut-from-a-long-table]",
    "a depthwise convolution without neighbours is many times slower than in the runtime": (
        "kernels/choices/test_forms.py::test_an_isolated_depthwise_convolution_works_on_lines_in_place"
    ),
    "extents behind strided convolutions over open sizes cannot be computed": f"{SIZES}[chain-of-strides]",
    "levels of a pyramid: a lateral and an enlarged map of open sizes are added": f"{SIZES}[levels-added-twice]",
    "equal names in value_info are given to unequal sizes": f"{SIZES}[equal-places-in-levels]",
    "a window that is longer than the usual lengths: a division by zero": f"{GROWTH}[_strided_any_length]",
    "a spectrogram over any length": f"{NETWORKS}[spectrogram]",
    "Squeeze without axes removes a symbol that is 1 at run time": f"{SIZES}[squeeze-without-axes]",
    "a Tanh in front of dynamic quantization lies on a tie": (
        "models/test_ties.py::test_codes_of_a_saturated_function_are_those_of_the_runtime"
    ),
    "values are named as the compiler names its own": (
        "load/test_names.py::test_a_kernel_beside_a_name_like_ours_is_right"
    ),
    "a total length is that of a cache and one": f"{SIZES}[past-and-one]",
    "slices of a merged product without bias belong to no group": (
        "plan/test_siblings.py::test_pieces_of_a_product_without_bias_belong_to_the_attention_that_reads_them"
    ),
    "two reductions of one value are no kernel": (
        "models/test_siblings.py::test_one_kernel_reads_a_value_for_several_results"
    ),
    "gate and up of a gated product are merged": (
        "rules/test_merge.py::test_a_gate_and_what_it_lets_through_stay_two_products"
    ),
    "an integer sum of exponentials does not compile": f"{LONE}[exponentials-of-integers]",
    "one kernel that does not compile ends the build": (
        "robust/test_bugs.py::test_a_kernel_that_does_not_compile_costs_itself"
    ),
    "a transposed convolution with SAME_UPPER over an open length": f"{SIZES}[transposed-same-upper]",
    "codes of nothing but zeros": f"{LONE}[codes-of-zeros]",
    "EyeLike does not load without the library": f"{LONE}[ones-on-a-diagonal]",
    "MeanVarianceNormalization does not load without the library": f"{LONE}[mean-and-variance]",
    # Models that are refused, or copied
    "changed files: ranks and counts that operators do not allow": "robust/test_mutations.py::test_no_change_is_a_bug",
    "shape inference crashes": "load/test_inference.py::test_a_model_that_crashes_it_is_optimized_all_the_same",
    "shape inference takes all memory": "load/test_inference.py::test_memory_is_limited_and_rows_know_the_types",
    "a value larger than the machine": (
        "load/test_inference.py::test_a_value_larger_than_the_machine_ends_before_anything_is_compiled"
    ),
    # Models that took exponential time
    "a value added to itself, over and over": f"{GROWTH}[_doubling]",
    "reflections of reflections": f"{GROWTH}[_reflections]",
    "padding beyond all sizes": "robust/test_growth.py::test_what_no_machine_can_count_is_refused[_far_padding]",
    "a table as long as an axis": f"{GROWTH}[_far_resized]",
    "functions that call functions twice": (
        "robust/test_growth.py::test_functions_that_double_are_counted_before_they_are_written_out"
    ),
    "a chain of thousands of nodes": "robust/test_budgets.py::test_a_large_model_is_ended_in_time",
    # Values
    "a Constant that is an initializer too": "load/test_names.py::test_of_constants_of_one_name_the_last_node_counts",
    "NaN and infinity spread through Winograd's tiles": (
        "kernels/choices/test_winograd.py::test_a_nan_and_an_infinity_reach_the_tiles_that_read_them_and_no_others"
    ),
    "a pooling window larger than the image": f"{SIZES}[pool-without-pads]",
    "a window larger than the image that counts its padding": f"{SIZES}[pool-counted-without-pads]",
    "two libraries with equal kernels in one session": (
        "runtime/test_glue.py::test_two_libraries_of_equal_kernels_in_one_session"
    ),
    # Files and the command line
    "external data behind a link": "load/test_bad_input.py::test_external_data_behind_links",
    "a pipe or a device in place of a model": "cli/test_bad_input.py::test_pipes_and_devices_are_refused_as_models",
    "a compiler that does not tell its version": "cli/test_bad_input.py::test_a_compiler_that_does_not_answer",
    "too many threads": f"{USAGE}[100000]",
    "a budget without bounds": f"{USAGE}[1e999]",
    "an extent without bounds": "load/test_bad_input.py::test_invalid_extents_are_refused",
    "a result nested too deeply": "cli/test_bad_input.py::test_a_result_nested_too_deeply",
    "a result in a place that cannot be written": (
        "cli/test_bad_input.py::test_a_result_that_cannot_be_written_leaves_everything"
    ),
    "a model that cannot be read is no bug": "cli/test_bad_input.py::test_a_second_file_that_is_no_model",
    "a tolerance below nothing": "cli/test_bad_input.py::test_a_tolerance_below_nothing",
    "inputs are looked at last": "cli/test_bad_input.py::test_inputs_are_looked_at_before_anything_is_compiled",
    "what a killed run leaves": "cli/test_bad_input.py::test_a_killed_run_is_swept_by_the_next",
}


@pytest.mark.parametrize("what", CLASSES)
def test_the_test_of_a_class_is_there(what: str) -> None:
    file, _, rest = CLASSES[what].partition("::")
    function, _, case = rest.rstrip("]").partition("[")
    text = (TESTS / file).read_text(encoding="utf-8")
    assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.parse(text).body)
    tables = (*TESTS.glob("models/*cases.py"), *TESTS.glob("models/cases/*.py"))
    places = [TESTS / file, *tables, TESTS.parent / "models" / "dynamic" / "networks.py"]
    assert not case or any(case in place.read_text(encoding="utf-8") for place in places)
