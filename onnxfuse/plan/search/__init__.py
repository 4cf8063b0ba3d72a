"""The cover of least price: what strategies propose, the regions that it falls into, and which candidates are taken."""
