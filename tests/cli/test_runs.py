from trueshift.cli.runs import new_folder


def test_runs_are_counted_up(tmp_path):
    assert new_folder(tmp_path) == tmp_path / "0"
    (tmp_path / "0" / "checkpoints").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    assert new_folder(tmp_path) == tmp_path / "1"


def test_a_run_that_could_not_start_leaves_its_number_free(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "events.out.tfevents.1").touch()
    assert new_folder(tmp_path) == tmp_path / "0"
    (tmp_path / "0" / "config.yaml").touch()
    assert new_folder(tmp_path) == tmp_path / "1"
