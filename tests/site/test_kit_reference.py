"""The reference of the kit: signatures and docstrings, read without importing anything."""

import pytest

from tiny_book import Built, TinyBook

CONF = """
extensions = ["myst_parser", "_ext.embed.kit_reference"]
html_theme = "basic"
nitpicky = True
"""
LAUNCHER = '''
import a_module_that_nobody_has


class LaunchError(RuntimeError):
    """A rank failed."""


class Link:
    """A link, see :func:`ddplab.launcher.launch`.

    Attributes:
        ranks: how many.
    """

    def seconds(self, nbytes: float) -> float:
        """Return how long it takes."""


def launch(worker: Callable[..., Any], *, timeout_s: float = 1.5) -> list[Any]:
    """Run it.

    Args:
        worker: any callable.

    Raises:
        LaunchError: a rank raised.
    """
'''
PAGE = """
```{eval-rst}
.. kit:: ddplab.launch
.. kit:: ddplab.LaunchError
.. kit:: ddplab.Link
   :members: seconds
```
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    made = TinyBook(tmp_path_factory.mktemp("book"))
    made.write("conf.py", CONF)
    made.write("gallery/ddplab/__init__.py", "from .launcher import launch, LaunchError, Link\n")
    made.write("gallery/ddplab/launcher.py", LAUNCHER)
    made.chapters(kit=PAGE, wrong="```{eval-rst}\n.. kit:: ddplab.lunch\n```\n")
    return made.build()


def test_what_the_kit_exports_is_shown_with_its_types_and_what_it_raises(built: Built):
    assert not built.error
    assert all("/wrong" in line for line in built.warnings.splitlines()), built.warnings
    page = built.page("kit")
    (launch,) = page.select("dt#ddplab\\.launch")
    assert "launch(worker: Callable[..., Any], *, timeout_s: float = 1.5) → list[Any]" in launch.get_text()
    text = launch.find_next("dd")
    assert "worker – any callable." in text.get_text()
    assert text.select_one("a[href='#ddplab.LaunchError']"), "what it raises is a link"
    assert "ranks – how many." in page.select_one("dt#ddplab\\.Link").find_next("dd").get_text()
    assert page.select_one("dt#ddplab\\.Link\\.seconds")


def test_a_name_that_the_kit_does_not_have_is_reported_at_its_line(built: Built):
    assert "wrong.md:4: WARNING: kit: the kit has no ddplab.lunch" in built.warnings
