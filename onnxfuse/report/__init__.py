"""Results of verbs as JSON, manifests, lock files, and pages in HTML and Markdown."""
