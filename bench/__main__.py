"""`python -m bench list` and `python -m bench NAME [--json FILE] [--scale small|full] [options]`.

Prints one JSON object as the last line of stdout; exits 0 whether or not bars are met, 2 when there is no such benchmark.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from bench import registry


def main(argv: Sequence[str]) -> int:
    """Run one benchmark, or list them."""
    known = registry.names()
    name, rest = (argv[0], argv[1:]) if argv else ("list", [])
    if name in {"list", "-h", "--help"}:
        width = max(map(len, known), default=0)
        for each in known:
            print(f"{each:<{width}}  {registry.summary(each)}")
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; see `python -m bench list`"
        print(f"bench: no benchmark {name!r}{hint}", file=sys.stderr)
        return 2
    module = registry.load(name)
    options = registry.parser_of(name, module).parse_args(rest)
    line = registry.report(name, options, module.run(options))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
