"""Networks whose sizes are all open, with shapes computed as exporters of such files compute them."""
