"""Types of what ONNX Runtime's own operators make, by which all that lies between them can be fused."""

from tests.load.models import graph_of, parse, text


def test_operators_of_decoders_of_the_runtime():
    """Their shapes are what lets all that lies between them be fused."""
    model = parse(
        """g (float[N, S, 64] x, float[M, R, 128] p, uint8[96, 2, 16] w, float[192] s, int32[N] k, int32 t,
            int64[N, S] at, float[N, 2, P, 16] key, float[N, 2, P, 16] value, float[99, 8] c)
            => (float[N, S, 96] y, float[M, R, 64] z)
        {
            q = com.microsoft.RotaryEmbedding(x, at, c, c)
            v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(q, x, x, key, value, k, t)
            o = com.microsoft.MatMulNBits<K = 64, N = 96, bits = 4, block_size = 32>(v, w, s)
            packed, pk, pv = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(p, , , key, value, k, t)
            y = Relu(o)
            z = Relu(packed)
        }""",
        imports=', "com.microsoft": 1',
    )
    graph = graph_of(model)
    wide = "float32[N, S, 64]"
    assert [text(graph.types[v]) for v in ("q", "v", "o", "packed", "y", "z")] == [
        *(wide, wide, "float32[N, S, 96]"),
        *("float32[M, R, 64]", "float32[N, S, 96]", "float32[M, R, 64]"),
    ]


def test_products_of_codes_and_loops_of_the_runtime():
    model = parse(
        """g (float[T, N, 8] x, int8[8, 24] w, float s, float[1, 8, 12] u, float[24] b, uint8[T, N, 8] a)
            => (float[T, N, 24] y)
        <int8 zero = {0}, uint8 half = {128}, float one = {1}>
        {
            h, last, cell = com.microsoft.DynamicQuantizeLSTM<hidden_size = 3, direction = "bidirectional">(
                x, u, u, , , , , , s, zero, s, zero)
            d = com.microsoft.DynamicQuantizeMatMul(x, w, one, zero)
            f = com.microsoft.MatMulIntegerToFloat(a, w, one, one, half, zero)
            g = com.microsoft.QAttention<num_heads = 2>(a, w, b, one, one)
            y = Add(d, f)
        }""",
        imports=', "com.microsoft": 1',
    )
    graph = graph_of(model)
    assert [text(graph.types[v]) for v in ("h", "last", "cell", "d", "f", "g", "y")] == [
        *("float32[T, 2, N, 3]", "float32[2, N, 3]", "float32[2, N, 3]"),
        *("float32[T, N, 24]", "float32[T, N, 24]", "float32[T, N, 8]", "float32[T, N, 24]"),
    ]


def test_embeddings_of_codes_of_the_runtime():
    model = parse(
        """g (int32[N, S] ids, uint8[99, 16] words, uint8[9, 16] at, uint8[16] w, float[1] s, uint8[1] z,
            uint8[50, 32] table, float[50, 4] scales) => (float[N, S, 16] y, float[N, S, 64] v)
        {
            e, m = com.microsoft.QEmbedLayerNormalization(ids, , words, at, , w, w, , s, s, s, s, s, z, z, z, z, z)
            y = Relu(e)
            k = Neg(m)
            g = com.microsoft.GatherBlockQuantized<block_size = 16>(table, ids, scales)
            v = Relu(g)
        }""",
        imports=', "com.microsoft": 1',
    )
    graph = graph_of(model)
    assert [text(graph.types[v]) for v in ("y", "k", "v")] == ["float32[N, S, 16]", "int32[N]", "float32[N, S, 64]"]


def test_operators_of_the_runtime():
    model = parse(
        """g (float[N, S, 8] x, float[8] w, float[8, 24] q, float[24] b, int32[N] m) => (float[N, S, 8] y)
        <float scale = {0.5}, uint8 zero = {1}>
        {
            a = com.microsoft.SkipLayerNormalization(x, x, w)
            b1 = com.microsoft.FastGelu(a)
            c = com.microsoft.Attention<num_heads = 2>(b1, q, b, m)
            d = com.microsoft.QuantizeLinear(c, scale, zero)
            e = com.microsoft.DequantizeLinear(d, scale, zero)
            y = Relu(e)
        }""",
        imports=', "com.microsoft": 1',
    )
    graph = graph_of(model)
    assert [text(graph.types[v]) for v in ("a", "b1", "c", "d", "e", "y")] == [
        *("float32[N, S, 8]",) * 3,
        "uint8[N, S, 8]",
        *("float32[N, S, 8]",) * 2,
    ]
