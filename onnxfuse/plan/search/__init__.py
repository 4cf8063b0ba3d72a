"""The cover with the least price: proposals of strategies, regions of the graph, and selection among candidates."""
