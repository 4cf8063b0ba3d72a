"""Results as pages: what they hold, and what a browser makes of them."""
