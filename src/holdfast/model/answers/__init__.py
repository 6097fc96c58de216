"""The JSON objects that leave the process (docs/reference/json.md), each described once.

A class has the fields of one object, in their order, with their types and meanings.
`holdfast.model.json_encoder.encode` makes the object from the result of a use-case: it reads the attribute of the same
name, or the one that ``Annotated`` names, and writes it as the annotation says (`holdfast.model.answers.words`).
Published schemas are generated from the same classes (`holdfast.model.json_schema`).

To type checkers they are typed dictionaries; when a short command runs they are plain classes, as `typing` is not
loaded. Annotations must be text.
"""
