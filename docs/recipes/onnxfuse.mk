# include onnxfuse.mk, then `make resnet.fused.onnx`: the model, its library and its manifest come from resnet.onnx.
# Where its weights are external data, say so: `resnet.fused.onnx: resnet.data`.
# What was measured is kept in resnet.fused.fuse.lock where PROFILE_GUIDED=--profile-guided is set.
ONNXFUSE ?= onnxfuse
ONNXFUSE_FLAGS ?=
PROFILE_GUIDED ?=

%.fused.onnx lib%.fused.so %.fused.fuse.json: %.onnx
	$(ONNXFUSE) optimize $< $*.fused.onnx --overwrite --quiet $(PROFILE_GUIDED) $(ONNXFUSE_FLAGS)
