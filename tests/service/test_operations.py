"""The table of operations: every one has a method that checks it, and nothing else is callable."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import pytest

from onward.errors import InvalidValue, PermissionDenied
from onward.service.identity import ROLES, Permission, Role, granted_of, of_command_line, of_user
from onward.service.operations import OPERATIONS, Operation, Scoped, find, permit
from onward.service.services import Services


def methods(services: Services) -> dict[str, Operation]:
    found = {}
    for service in vars(services).values():
        for name, method in inspect.getmembers(service, callable):
            if (described := getattr(method, "operation", None)) is not None:
                assert described.name not in found, f"{name} is the second method of {described.name}"
                found[described.name] = described
    return found


def test_every_operation_has_exactly_one_service_method(services):  # S3
    assert methods(services) == dict(OPERATIONS)


def test_an_operation_that_is_not_in_the_table_cannot_be_called():  # S3
    with pytest.raises(InvalidValue):
        find("jobs.steal")


SCOPES: list[dict[str, list[str]]] = [{}, {"orgs": ["a"]}, {"queues": ["mail/*"]}]


async def test_a_caller_is_refused_by_the_table_before_anything_else(services):  # S3
    by_name: dict[str, Any] = {
        method.operation.name: method
        for service in vars(services).values()
        for _, method in inspect.getmembers(service, callable)
        if hasattr(method, "operation")
    }
    refused = 0
    for operation, role, scope in product(OPERATIONS.values(), Role, SCOPES):
        identity = of_user("u", role=role, **scope)
        allowed = operation.permission is None or operation.permission in ROLES[role]
        if "orgs" in scope:
            allowed = allowed and operation.orgs is not Scoped.REFUSED
        if "queues" in scope:
            allowed = allowed and operation.queues is not Scoped.REFUSED
        if allowed:
            permit(identity, operation)
            continue
        method = by_name[operation.name]
        required = [
            None
            for each in list(inspect.signature(method).parameters.values())[1:]
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        with pytest.raises(PermissionDenied):
            await method(identity, *required)
        refused += 1
    assert refused > 200


def test_only_some_permissions_can_be_granted():  # S3
    assert of_user("u", permissions=["reveal"]).permissions == {Permission.READ, Permission.REVEAL}
    for word in ("tokens", "audit", "configure", "fly"):
        with pytest.raises(InvalidValue):
            granted_of([word])


def test_the_command_line_has_a_name():  # S5
    identity = of_command_line()
    assert identity.actor.startswith("cli:")
    assert "@" in identity.actor
    assert identity.role is Role.ADMIN
