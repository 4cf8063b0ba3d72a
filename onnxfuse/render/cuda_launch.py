"""The host code of a CUDA kernel: binds symbols, checks shapes, allocates memory and launches the phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from onnxfuse.ir.compose import elements_read
from onnxfuse.ir.dtype import BF16, F16, F32
from onnxfuse.ir.index import ONE, ZERO, Index
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.kernel import (
    Buffer,
    Computed,
    ExtentBind,
    Kernel,
    Loop,
    Phase,
    Store,
    all_statements,
    statements,
)
from onnxfuse.ir.lanes import values_of
from onnxfuse.ir.launch import ALIGNED, Activation, CopyAsync, CopyBox, LibraryCall, LibraryConvolution, LibraryProduct
from onnxfuse.render.c_family import identifier, index, stored
from onnxfuse.render.cuda import device_text, function_name
from onnxfuse.render.cuda_parameters import ELEMENTS, parameters, tensor_maps
from onnxfuse.render.source import Source

DEVICE = "__CUDACC__"  # defined by NVRTC and nvcc, which compile the device code
DATA = {F32: 0, F16: 2, BF16: 14}  # cudaDataType_t
EPILOGUES: Mapping[Activation, int] = {"": 0, "relu": 2, "gelu": 32}  # bits of cublasLtEpilogue_t, as are the following
BIASED, PLAIN = 4, 1  # PLAIN: none of the others
TENSORS = {F32: 0, F16: 2, BF16: 9}  # cudnnDataType_t
ACTIVATIONS: Mapping[Activation, int] = {"": 5, "relu": 1}  # cudnnActivationMode_t
HEADERS: Mapping[type, str] = {LibraryProduct: "cuda_products.h", LibraryConvolution: "cuda_convolutions.h"}
ALGORITHMS: Mapping[type, str] = {LibraryProduct: "Algorithm", LibraryConvolution: "Filtering"}


def render(kernel: Kernel, symbol: str, name: str, flags: tuple[str, ...] = ()) -> Source:
    """The source of a kernel: `symbol` names its descriptor onnxfuse_SYMBOL, `name` is the operator type."""
    device, host = device_text(kernel, symbol), "\n".join(host_lines(kernel, symbol, name))
    return Source(symbol, f"#ifdef {DEVICE}\n{device}#else\n{host}\n#endif\n", flags)


def kernel_text(kernel: Kernel) -> str:
    """The text that identifies a kernel: equal for equal computations, independent of value names."""
    shapes = "".join(f"// {p.name} {p.layout.steps} {p.shape}\n" for p in (*kernel.inputs, *kernel.outputs))
    return render(kernel, "kernel", "kernel").text + shapes


def code_symbol(symbol: str) -> str:
    """The symbol of the array with the compiled device code."""
    return f"onnxfuse_code_{symbol}"


def host_lines(kernel: Kernel, symbol: str, name: str) -> Iterator[str]:
    """The host translation unit: a reference to the device code, and the function that runs the kernel."""
    phases = range(len(kernel.phases))
    calls = {n: p.library for n, p in enumerate(kernel.phases) if p.library is not None}
    headers = sorted({HEADERS[type(p)] for p in calls.values()}) or ["cuda_host.h"]
    names = ", ".join(f'"{function_name(symbol, k)}"' for k in phases)
    yield from (
        *(f'#include "{header}"' for header in headers),
        f'extern "C" const unsigned char {code_symbol(symbol)}[];',
        f"namespace onnxfuse {{ namespace cuda {{ namespace {symbol}_ {{",
        f"const char* const names[] = {{{names}}};" if phases else "const char* const* const names = nullptr;",
        f"const unsigned shared[] = {{{', '.join(map(_shared, kernel.phases)) or '0'}}};",
        f"Handle functions[{max(len(phases), 1)}];",
        f"Module module = {{{code_symbol(symbol)}, names, shared, {len(phases)}, functions, {{0}}, false, {{false}}}};",
        *(_call(n, p) for n, p in calls.items()),
        "const char* prepare(int device) {",
        *(f"  prepare(call{n}, device, {_rows(p).constant or 0});" for n, p in calls.items()),
        "  return load(module, device);",
        "}",
        "const char* run_kernel(Host* host, const Tensor* inputs) {",
    )
    for b in kernel.binds:
        yield from _bind(b)
    yield from _ends(kernel)
    for n, p in calls.items():
        yield f"  {ALGORITHMS[type(p)]} algorithm{n};"
        yield f"  const bool known{n} = algorithm_of(host, call{n}, {index(_rows(p))}, &algorithm{n});"
    yield from _scratch(kernel, list(calls))
    for n, m in enumerate(tensor_maps(kernel)):
        matrix = f"{identifier(m.source)}_, {index(m.all_rows)}, {m.all_columns}, {m.pitch}, {m.rows}"
        yield f"  Map map{n}_;"
        yield f"  if (const char* wrong = mapped(&map{n}_, {ELEMENTS[m.dtype]}, {matrix})) return wrong;"
    symbols = {b.symbol.name for b in kernel.binds}
    for at, (_, parameter) in enumerate(parameters(kernel)):
        yield f"  auto argument{at} = {parameter if parameter in symbols else f'{parameter}_'};"
    given = ", ".join(f"&argument{at}" for at in range(len(parameters(kernel))))
    yield f"  void* arguments[] = {{{given}}};" if given else "  void** arguments = nullptr;"
    for number, phase in enumerate(kernel.phases):
        assert phase.launch is not None
        early = index(tensor_bytes(kernel)) if phase.launch.dependent else "0"
        how = f"{index(phase.launch.grid)}, {phase.launch.block!r}, {phase.launch.shared!r}, arguments, {early}"
        if number in calls:
            yield f"  const Operands operands{number} = {_operands(calls[number])};"
            given = ", ".join(f"{name}{number}" for name in ("call", "operands", "algorithm", "workspace"))
            yield f"  if (!known{number} || !computed(host, {given}))"
        yield f"  if (const char* wrong = launch(host, module, {number}, {how})) return wrong;"
    yield from ("  (void)arguments;", "  return done(host);", "}", *_descriptor(kernel, symbol, name))


def _shared(phase: Phase) -> str:
    """Bytes of shared memory per block, a compile-time constant."""
    assert phase.launch is not None
    assert phase.launch.shared.constant is not None, "render: the size of shared memory is not a constant"
    return repr(phase.launch.shared)


def _bind(b: ExtentBind | Computed) -> Iterator[str]:
    """The definition of a symbol; inconsistent dimensions are rejected by the shape checks that follow."""
    name = b.symbol.name
    if isinstance(b, Computed):
        yield f"  const i64 {name} = {index(b.value)};"
        return
    value = f"inputs[{b.input}].dims[{b.axis}]"
    if b.rest != ZERO:
        value = f"({value} - {index(b.rest, 1)})"
    if b.factor.constant is None:
        value = f"quotient({value}, {index(b.factor)})"
    elif b.factor != ONE:
        value = f"{value} / {index(b.factor)}"
    yield f'  if (inputs[{b.input}].rank <= {b.axis}) return "an input has too few dimensions";'
    yield f"  const i64 {name} = {value};"


def _ends(kernel: Kernel) -> Iterator[str]:
    """Checks of `requires` and of shapes, then pointers to inputs and outputs, aligned as their accesses want it."""
    wide = access_bytes(kernel)
    for e in kernel.requires:
        yield f'  if ({index(e)} < 0) return "a dimension is smaller or larger than the model allows";'
    for i, p in enumerate(kernel.inputs):
        dims, rank = ", ".join(index(e) for e in p.storage), len(p.storage)
        if rank:
            yield f"  const i64 want{i}[] = {{{dims}}};"
            yield f"  if (!same_shape(inputs[{i}], want{i}, {rank}))"
            yield f'    return "input {i} has another shape than the kernel was built for";'
        yield f"  const void* {p.name}_ = inputs[{i}].data;"
        yield from _aligned(p.name, wide.get(p.name, 0), "an input")
    for i, p in enumerate(kernel.outputs):
        dims = ", ".join(index(e) for e in p.storage)
        yield f"  const i64 dims{i}[] = {{{dims or '0'}}};"
        yield f"  void* {p.name}_ = host->output(host, {i}, dims{i}, {len(p.storage)});"
        yield f'  if (!{p.name}_) return "no memory for an output";'
        yield from _aligned(p.name, wide.get(p.name, 0), "an output")


def _aligned(name: str, wide: int, what: str) -> Iterator[str]:
    """The check that a tensor begins at a multiple of its widest access: else a device would be lost to the process."""
    if wide:
        yield f'  if (!begins_well({name}_, {wide})) return "{what} does not begin at a multiple of {wide} bytes";'


def access_bytes(kernel: Kernel) -> Mapping[str, int]:
    """Bytes of the widest access to each input, output and scratch buffer, of those that are wider than an element."""
    types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)} | {b.name: b.dtype for b in kernel.scratch}
    found = defaultdict[str, int](int)
    for s in all_statements(kernel):
        if isinstance(s, CopyAsync) and s.source in types:
            found[s.source] = max(found[s.source], s.count * types[s.source].bytes)
        if isinstance(s, CopyBox):
            found[s.source] = ALIGNED
        if not isinstance(s, Loop) or s.kind != "vector":
            continue
        inside = list(statements(s.body))
        places = [(x.buffer, x.offset) for x in inside if isinstance(x, Store)]
        places += [(load.source, load.index[0]) for x in inside for load in elements_read(values_of(x))]
        for name, offset in places:
            if name in types and coefficient(offset, s.axis) == ONE:
                found[name] = max(found[name], (s.end.constant or 1) * types[name].bytes)
    return found


def tensor_bytes(kernel: Kernel) -> Index:
    """Bytes of all inputs and outputs."""
    return sum((product(list(p.storage)) * p.dtype.bytes for p in (*kernel.inputs, *kernel.outputs)), ZERO)


def _rows(p: LibraryCall) -> Index:
    """What may be open of the sizes of a call: rows of a product, images of a convolution."""
    return p.rows if isinstance(p, LibraryProduct) else p.batch


def _call(number: int, p: LibraryCall) -> str:
    """The description of a product that cuBLASLt may compute, or of a convolution that cuDNN may."""
    if isinstance(p, LibraryConvolution):
        pairs = (p.size, p.window, p.made, p.pads, p.strides, p.dilations)
        sizes = ", ".join(f"{{{a}, {b}}}" for a, b in pairs)
        flags = f"{str(p.bias != '').lower()}, {str(p.residual != '').lower()}"
        kind = f"{TENSORS[p.dtype]}, {ACTIVATIONS[p.activation]}, {flags}"
        counts = f"{p.channels}, {p.filters}, {p.groups}"
        return f"Convolution call{number} = {{{kind}, {counts}, {sizes}, {{}}, 0, 0, {{0}}}};"
    epilogue = EPILOGUES[p.activation] + (BIASED if p.bias else 0) or PLAIN
    flags = f"{str(p.transposed).lower()}, {str(p.residual != '').lower()}"
    sizes = f"{p.columns}, {p.depth}, {', '.join(map(str, p.pitches))}"
    return f"Product call{number} = {{{DATA[p.dtype]}, {epilogue}, {flags}, {sizes}, {{}}, 0, 0, {{0}}}};"


def _operands(p: LibraryCall) -> str:
    sides = (p.left, p.right) if isinstance(p, LibraryProduct) else (p.image, p.weights)
    named = [f"{identifier(name)}_" if name else "nullptr" for name in (*sides, p.bias, p.residual, p.result)]
    return f"{{{index(_rows(p))}, {', '.join(named)}}}"


def _scratch(kernel: Kernel, calls: Sequence[int]) -> Iterator[str]:
    """One allocation for all scratch buffers, and workspaces of libraries."""
    spaces = {f"workspace{n}": f"(known{n} ? rounded(algorithm{n}.workspace) : 0)" for n in calls}
    total = " + ".join([*map(_bytes, kernel.scratch), *spaces.values()])
    if not total:
        return
    yield f"  const size_t bytes = {total};"
    yield "  char* memory = bytes ? static_cast<char*>(host->scratch(host, bytes)) : nullptr;"
    yield '  if (bytes && !memory) return "no memory for scratch";'
    for b in kernel.scratch:
        yield f"  void* {identifier(b.name)}_ = memory;"
        yield f"  memory += {_bytes(b)};"
    for name, size in spaces.items():
        yield f"  void* {name} = memory;"
        yield f"  memory += {size};"


def _bytes(b: Buffer) -> str:
    return f"rounded({index(b.size, 1)} * sizeof({_host_type(b)}))"


def _host_type(b: Buffer) -> str:
    return {"f16": "uint16_t", "bf16": "uint16_t"}.get(stored(b.dtype), stored(b.dtype))


def _descriptor(kernel: Kernel, symbol: str, name: str) -> Iterator[str]:
    ins = ", ".join(str(p.dtype.onnx) for p in kernel.inputs) or "0"
    outs = ", ".join(str(p.dtype.onnx) for p in kernel.outputs) or "0"
    space = f"onnxfuse::cuda::{symbol}_"
    yield f"const int input_types[] = {{{ins}}};"
    yield f"const int output_types[] = {{{outs}}};"
    yield f"}} }} }}  // namespace {space}"
    yield f'extern "C" const onnxfuse::Kernel onnxfuse_{symbol} = {{'
    yield f'    "{name}", {len(kernel.inputs)}, {len(kernel.outputs)}, {space}::input_types, {space}::output_types,'
    yield f"    {space}::run_kernel, {space}::prepare}};"
