"""``ddplab`` itself: its greeting, its version, and what it says of a word that it does not know."""

import re
import shlex

import pytest
from refusal import refused

from ddplab import cli


@pytest.mark.core
def test_without_a_word_it_greets_with_examples_that_work(capsys):
    assert cli.main([]) == 0
    examples = re.findall(r"^  (ddplab .*?)  +\S", capsys.readouterr().out, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        assert shlex.split(example)[1] in cli.COMMANDS
    (simulate,) = [example for example in examples if "simulate" in example]
    assert cli.main(shlex.split(simulate)[1:]) == 0


def test_it_says_its_version(capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["--version"])
    assert leaving.value.code == 0
    assert re.fullmatch(r"ddplab \d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["diagnos"], "ddplab: there is no command 'diagnos'; did you mean diagnose?; see ddplab --help"),
        (["zzz"], "ddplab: there is no command 'zzz'; see ddplab --help"),
        (["--foo"], "ddplab: unrecognized arguments: --foo; see ddplab --help"),
        (
            ["diagnose", "--jsn", "a.log"],
            "ddplab diagnose: unrecognized arguments: --jsn; did you mean --json?; see ddplab diagnose --help",
        ),
    ],
)
def test_an_unknown_word_is_answered_with_what_was_meant(capsys, arguments, said):
    assert refused(capsys, *arguments).strip() == said


def test_help_names_every_command_with_a_line(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert re.search(rf"^ +{name} +\w.+$", text, re.MULTILINE)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_each_command_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert f"  ddplab {command} " in capsys.readouterr().out
