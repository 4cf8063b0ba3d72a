"""What the command line promises: every flag, exit code, example and JSON schema of every verb."""
