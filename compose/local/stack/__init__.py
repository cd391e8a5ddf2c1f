"""The local stack: `Stack` for programs and tests, `python -m compose.local.stack` for people."""

from compose.local.errors import StackError
from compose.local.stack.cluster import Stack, Status
from compose.local.stack.layout import Broker, Etcd
from compose.local.stack.process import Condition

__all__ = ["Broker", "Condition", "Etcd", "Stack", "StackError", "Status"]
