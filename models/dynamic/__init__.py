"""Networks with only symbolic sizes, whose shapes are computed as by exporters."""
