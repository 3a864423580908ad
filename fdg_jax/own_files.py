"""A method, a correction, a model or a data set in a user's own file: `--method ./mine.py`.

The file is treated as if it were in the package's folder of methods, corrections, models or data sets. Its name is the
file's name without .py. A run stores the file's path and sha256 in config.json, and a copy in its folder `code`.

A run directory may come from a stranger, so its copy is executed only with --trust-code. Without --trust-code, the
command line must name the user's file again.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fdg_jax import config, corrections, data, durable, methods, models
from fdg_jax.errors import BadInput, reason
from fdg_jax.options.folder import Folder, OwnFile

TRUSTED: ContextVar[bool] = ContextVar("TRUSTED", default=False)  # whether copies in run directories are executed
FOLDERS: Mapping[str, Folder] = {
    "method": methods.FOLDER,
    "correct": corrections.FOLDER,
    "model": models.FOLDER,
    "dataset": data.SETS,
}
CODE, SUFFIX = "code", ".py"


def load(option: str, path: str, content: bytes | None = None) -> None:
    """Registers a user's file under its name without .py.

    Arguments:
        option: the option that takes this name as a value, such as "method".
        content: the file's content, if it has been read already.

    Raises: BadInput if the file cannot be used.
    """
    folder, name = FOLDERS[option], Path(path).stem
    try:
        file = OwnFile(path, Path(path).read_bytes() if content is None else content)
    except OSError as error:
        raise BadInput(f"the {folder.what} {path} cannot be read: {reason(error)}. Name a Python file.") from None
    for other in FOLDERS.values():  # all folders, since a run stores all copies in one folder, by name
        if (own := other.own().get(name, file)).content != file.content:
            raise BadInput(f"{path} and {own.path} differ but have the same name. Rename one of them.")
    if name in folder.own():
        return
    if is_known(option, name):
        raise BadInput(f"{path}: there is a {folder.what} {name} already. Give the file another name.")
    if not name.isidentifier():
        raise BadInput(f"{path}: {name!r} is not a valid name in Python. Give the file a name such as mine.py.")
    folder.join(name, file)
    try:
        if option == "method":
            config.join(folder, name, methods.find(name).declared, config.OF_METHODS)
        elif option == "correct":
            config.join(folder, name, corrections.find(name).declared, config.OF_CORRECTIONS)
        elif option == "model":
            models.join(name)
            config.join(folder, name, models.declared(name), config.OF_MODELS)
        elif not callable(getattr(folder.module(name), "load", None)):
            fact = f"{path} has no function load"
            raise BadInput(f"{fact}. Write def load(data_dir=None), which returns a fdg_jax.data.Dataset.")
    except BadInput:
        folder.leave(name)
        raise


def is_known(option: str, name: str) -> bool:
    """Whether there is a method, correction, model or data set of that name."""
    if option == "model":
        return models.is_known(name)
    names = {"method": [*methods.names(), *methods.ALIASES], "correct": corrections.names()}
    return name in names.get(option, [*data.names(), *data.stream_names(), *data.text_names()])


def load_named(words: Sequence[str]) -> None:
    """Loads the users' files that a command line names, as in --method ./mine.py, --sweep method=./mine.py,fdg."""
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        option = (name if equals else before).lstrip("-")
        for each in re.split("[,;]", value if equals else word) if option in FOLDERS else ():
            if each.endswith(SUFFIX):
                load(option, each)


def by_name(option: str, value: Any) -> Any:
    """Replaces the paths of files in an option's value by their names: "./mine.py,rate" -> "mine,rate"."""
    if option not in FOLDERS or not isinstance(value, str):
        return value
    return ",".join(Path(each).stem if each.endswith(SUFFIX) else each for each in value.split(","))


def by_path(option: str, value: Any, paths: Mapping[str, str] | None = None) -> Any:
    """The inverse of `by_name`. paths: name -> path; None: the paths of the loaded files."""
    if option not in FOLDERS:
        return value
    known = {name: file.path for name, file in FOLDERS[option].own().items()} if paths is None else {**paths}
    names: list[str] = value.split(",")
    return ",".join(known.get(name, name) for name in names)


def used(options: Mapping[str, Any]) -> list[tuple[str, str, OwnFile]]:
    """The users' files that a run's options name: (option, name, file)."""
    return [
        (option, name, file)
        for option, folder in FOLDERS.items()
        for name, file in folder.own().items()
        if name in options[option].split(",")
    ]


def facts(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entry "code" of config.json. For each user's file that the run's options name: path, sha256, and the names of
    the options that the file declares ("has")."""
    found: dict[str, dict[str, Any]] = {}
    for option, name, file in used(options):
        about = found.setdefault(name, {"path": file.path, "sha256": file.sha256, "has": []})
        if option in ("method", "correct"):
            about["has"] += (methods if option == "method" else corrections).find(name).answers_to
        elif option == "model":
            about["has"] += models.declared(name)
    return found


def check(where: Path, code: Any) -> None:
    """Raises BadInput if `code`, read from the file `where`, does not have the form of `facts`."""
    for name, about in code.items() if isinstance(code, dict) else [("", code)]:
        sound = name.isidentifier() and isinstance(about, dict) and isinstance(about.get("has"), list)
        texts = (about.get("path"), about.get("sha256"), *about["has"]) if sound else (None,)
        if not all(isinstance(each, str) for each in texts):
            raise BadInput(f"{where} is damaged: its entry code is {str(code)[:80]}. Restore the file.")


def keep(run: Path, options: Mapping[str, Any]) -> None:
    """Copies the users' files that a run's options name into the run directory. Raises OSError."""
    for _, name, file in used(options):
        durable.make_folder(run / CODE)
        durable.write(run / CODE / f"{name}{SUFFIX}", file.content)


def load_of_run(run: Path, stored: Mapping[str, Any]) -> None:
    """Loads the user's own files that a run was made with, unless they are loaded already.

    Arguments:
        run: the run directory, or an exported file. An exported file has no copies, so the files are read from their
            original paths.
        stored: the run's config.json, or the exported file's options and `code`.

    Raises: BadInput if a different file of that name is loaded, if a copy is damaged, or if its execution has not been
    allowed.
    """
    code = stored.get(CODE) or {}
    check(run, code)
    for name, about in code.items():
        copy = Path(about["path"]) if run.is_file() else run / CODE / f"{name}{SUFFIX}"
        for option in (each for each in FOLDERS if name in str(stored.get(each)).split(",")):
            if loaded := FOLDERS[option].own().get(name):
                if loaded.sha256 != about["sha256"]:
                    fact = f"{loaded.path} is not the file that {run} was made with"
                    raise BadInput(f"{fact}. Restore it ({copy} is a copy), or start a new run in another --run-dir.")
            elif TRUSTED.get():
                try:
                    content = copy.read_bytes()
                except OSError as error:
                    raise BadInput(f"{copy} cannot be read: {reason(error)}. Restore it.") from None
                if hashlib.sha256(content).hexdigest() != about["sha256"]:
                    raise BadInput(f"{copy} is not the file that {run} was made with: its sha256 differs. Restore it.")
                load(option, str(copy), content)
            else:
                fact = f"{run} was made with a user's own code, {copy}, which is executed only on request"
                raise BadInput(f"{fact}. Read that file, then add --trust-code (in Python, trust_code=True).")
