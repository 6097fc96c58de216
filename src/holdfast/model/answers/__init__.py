"""The JSON objects that leave the process (docs/reference/json.md), each described once.

A class has the fields of one object, in their order, with their types and what they mean. Its values come from what a
use-case answers: `holdfast.model.json_encoder.encode` reads the attribute of the same name of that, or what
``Annotated`` says, and writes it as the annotation says (`holdfast.model.answers.words`). The schemas that the faces
publish are made from the same classes (`holdfast.model.json_schema`).

To type checkers they are typed dictionaries; when a short command runs they are plain classes, as `typing` is not
loaded. Annotations must be text.
"""
