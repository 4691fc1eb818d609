"""torch and transformers for the scripts that hold our models against them; without them the importing script is skipped."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLES = os.environ.get("GPT2_TOKENIZER") or os.path.join(ROOT, ".deps", "gpt2_bpe")

try:
    import numpy  # noqa: F401
    import torch  # noqa: F401
    import transformers
    transformers.logging.set_verbosity_error()
except ImportError:
    print("skipped: no transformers")
    sys.exit(77)
