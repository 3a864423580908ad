"""The faults: a sample of them in the ordinary tests, all of them with `--hundred` (`make faults`, hours).

A test marked `cases(sample=, hundred=)` is run once a number; the number is the seed of all that is random in it, so
that one case can be repeated (`-k "[17]"`). What each case did is told at the end, failed or not.
"""

from collections import defaultdict

import pytest
from fault_runs import Reference, assert_same, reference, timed
from launched_runs import Launched

TOLD = "fault"  # the property of a test under which it tells what it did


def pytest_addoption(parser):
    parser.addoption("--hundred", action="store_true", help="all cases of the faults instead of a sample (hours)")


def pytest_configure(config):
    config.addinivalue_line("markers", "cases(sample, hundred): run with as many seeds; hundred with --hundred")


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("cases")
    if marker is not None:
        hundred = metafunc.config.getoption("--hundred", default=False)
        metafunc.parametrize("seed", range(marker.kwargs["hundred" if hundred else "sample"]))


@pytest.fixture(scope="session")
def cache(request, tmp_path_factory):
    """Where the processes keep compiled programs; over sessions too, if pytest keeps anything."""
    kept = getattr(request.config, "cache", None)
    return kept.mkdir("commands") if kept else tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="session")
def whole(tmp_path_factory, cache):
    """whole(config): the run that was left alone; made once."""
    made = {}

    def run(config):
        if config not in made:
            made[config] = reference(tmp_path_factory.mktemp("whole") / "run", config, cache)
        return made[config]

    return run


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory, cache):
    """left_alone(config, count): the run in so many processes that was left alone, which ends as in one; made once."""
    made = {}

    def run(config, count):
        if (config, count) not in made:
            alone, several = (tmp_path_factory.mktemp(name) / "run" for name in ("alone", "several"))
            with Launched(alone, config, cache, 1) as process:
                assert process.finish() == 0, process.told()
            with Launched(several, config, cache, count) as process:
                made[config, count] = Reference(several, timed(process))
            assert_same(several, alone)
        return made[config, count]

    return run


@pytest.fixture
def all_of_them(request) -> bool:
    return request.config.getoption("--hundred", default=False)


@pytest.fixture
def tell(record_property):
    """tell(text): a line for the end of the session."""
    return lambda text: record_property(TOLD, text)


def pytest_terminal_summary(terminalreporter):
    lines, counts = defaultdict(list), defaultdict(lambda: [0, 0])
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            texts = [text for name, text in getattr(report, "user_properties", ()) if name == TOLD]
            if report.when == "call" and texts:
                test, _, seed = report.nodeid.rpartition("::")[2].partition("[")
                counts[test][0] += report.passed
                counts[test][1] += 1
                lines[test] += [f"  {outcome:6} {'seed ' if seed else ''}{seed.rstrip(']')}: {text}" for text in texts]
    if lines:
        terminalreporter.section("faults")
    for test, told in lines.items():
        passed, count = counts[test]
        terminalreporter.write_line("\n".join([f"{test}: {passed} of {count}", *told]))
