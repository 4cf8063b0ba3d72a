"""Full-size networks, exported from transformers without their trained weights."""
