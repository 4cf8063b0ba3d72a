"""Prices of groups for strategies: the steps after `plan`, run on one group, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ops.rows import ROWS
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.groups import attempted, predicting, scheduler
from onnxfuse.pipeline.sample_keys import known_to
from onnxfuse.pipeline.state import Context
from onnxfuse.plan.price import MARGIN, Costing, nothing_known
from onnxfuse.schedule.passes.driver import unchecked, verified
from onnxfuse.target import Cpu, Target

MANY = 16  # cores that stand for a large machine


def costing(context: Context, calls: Calls) -> Costing:
    """Prices of a build for its best target; measured ones where a strategy was asked for, so that others reproduce."""
    backend = context.backend
    return Costing(
        kernel=partial(_kernel, context, calls),
        machines=(machines := _machines(context)),
        shown=min(1, len(machines) - 1),
        kernel_cost=backend.kernel_cost,
        node_seconds=backend.node_seconds,
        handing_on=backend.handing_on,
        memo=context.price_memo,
        measured=known_to(context) if context.options.strategy is not None else nothing_known,
        worth=MARGIN,
    )


def _machines(context: Context) -> Sequence[Target]:
    """One core of the target, as many as it has, and as many as other machines may have."""
    target = predicting(context)
    points = context.backend.points(target)
    if isinstance(target, Cpu) and len(points) > 1 and target.cores < MANY:
        return (*points, replace(target, cores=MANY))
    return points


def _kernel(context: Context, calls: Calls, group: Group, plan: Plan) -> Kernel | Decision:
    """The kernel that a group becomes, or why there is none.

    It is verified when it is built, unless the build is strict: most candidates are priced and never built.
    """
    lowered = attempted(context, "lower", partial(calls.lower, group, plan, ROWS))
    if isinstance(lowered, Decision):
        return lowered
    check = verified if context.strict else unchecked
    return attempted(context, "schedule", lambda: scheduler(context, plan, lowered, check=check)(context.targets[0]))
