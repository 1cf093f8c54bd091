import pytest

from trueshift.cli.runs import drop_unstarted, expand, new_folder, set_aside


def test_runs_are_counted_up(tmp_path):
    assert new_folder(tmp_path) == tmp_path / "0"
    (tmp_path / "0").mkdir()
    (tmp_path / "notes").mkdir()
    assert new_folder(tmp_path) == tmp_path / "1"


def test_a_run_that_could_not_start_leaves_nothing(tmp_path):
    folder = tmp_path / "0"
    drop_unstarted(folder)  # never made
    folder.mkdir()
    (folder / "events.out.tfevents.1").touch()
    drop_unstarted(folder)
    assert not folder.exists()


def test_a_run_that_started_is_kept(tmp_path):
    for name in ("events.out.tfevents.1", "config.yaml"):
        (tmp_path / name).touch()
    drop_unstarted(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_files_are_set_aside_under_numbers(tmp_path):
    path = tmp_path / "a.txt"
    set_aside(path)  # nothing there
    for word in ("first", "second"):
        path.write_text(word)
        set_aside(path)
    assert not path.exists()
    assert [(tmp_path / f"a.{k}.txt").read_text() for k in (0, 1)] == ["first", "second"]


@pytest.mark.parametrize("verb", ["fit", "test"])
def test_only_a_new_training_from_a_checkpoint_has_a_folder_of_its_own(tmp_path, verb):
    checkpoint = tmp_path / "old" / "0" / "checkpoints" / "last.ckpt"
    words = ["--config", "recipes/tune.yaml", "--ckpt_path", str(checkpoint)]
    folder = expand(verb, [*words, "--runs", str(tmp_path)]).folder
    assert folder == tmp_path / ("tune/0" if verb == "fit" else "old/0")
