"""`--allow` and `--engines`: what a command accepts in a file, and what it takes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from builders.hostile import pack, read_members
from intarsia import api
from intarsia.cli.application import app


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    """A file of torch with a weight that is pickled."""
    path, table = tmp_path / "pickled.pt2", "data/weights/model_weights_config.json"
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, path)
    members = read_members(path)
    values = json.loads(members[table])
    values["config"]["weight"]["use_pickle"] = True
    torch.save(program.state_dict["weight"], tmp_path / "weight")
    weight = f"data/weights/{values['config']['weight']['path_name']}"
    return pack(path, {**members, table: json.dumps(values).encode(), weight: (tmp_path / "weight").read_bytes()})


@pytest.mark.parametrize("command", ["inspect", "run", "verify", "export", "diff"])
def test_a_pickle_is_opened_where_it_is_allowed(command: str, pickled: Path, tmp_path: Path) -> None:
    more = {"export": ["-o", str(tmp_path / "new.pt2")], "diff": [str(pickled)]}.get(command, [])
    refused = CliRunner().invoke(app, [command, str(pickled), *more])
    assert refused.exit_code == 2
    assert "the tensor 'weight', which is a pickle" in refused.stderr
    allowed = CliRunner().invoke(app, [command, str(pickled), *more, "--allow", "pickle"])
    assert allowed.exit_code == 0, allowed.stderr


@pytest.mark.parametrize("command", ["run", "verify", "bench"])
def test_engines_are_rebuilt_where_it_is_asked(command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api.save(api.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "a.pt2")
    caplog.set_level("INFO", "intarsia")
    result = CliRunner().invoke(app, [command, str(tmp_path / "a.pt2"), "--engines", "rebuild"])
    assert result.exit_code == 0, result.stderr
    assert "building it from its portable form, because it has no compiled one" in caplog.text
