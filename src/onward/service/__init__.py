"""What the HTTP API, the dashboard and the command line call: every permission, scope, bound and audit record, once.

A service method takes the caller's :class:`~onward.service.identity.Identity` first, and does what
:mod:`onward.service.operations` says of its operation before anything else.
"""
