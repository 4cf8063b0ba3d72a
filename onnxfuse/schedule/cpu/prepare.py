"""The definitions of a group as jobs: loop nests, or contractions with operands prepared for register tiles.

An operand that a tile cannot read in place (guarded in its contiguous axis, computed, transposed, or a right side that
is only known at run time) becomes a definition of its own, a copy in the layout that tiles need.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial

from onnxfuse.ir.codes import without_scales
from onnxfuse.ir.compose import guarded, substitute_axes
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, product, unflatten
from onnxfuse.ir.layout import PLAIN, channels_last
from onnxfuse.ir.products import SINGLE, ProductKind, products_for, products_of_codes
from onnxfuse.ir.scalar import Guard, Load, Scalar, cast, const
from onnxfuse.ir.tile import ZERO_ROW
from onnxfuse.lower.scans import Scan, scan_of
from onnxfuse.lower.scatters import Scatter, scatter_of
from onnxfuse.ops.spec import Definition, in_order
from onnxfuse.schedule.analysis.canonical import Canonical, weights_of
from onnxfuse.schedule.analysis.contract import Contracted, quantized_layout, recognise, worth_tiles
from onnxfuse.schedule.analysis.heads import Heads, cut_as_read
from onnxfuse.schedule.analysis.image import image_of, images_inside, padded_image
from onnxfuse.schedule.analysis.joint_weights import JointWeights
from onnxfuse.schedule.analysis.memory import Nest, Place, dense, nest_of
from onnxfuse.schedule.cpu.groups import channel_blocks
from onnxfuse.schedule.cpu.inside import along_result, along_sum, layout_inside
from onnxfuse.schedule.cpu.operand_order import along_rows, exchanged, filters_width, operand_of
from onnxfuse.schedule.cpu.sequential.recurrences import recurrence_of
from onnxfuse.schedule.cpu.weight_panels import in_panels, joined_parts, panel_axes
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, order_of
from onnxfuse.schedule.nests.prepared import Prepared
from onnxfuse.schedule.nests.subranges import signs_of, split_goals, split_points
from onnxfuse.schedule.nests.tiled import KSubrange, Tiled, code_depth, contiguous_pieces, few_enough, readable_pieces
from onnxfuse.target import Cpu


def prepare(
    c: Canonical,
    constants: Container[str],
    target: Cpu,
    half: DType | None = None,
    *,
    exchange: bool = False,
    lanes: bool = True,
) -> Prepared:
    """Jobs for all definitions of a group; float32 weights of contractions are packed as `half`, if that is given.

    With `exchange`, contractions have their operands exchanged if the image is channels first. Without `lanes`,
    convolutions in small groups have register tiles of each group too.
    """
    weights, joint = weights_of(c.definitions, constants), dict[tuple[str, int], JointWeights]()
    while True:
        done = _prepared(c, constants, weights, target, half, joint, exchange=exchange, lanes=lanes)
        found = {} if joint else joined_parts(done)
        if not done.torn and not found:
            return done
        weights, joint = weights - done.torn, found


def _prepared(
    c: Canonical,
    constants: Container[str],
    weights: frozenset[str],
    target: Cpu,
    half: DType | None,
    joint: Mapping[tuple[str, int], JointWeights],
    *,
    exchange: bool,
    lanes: bool,
) -> Prepared:
    """The jobs, where tiles may have some `weights` in panels; what is read in parts may have a `joint` matrix."""
    done = _begun(c, joint)
    given = dict(done.places)  # as the group reads them; weights may be packed for an earlier definition
    outputs = {p.name for p in c.outputs}
    heads, cuts = Heads(), cut_as_read(c.definitions, weights)
    later = list(c.definitions)
    for part in in_order(c.definitions):
        del later[: len(part)]
        done.shapes |= {d.name: d.shape for d in part if d.name not in done.shapes}
        if part[0].recurrent:
            tiles = partial(_tiled_inside, {d.name for d in part}, done, weights, target)
            done.jobs.append(recurrence_of(part, later, done.places, given, outputs, weights, tiles, target.panel))
            continue
        (d,) = part
        blocks = channel_blocks(d, done.places, constants, target) if lanes else {}
        scan, scatter = scan_of(d), scatter_of(d)
        if scan is not None or scatter is not None:
            nest = _sequential(d, scan, scatter, done.places)
        else:
            nest = nest_of(d, done.places | given, heads.nests, blocks, cuts=cuts.get(d.name, ()))
        nest = replace(nest, output=d.name in outputs)
        other = blocks or scan is not None or scatter is not None
        found = None if other else recognise(Definition(d.name, nest.axes, nest.value), weights, heads.rows_read)
        if found is not None and d.name in done.places:  # the columns of a panel should be contiguous in the result
            found = replace(found, columns=tuple(order_of(found.columns, done.places[d.name].offset(nest.dims))))
        operands = len(done.jobs)
        tiled = _tiled_exchanged(found, nest, done, weights, target) if found is not None and exchange else None
        if tiled is None and found is not None and worth_tiles(found, weights):
            tiled = _tiled(found, done, weights, target, half)
        if d.name not in done.places:  # for its strides only: phases allocate it
            done.layouts |= layout_inside(d, nest, tiled, later, weights)
            done.places[d.name] = dense(d.name, d.value.dtype, d.shape, done.layouts.get(d.name, PLAIN))
        if tiled is None:
            del done.jobs[operands:]  # operands prepared in vain
            nest = replace(nest, value=without_scales(nest.value))
            known = (nest, done.places, done.layouts, done.shapes, constants)
            for name, layout in (along_sum(*known) | along_result(*known)).items():
                done.layouts[name] = layout
                done.places[name] = dense(name, done.places[name].dtype, done.shapes[name], layout)
        done.jobs.append(Job(nest, tiled, scan=scan, scatter=scatter, apart=d.name in c.apart))
        heads.add(nest, tiled.rows if tiled is not None and tiled.batch else None)
    return done


def _begun(c: Canonical, joint: Mapping[tuple[str, int], JointWeights]) -> Prepared:
    """The places of parameters, and of values that have a layout."""
    done = Prepared([], {}, {}, {}, joint=joint)
    for p in (*c.inputs, *c.outputs):
        done.places[p.name] = dense(p.name, p.dtype, p.shape, p.layout)
        done.shapes[p.name] = p.shape
    done.layouts |= images_inside(c) | dict(c.layouts)
    for d in (d for d in c.definitions if d.name in done.layouts):
        done.places[d.name] = dense(d.name, d.value.dtype, d.shape, done.layouts[d.name])
    return done


def _sequential(d: Definition, scan: Scan | None, scatter: Scatter | None, places: Mapping[str, Place]) -> Nest:
    """The nest of the elements that a scan combines, or of those that a scatter begins with."""
    if scan is not None:
        return nest_of(replace(d, value=scan.element), places, uncut=(scan.axis,))
    assert scatter is not None
    return nest_of(replace(d, value=scatter.start), places, uncut=d.axes)


def _tiled(c: Contracted, done: Prepared, constants: Container[str], target: Cpu, half: DType | None) -> Tiled | None:
    """The contraction in register tiles of the fastest kind that its weights allow; None if there is none."""
    before = len(done.jobs)
    for how in _products(c, constants, target, half):
        del done.jobs[before:]  # prepared for another kind of tile
        made = _tiled_as(how, c, done, constants, target)
        if made is not None:
            return made
    return None


def _tiled_inside(
    own: Container[str], done: Prepared, constants: Container[str], target: Cpu, c: Contracted
) -> Tiled | None:
    """The contraction of a step of a recurrence; None if it had to read a copy of the recurrence's `own` values."""
    before = len(done.jobs)
    made = _tiled_as(SINGLE, c, done, constants, target)
    copied = any(x.source in own for job in done.jobs[before:] for x in job.reads)
    del done.jobs[before if copied else len(done.jobs) :]
    return None if copied else made


def _tiled_exchanged(c: Contracted, nest: Nest, done: Prepared, constants: Container[str], target: Cpu) -> Tiled | None:
    """The contraction with exchanged operands, over an image copied with its padding."""
    tile_rows = filters_width(c, done.places, constants, target)
    tiles = panel_axes(c, tile_rows) if tile_rows else None
    panels = tiles and in_panels(c, tiles, F32, 1, done)
    if tiles is None or panels is None or not panels.free(done):
        return None
    image = operand_of(c.left)
    if image.guards:
        padded = padded_image(f"{c.definition.name}%pad", image, done.shapes[image.source])
        if padded is None or padded[1].guards:
            return None
        image = replace(padded[1], source=done.add(replace(padded[0], value=cast(padded[0].value, F32))), dtype=F32)
    return exchanged(c, nest, image, panels.taken(done), tiles, done.places, target)


def _products(c: Contracted, constants: Container[str], target: Cpu, half: DType | None) -> tuple[ProductKind, ...]:
    """The kinds of register tiles, by dtypes, that weights allow; other right sides are copied as float32 per run."""
    if not (isinstance(c.right, Load) and c.right.source in constants):
        return (SINGLE,)
    rows = product([a.extent for a in c.rows]).constant
    if c.zeros is not None:
        return products_of_codes(c.left.dtype, c.right.dtype, target.extras, rows)
    stored = half if half is not None and c.right.dtype == F32 else c.right.dtype
    return tuple(dict.fromkeys((*products_for(stored, target.extras, rows), SINGLE)))


def _tiled_channels(how: ProductKind, c: Contracted, done: Prepared, target: Cpu) -> Tiled | None:
    """Windows of one channel for each column; None if channels are not contiguous, or padding is not the zero point."""
    left, zeros, (channel,) = c.left, c.zeros, c.columns
    if how.unit is not None or not isinstance(left, Load) or left.source not in done.places or zeros is None:
        return None
    offset = done.places[left.source].offset(left.index)
    if coefficient(offset, channel) != ONE or left.otherwise not in (None, zeros[0]):
        return None
    if any(channel in axes_of(g.index) for g in left.guards) or (channel.extent.constant or ZERO_ROW + 1) > ZERO_ROW:
        return None
    *lines, across = order_of(c.ranges, offset)  # windows that overlap have columns in common
    ranges, length = (across, *lines), product([a.extent for a in lines])
    segments = (across,) if lines else ()
    if not few_enough(ranges) or any(coefficient(offset, r) is None for r in ranges):
        return None
    panels, length = panel_axes(c, target.panel), length if lines else across.extent
    right = _quantized_right(replace(c, ranges=ranges), panels, segments, length, done)
    if right is None:
        return None
    sides = (left, right, (), c.rows, c.columns, ranges, segments, length)
    return Tiled(*sides, c.finish, how, zeros, panels=panels, channels=True)


def _tiled_as(how: ProductKind, c: Contracted, done: Prepared, constants: Container[str], target: Cpu) -> Tiled | None:
    if c.channels:
        return _tiled_channels(how, c, done, target)
    if how == SINGLE and along_rows(c, done.places, constants):
        return _tiled_along_rows(c, done, constants, target)
    parts = _joined(c, done, how)
    before = len(done.jobs)
    left = parts[0].load if parts else _left(c, done, how.left)
    read = _read_in_order(left, c, done, parts)
    if read is None and not parts:  # a window of very many lines, which are contiguous in a copy
        del done.jobs[before:]
        left = _in_rows(c, c.left, done, how.left)
        read = _read_in_order(left, c, done, ())
    if read is None:
        return None
    ranges, segments, length = read
    c = replace(c, ranges=ranges)
    if not how.takes(length.constant, product([s.extent for s in segments]).constant or 1):
        return None
    panels = panel_axes(c, target.panel)
    if how.exact:
        right = _quantized_right(c, panels, segments, length, done)
    else:
        right = _right(c, panels, done, constants, how)
    if right is None:
        return None
    return Tiled(
        left, right, c.batch, c.rows, c.columns, ranges, segments, length, c.finish, how, c.zeros, parts, panels=panels
    )


def _tiled_along_rows(c: Contracted, done: Prepared, constants: Container[str], target: Cpu) -> Tiled | None:
    """The contraction with a left side that is packed by copying: the steps of k as they lie in memory."""
    left = operand_of(c.left)
    ranges = tuple(order_of(c.ranges, done.places[left.source].offset(left.index)))
    c, panels = replace(c, ranges=ranges), panel_axes(c, target.panel)
    right = _right(c, panels, done, constants, SINGLE)
    if right is None:
        return None
    sides = (left, right, (), c.rows, c.columns, ranges, (), product([r.extent for r in ranges]))
    return Tiled(*sides, c.finish, panels=panels, along_rows=True)


def _read_in_order(
    left: Load, c: Contracted, done: Prepared, parts: tuple[KSubrange, ...]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Index] | None:
    """The reduction axes in the storage order of a left side, its segments and their length; None if too many.

    A left side concatenated from `parts` has one segment, as long as its reduction axis.
    """
    offset = done.places[left.source].offset(left.index)
    ranges = tuple(order_of(c.ranges, offset))
    pieces = ((), ranges[0].extent) if parts else contiguous_pieces(offset, ranges, left.guards)
    return (ranges, *pieces) if pieces is not None and few_enough(pieces[0]) else None


def _joined(c: Contracted, done: Prepared, how: ProductKind) -> tuple[KSubrange, ...]:
    """The parts of a left side that is a concatenation of tensors along its only reduction axis; else empty.

    Each is contiguous along that axis and has the storage dtype of the tile's rows.
    """
    if how.exact or c.batch or len(c.ranges) != 1 or (isinstance(c.left, Load) and c.left.otherwise is None):
        return ()
    goal, (step,) = Goal("", ZERO, c.left), c.ranges
    points = split_points(step, signs_of([c.left]))
    if points is None or len(points) < 3:
        return ()
    made = []
    for begin, (axis, (piece,)) in zip(points, split_goals([goal], step, points), strict=False):
        load = piece.value
        if not isinstance(load, Load) or load.guards or load.source not in done.places or load.dtype != how.left:
            return ()
        place = done.places[load.source]
        if coefficient(place.offset(load.index), axis) != ONE or (axis.extent.constant or 1) % how.step:
            return ()
        made.append(KSubrange(load, axis, begin))
    return tuple(made)


def _left(c: Contracted, done: Prepared, rows: DType) -> Load:
    """A left side that tiles can read: the operand itself, a padded copy, or a copy in row order.

    A copy has the dtype of the tile's rows. If each element is read once and there are no batch axes, an operand of
    another dtype is converted while it is packed.
    """
    left = c.left
    fits = left.dtype.accumulator == F32 or c.zeros is not None
    if isinstance(left, Load) and fits and left.source in done.places:
        offset = done.places[left.source].offset(left.index)
        nothing = const(0, left.dtype) if c.zeros is None else c.zeros[0]
        zero = left.otherwise is None or left.otherwise == nothing
        pieces = contiguous_pieces(offset, tuple(order_of(c.ranges, offset)), left.guards) if zero else None
        windows = any(axes_of(e) & {*c.ranges} and axes_of(e) & {*c.rows} for e in left.index)
        fits = left.dtype == rows or not (c.batch or left.guards or windows)
        readable = pieces is not None and readable_pieces(*pieces, guarded=bool(left.guards))
        if fits and readable:
            return left
        image = len(left.index) >= 3
        if image and (left.guards or (windows and not (fits and readable))):
            padded = _padded(c, left, done, rows)
            return padded if padded is not None else _in_rows(c, left, done, rows)
        if pieces is not None and not left.guards and fits:
            return left
    return _in_rows(c, left, done, rows)


def _padded(c: Contracted, left: Load, done: Prepared, rows: DType) -> Load | None:
    """The load of a channels-last copy of an operand that contains its padding; None if there is no such copy.

    Without padding where the taps of a window do not adjoin: tiles skip those that reach nothing else.
    """
    channels = {r for e in left.index if not axes_of(e) & {*c.rows} for r in axes_of(e) & {*c.ranges}}
    steps = [coefficient(e, r) for e in left.index if axes_of(e) & {*c.rows} for r in axes_of(e) & {*c.ranges}]
    taps, length = tuple(r for r in c.ranges if r not in channels), product([r.extent for r in channels])
    apart = all((x or ONE).constant not in (None, 1) for x in steps) and readable_pieces(taps, length, guarded=True)
    made = padded_image(f"{c.definition.name}%pad", left, done.shapes[left.source], zeros=not apart)
    if made is None or (made[1].guards and not apart):
        return None
    image, load = made
    last = axes_of(left.index[-1]) & channels  # as they are in memory
    layout = PLAIN if last else channels_last(len(image.axes))
    name = done.add(replace(image, value=cast(image.value, rows)), layout)
    return replace(load, source=name, dtype=rows, otherwise=load.otherwise and cast(load.otherwise, rows))


def _in_rows(c: Contracted, left: Scalar, done: Prepared, rows: DType) -> Load:
    """The load of a copy of a computed operand with contiguous reduction axes, or of the image that windows read."""
    name = f"{c.definition.name}%left"
    image = image_of(name, left, c.batch, c.rows, c.ranges)
    if image is not None:
        return Load(done.add(replace(image[0], value=cast(image[0].value, rows))), image[1], rows)
    old = (*c.batch, *c.rows, *c.ranges)
    axes = tuple(Axis(f"{name}_{i}", a.extent) for i, a in enumerate(old))
    value = substitute_axes(left, {a: Index.of(b) for a, b in zip(old, axes, strict=True)})
    return Load(done.add(Definition(name, axes, cast(value, rows))), tuple(map(Index.of, old)), rows)


def _quantized_right(
    c: Contracted, panels: tuple[Axis, Axis], segments: tuple[Axis, ...], length: Index, done: Prepared
) -> Load | None:
    """Constant quantized weights as panels with column sums; None if they have another layout already."""
    assert isinstance(c.right, Load)
    panel, lane = panels
    name, width = c.right.source, lane.extent.constant or 1
    shape = done.shapes[name]
    layout = quantized_layout(c, shape, length.constant, width)
    if layout is None or done.layouts.get(name, layout) != layout:
        return None
    done.layouts[name] = layout
    done.panels.add(name)
    size = code_depth(segments, length) * width
    done.places[name] = Place(name, c.right.dtype, lambda index: index[0] * size)
    return Load(name, (Index.of(panel), *map(Index.of, c.ranges), Index.of(lane)), c.right.dtype)


def _right(
    c: Contracted, panels: tuple[Axis, Axis], done: Prepared, constants: Container[str], how: ProductKind
) -> Load | None:
    """The right side in panels: a constant in panel layout, or a copy made at run time."""
    panel, lane = panels
    width, right = lane.extent.constant or 1, c.right
    n = product([a.extent for a in c.columns])
    at = (*map(Index.of, c.batch), Index.of(panel), *map(Index.of, c.ranges), Index.of(lane))
    if isinstance(right, Load) and right.source in constants and (how == SINGLE or not c.batch):
        packed = in_panels(c, panels, how.right, how.step, done)
        if packed is not None and packed.free(done) and (right.dtype == how.right or how != SINGLE):
            return packed.taken(done)
        if packed is not None and right.dtype == F32:
            return None
    if how != SINGLE:
        return None
    name = f"{c.definition.name}%right"
    axes = tuple(Axis(f"{name}_{i}", a.extent) for i, a in enumerate((*c.batch, panel, *c.ranges, lane)))
    body_axes = dict(zip((*c.batch, *c.ranges), (*axes[: len(c.batch)], *axes[len(c.batch) + 1 : -1]), strict=True))
    column = Index.of(axes[len(c.batch)]) * width + Index.of(axes[-1])
    digits = dict(zip(c.columns, unflatten(column, tuple(a.extent for a in c.columns)), strict=True))
    value = substitute_axes(right, {a: Index.of(b) for a, b in body_axes.items()} | digits)
    if (n.constant or 1) % width or n.constant is None:
        value = guarded(value, (Guard(column, n),))
    return Load(done.add(Definition(name, axes, cast(value, F32)), right_side=True), at, F32)
