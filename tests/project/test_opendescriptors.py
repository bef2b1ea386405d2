import os

from opendescriptors import files_but_drivers


def test_what_a_driver_may_have_opened_is_not_counted(tmp_path):
    opened = ["/dev/nvidia0", "/dev/nvidiactl", "anon_inode:[eventfd]", "socket:[17]", "pipe:[9]"]
    for number, target in enumerate([*opened, "/dev/null", "/tmp/left behind (deleted)"]):
        (tmp_path / str(number)).symlink_to(target)
    assert files_but_drivers(tmp_path) == 2


def test_a_file_that_is_left_open_is_counted(tmp_path):
    before = files_but_drivers()
    with (tmp_path / "x").open("w"):
        reader, writer = os.pipe()
        assert files_but_drivers() == before + 1
    os.close(reader)
    os.close(writer)
    assert files_but_drivers() == before
