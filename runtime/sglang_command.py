"""How SGLang's own command line is started."""

import sys

# sglang.cli.main has no __main__, and the script `sglang` may lie off PATH or belong to another interpreter.
# -P keeps the current folder off sys.path, where a user's own folder could hide a package.
SGLANG_SERVE = [
    sys.executable,
    "-P",
    "-c",
    "import sys; sys.argv[0] = 'sglang'; from sglang.cli.main import main; main()",
    "serve",
]
