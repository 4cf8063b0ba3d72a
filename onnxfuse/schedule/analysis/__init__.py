"""What a group computes, found before anything is decided: canonical form, bounds, contractions, images, softmax."""
