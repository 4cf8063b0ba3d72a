"""Small networks, node by node as exporters write the full-size ones."""
