"""What only GPUs have: rows and elements divided among threads, blocks and warps."""
