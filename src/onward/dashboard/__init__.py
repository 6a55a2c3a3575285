"""The dashboard: server-rendered pages on the service layer, served with the HTTP API (D1–D6).

A view function prepares a typed value for each page; a template shows it; the service layer enforces permissions,
scopes, redaction and audit. Every page works without JavaScript.
"""
