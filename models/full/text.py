"""Full-size transformers of tokens from the public architectures in transformers (the extra `[models]`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import transformers
from torch import Tensor, nn

from models.full.exporting import Architecture, Export, Masked, causal, exported, plain, primitive, tokens
from models.full.weights import Gain

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
AXES = (("batch", 64), ("sequence", 512))


def export(name: str, form: Export) -> onnx.ModelProto:
    """The network of this name in one form."""
    model = exported(ARCHITECTURES[name], form)
    model.graph.name = name
    return model


def _masked(bert: Any) -> nn.Module:
    return Masked(primitive(bert), TOKENS)


def _bert_base() -> Any:
    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=30522,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            hidden_act="gelu",
            max_position_embeddings=512,
            type_vocab_size=2,
            layer_norm_eps=1e-12,
        )
    )


def _tinybert() -> Any:
    """TinyBERT of four layers, as published."""
    sizes = {"hidden_size": 312, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 1200}
    config = transformers.BertConfig(vocab_size=30522, hidden_act="gelu", layer_norm_eps=1e-12, **sizes)
    return transformers.BertModel(config)


def _distilbert() -> Any:
    sizes = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "max_position_embeddings": 512}
    return transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=30522, activation="gelu", **sizes))


def _albert() -> Any:
    """ALBERT-base v2. Each layer has weights of its own: those that twelve share cannot be sized for each of them."""
    sizes = {"embedding_size": 128, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    return transformers.AlbertModel(
        transformers.AlbertConfig(
            vocab_size=30000, num_hidden_layers=12, num_hidden_groups=12, hidden_act="gelu_new", **sizes
        )
    )


def _mobilebert() -> Any:
    return transformers.MobileBertModel(
        transformers.MobileBertConfig(
            vocab_size=30522,
            hidden_size=512,
            num_hidden_layers=24,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_act="relu",
            max_position_embeddings=512,
            type_vocab_size=2,
            embedding_size=128,
            trigram_input=True,
            use_bottleneck=True,
            intra_bottleneck_size=128,
            use_bottleneck_attention=False,
            key_query_shared_bottleneck=True,
            num_feedforward_networks=4,
            normalization_type="no_norm",
            classifier_activation=False,
        )
    )


class Gpt2(nn.Module):
    """GPT-2 without its cache: input_ids and attention_mask to last_hidden_state."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        published = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
        how: dict[str, Any] = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "use_cache": False}
        self.transformer = transformers.GPT2Model(transformers.GPT2Config(**published | sizes, **how))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """What the last layer says about each token."""
        result: Tensor = self.transformer(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)[0]
        return result


def _traced_gpt2(gpt2: Any) -> nn.Module:
    return Masked(causal(gpt2.transformer), TOKENS[:2])


class Qwen2(nn.Module):
    """Four layers of Qwen2-0.5B without a cache: input_ids and attention_mask to last_hidden_state."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
        config = transformers.Qwen2Config(vocab_size=32000, use_cache=False, **sizes, **heads)
        self.transformer = plain(transformers.Qwen2Model(config))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """What the last layer says about each token."""
        result: Tensor = self.transformer(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)[0]
        return result


def _bert(make: Callable[[], Any]) -> Architecture:
    """A BERT of some size."""
    return Architecture(
        make=lambda: plain(make()),
        sample=tokens(30522, 128),
        inputs=TOKENS,
        outputs=("last_hidden_state", "pooler_output"),
        # Scores of deviation 1: attention neither uniform nor one-hot, and products below 10 before they are scaled.
        # What attention says is mostly the same for all tokens of a sequence: little of it, or they become equal.
        gains=(Gain(r"\.(query|key)$", 1.0), Gain(r"attention\.output\.dense$", 0.3)),
        decomposed_opset=12,
        calibration=4,
        axes=AXES,
        trace=_masked,
    )


ARCHITECTURES: dict[str, Architecture] = {
    "bert-base": _bert(_bert_base),
    "qwen2-4-layers": Architecture(
        make=Qwen2,
        sample=tokens(32000, 128, types=False),
        inputs=TOKENS[:2],
        outputs=("last_hidden_state",),
        # As GPT-2's: sums grow by every layer.
        gains=(Gain(r"\.o_proj$", 0.3), Gain(r"\.down_proj$", 0.5)),
        decomposed_opset=14,
        calibration=4,
        axes=AXES,
    ),
    "gpt2": Architecture(
        make=Gpt2,
        sample=tokens(50257, 128, types=False),
        inputs=TOKENS[:2],
        outputs=("last_hidden_state",),
        # Sums grow by every block: small parts, attention's the smaller one (see BERT).
        gains=(Gain(r"attn\.c_proj$", 0.3), Gain(r"mlp\.c_proj$", 0.5)),
        decomposed_opset=12,
        calibration=4,
        axes=AXES,
        trace=_traced_gpt2,
    ),
    "tinybert-4": _bert(_tinybert),
    "albert-base": Architecture(
        make=lambda: plain(_albert()),
        sample=tokens(30000, 128),
        inputs=TOKENS,
        outputs=("last_hidden_state", "pooler_output"),
        gains=(Gain(r"\.(query|key)$", 1.0), Gain(r"attention\.dense$", 0.3)),
        decomposed_opset=12,
        calibration=4,
        axes=AXES,
        trace=_masked,
    ),
    "distilbert-base": Architecture(
        make=lambda: plain(_distilbert()),
        sample=tokens(30522, 128, types=False),
        inputs=TOKENS[:2],
        outputs=("last_hidden_state",),
        gains=(Gain(r"\.(q_lin|k_lin)$", 1.0), Gain(r"attention\.out_lin$", 0.3)),
        decomposed_opset=12,
        calibration=4,
        axes=AXES,
        trace=lambda bert: Masked(primitive(bert), TOKENS[:2]),
    ),
    "mobilebert": Architecture(
        make=lambda: plain(_mobilebert()),
        sample=tokens(30522, 128),
        inputs=TOKENS,
        outputs=("last_hidden_state", "pooler_output"),
        # Nothing is normalized: each of 144 sums would enlarge a rounding if what it adds were as large as what it has.
        gains=(Gain(r"output\.(bottleneck\.)?dense$", 0.2),),
        decomposed_opset=12,
        calibration=4,
        axes=AXES,
        trace=_masked,
    ),
}
