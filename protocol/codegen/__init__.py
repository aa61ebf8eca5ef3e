"""Writes `protocol.messages` from `protocol/schemas`: ``python -m protocol.codegen [--check]``.

`schema` reads and checks the schemas, `decoder` and `encoder` write straight-line code for one layout of
a message, `module` puts a module together, `package` writes the table of all APIs. Generated code is
committed, so nothing of this package is needed to run the coordinator.
"""
