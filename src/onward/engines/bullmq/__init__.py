"""Jobs in Redis or Valkey, as BullMQ has them: the queues are shared with Node.

The contract is BullMQ's key layout. Every script here is Onward's own and leaves the keys that BullMQ's would; what
BullMQ has no place for (the leader, workers, names, settings of queues) is kept under ``onward:``, outside its keys.
"""
