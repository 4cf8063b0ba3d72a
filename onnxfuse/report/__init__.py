"""What a build says about itself: the JSON result of a run, and the manifest that travels with a model."""
