from harness import test  # noqa: F401
