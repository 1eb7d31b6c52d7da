"""What Ray prints and logs while a study runs goes to its ray.log."""

import io
import logging
import sys

from raybench.runs.wait_watch import quiet


def test_prints_and_ray_s_log_go_to_the_file_and_come_back(tmp_path):
    logger, stream = logging.getLogger("ray"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        with quiet(tmp_path / "ray.log"), quiet(tmp_path / "ray.log"):
            print("printed")
            print("to standard error", file=sys.stderr)
            logging.getLogger("ray.tune").error("logged")
        logging.getLogger("ray.tune").error("afterwards")
    finally:
        logger.removeHandler(handler)
    text = (tmp_path / "ray.log").read_text()
    assert all(word in text for word in ("printed", "to standard error", "logged"))
    assert "afterwards" not in text
    assert stream.getvalue() == "afterwards\n"
