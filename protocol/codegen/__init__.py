"""Generate `protocol.messages` from `protocol/schemas`: ``python -m protocol.codegen [--check]``.

`schema` parses and checks the schemas. `decoder` and `encoder` generate the code for one layout of a message.
`module` generates a module, and `package` the table of all APIs. The generated code is committed, so the
coordinator runs without this package.
"""
