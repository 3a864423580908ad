#!/bin/sh
# Makes .venv with the pinned packages, or does nothing when it already has them. `make` calls it before anything
# that needs Python:  sh tools/setup.sh [PYTHON [REQUIREMENTS]]
#
# Done again only when the requirements differ from the copy kept in .venv (written last, so an interrupted set-up
# is finished by the next), when PYTHON names another interpreter than .venv has, or when .venv does not run.
# fdg_jax itself is not built: a line in .venv says where it lies, as an editable install would, so that scripts find
# it from any directory, no edit ever needs a new set-up, and there is no build tool to install.
set -eu
cd "$(dirname "$0")/.."
asked=${1:-}
venv=.venv
python=$venv/bin/python
kept=$venv/requirements   # a folder: the requirements file that was installed, under its own name
PATH=$(printf %s "$PATH" | sed "s|$PWD/$venv/bin:||g")   # an activated .venv cannot make itself anew

say() { printf '%s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

version() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
home() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null; }
findable() {   # the line is relative to its folder: repository and .venv may be moved together
    for packages in $venv/lib/python3*/site-packages; do
        [ -f "$packages/fdg_jax.pth" ] || echo ../../../.. >"$packages/fdg_jax.pth"
    done
}
new_enough() { case $1 in 3.[0-9].* | 3.10.* | [0-2].* | "") false ;; *) true ;; esac; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

choose_python() {   # sets $chosen, or ends with the reason why there is none
    found= lacks_venv=
    for candidate in ${asked:-python3 python3.13 python3.12 python3.11}; do
        v=$(version "$candidate") || continue
        found="${found:+$found, }$candidate is $v"
        new_enough "$v" || continue
        if has_venv "$candidate"; then chosen=$candidate; return; fi
        lacks_venv="$lacks_venv $candidate"
    done
    [ -z "$lacks_venv" ] || fail "Python's venv module is missing from$lacks_venv. Install it" \
        "(Debian, Ubuntu: apt-get install python3-venv) or choose another interpreter: make setup PYTHON=/path/to/python3.12"
    fail "fdg_jax needs Python 3.11 or newer; ${found:-${asked:-python3} cannot be run}." \
        "Install one, or say where it is: make setup PYTHON=/path/to/python3.12"
}

runs() { new_enough "$(version $python)" && $python -c 'import pip' 2>/dev/null; }

if ! runs; then
    choose_python
elif [ -n "$asked" ]; then
    choose_python
    [ "$(home "$chosen")" != "$(home $python)" ] || chosen=
else
    chosen=
fi

requirements=${2:-}
if [ -z "$requirements" ]; then   # keep to what was chosen when .venv was made (requirements-cuda12.txt, say)
    requirements=$(ls $kept 2>/dev/null || true)
    [ -f "$requirements" ] || requirements=requirements.txt
fi
[ -f "$requirements" ] || fail "there is no file $requirements."
if [ -z "$chosen" ] && cmp -s "$requirements" "$kept/$requirements"; then
    findable
    exit 0
fi

if [ -n "$chosen" ]; then
    say "Making $venv with Python $(version "$chosen") ($chosen)."
    "$chosen" -m venv --clear $venv
fi
say "Installing $requirements into $venv (from scratch: 350 MB to download, for a GPU 3 GB)."
rm -rf $kept
quiet=-q
[ ! -t 1 ] || quiet=   # a person sees what is being downloaded
# --no-deps: the file lists every package there is. --no-compile: bytecode for the few modules that are used is
# written below, which is three times as fast as for all of them.
$python -m pip install $quiet --disable-pip-version-check --no-input --require-hashes --no-deps --no-compile \
    -r "$requirements" ||
    fail "not finished; the lines above say why. After that, run it again."
# Started by hand once, the first command is as quick as the second, even where the environment forbids bytecode.
env -u PYTHONDONTWRITEBYTECODE $python - <<'END' || fail "the packages are installed but do not work: see above."
import chex, flax.linen, hypothesis, jax, matplotlib.pyplot, optax, orbax.checkpoint, pytest, rich.progress
import sklearn.datasets, tensorboardX, tensorflow_datasets
print(f"Ready: JAX {jax.__version__}, Flax {flax.__version__}.")
END
findable
mkdir $kept
cp "$requirements" "$kept/$requirements"
