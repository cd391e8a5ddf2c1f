"""A candidate in a process of its own, which a test may freeze: says its term, then whether it holds for each line.

Run as `python -m tests.contracts.etcd_candidate CELL ENDPOINT...`; a test's tool, never imported.
"""

import sys

from services.runtime.adapters.etcd import EtcdLeadership
from services.runtime.adapters.etcd_client import EtcdSettings


def main(cell: str, *endpoints: str) -> None:
    candidate = EtcdLeadership(EtcdSettings(endpoints, cell), "paused")
    print(candidate.campaign(30.0), flush=True)
    for _ in sys.stdin:
        print(candidate.holds(), flush=True)
    candidate.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
