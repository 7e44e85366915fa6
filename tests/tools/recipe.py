"""Prints the documents of a YAML file as JSON, in a list. With --workflow each has to be what the
schema of GitHub's workflows allows; check-jsonschema keeps a copy of that."""

import importlib.util
import json
import pathlib
import sys

from jsonschema.validators import validator_for
from ruamel.yaml import YAML

SCHEMA = "builtin_schemas/vendor/github-workflows.json"


def schema():
    # Found without being imported: the program takes more packages than its schema.
    package = importlib.util.find_spec("check_jsonschema").submodule_search_locations[0]
    return json.loads(pathlib.Path(package, SCHEMA).read_text())


def main():
    *options, recipe = sys.argv[1:]
    documents = list(YAML(typ="safe", pure=True).load_all(pathlib.Path(recipe)))
    if "--workflow" in options:
        allowed = schema()
        validator = validator_for(allowed)(allowed)
        for document in documents:
            validator.validate(document)
    json.dump(documents, sys.stdout)


main()
