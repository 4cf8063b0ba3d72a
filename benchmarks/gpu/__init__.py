"""Probes of a GPU: what the CUDA backend's static choices and cost model rest on."""
