"""The reference of the kit: signatures and docstrings, read without importing anything."""

from tiny_book import TinyBook

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


def book(tmp_path, monkeypatch, page: str) -> TinyBook:
    made = TinyBook(tmp_path, monkeypatch)
    made.write("conf.py", CONF)
    made.write("gallery/ddplab/__init__.py", "from .launcher import launch, LaunchError, Link\n")
    made.write("gallery/ddplab/launcher.py", LAUNCHER)
    made.chapters(kit=page)
    return made


def test_what_the_kit_exports_is_shown_with_its_types_and_what_it_raises(tmp_path, monkeypatch):
    built = book(tmp_path, monkeypatch, PAGE).build()
    assert built.complaints == ""
    page = built.page("kit")
    (launch,) = page.select("dt#ddplab\\.launch")
    assert "launch(worker: Callable[..., Any], *, timeout_s: float = 1.5) → list[Any]" in launch.get_text()
    text = launch.find_next("dd")
    assert "worker – any callable." in text.get_text()
    assert text.select_one("a[href='#ddplab.LaunchError']"), "what it raises is a link"
    assert "ranks – how many." in page.select_one("dt#ddplab\\.Link").find_next("dd").get_text()
    assert page.select_one("dt#ddplab\\.Link\\.seconds")


def test_a_name_that_the_kit_does_not_have_is_reported_at_its_line(tmp_path, monkeypatch):
    made = book(tmp_path, monkeypatch, "```{eval-rst}\n.. kit:: ddplab.lunch\n```\n")
    assert "kit.md:4: WARNING: kit: the kit has no ddplab.lunch" in made.build().warnings
