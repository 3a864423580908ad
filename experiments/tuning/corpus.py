"""The text of the table of corrections on text: the Python files of three wheels that this project pins by hash.

The wheels are installed with the project, so nothing is downloaded, and their bytes are the same on every machine.
Files are sorted by the sha256 of their names. So every part of the text, such as the last tenth, mixes all three
packages.
"""

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from fdg_jax import durable
from fdg_jax.errors import BadInput

WHEELS = {"optax": "0.2.8", "orbax-checkpoint": "0.12.8", "grain": "0.2.18"}  # as in requirements.txt
SHA256 = "69f2e4a56da27704e188f2b119a2e3b29315b11ab2c206268c952ed696fb5434"
WAY_OUT = "Use `make setup` in an environment with the versions of requirements.txt"


def files() -> dict[str, Path]:
    """{name in the wheel: file} of the wheels' Python files, in the order of the text. Raises BadInput if a wheel is
    missing."""
    found = {}
    for name, wanted in WHEELS.items():
        try:
            wheel = distribution(name)
        except PackageNotFoundError:
            raise BadInput(f"the text needs {name} {wanted}, which is not installed. {WAY_OUT}.") from None
        if wheel.version != wanted:
            raise BadInput(f"the text needs {name} {wanted}, but {wheel.version} is installed. {WAY_OUT}.")
        found |= {str(each): Path(str(each.locate())) for each in wheel.files or () if each.suffix == ".py"}
    return {name: found[name] for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())}


def content() -> bytes:
    """The text. Raises BadInput if the results were made with another text."""
    try:
        text = b"".join(path.read_bytes() for path in files().values())
    except OSError as error:
        raise BadInput(f"the text cannot be read: {error}. {WAY_OUT}.") from None
    sha256 = hashlib.sha256(text).hexdigest()
    if sha256 != SHA256:
        fact = f"the Python files of {', '.join(WHEELS)} have the sha256 {sha256[:16]}..., not {SHA256[:16]}..."
        raise BadInput(f"{fact}: a file was changed. {WAY_OUT}.")
    return text


def write(path: Path) -> None:
    """Writes the text, unless the file exists already."""
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == SHA256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, content())
