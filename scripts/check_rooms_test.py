"""check_rooms passes on this tree and finds each thing it looks for in a tree made to hold it."""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = [sys.executable, os.path.join(HERE, "check_rooms")]

GOOD = {
    "ground/CMakeLists.txt": "room(ground\n  FOLDERS low . testing\n  PUBLIC stone.h\n  NEEDS fmt::fmt)\n",
    "ground/low/sand.h": "#pragma once\n",
    "ground/testing/stones.h": "#pragma once\n",
    "ground/stone.h": "#pragma once\n",
    "ground/mpi.h": "#include <mpi.h>\n",
    "ground/stone.cpp": '#include "ground/stone.h"\n#include "somewhere/else.h"\n#include <vector>\n',
    "house/CMakeLists.txt": "# room(garden MAY_INCLUDE house)\nroom(house\n  FOLDERS .\n  PUBLIC door.h\n  MAY_INCLUDE ground  # only\n)\n",
    "house/door.h": '#pragma once\n#include "ground/stone.h"\n',
    "garden/CMakeLists.txt": "room(garden FOLDERS . PUBLIC tree.h MAY_INCLUDE ground)\n",
    "garden/tree.h": "#pragma once\n",
    "suite/CMakeLists.txt": "room(suite OBJECTS FOLDERS program MAY_INCLUDE house garden ground OPTIMIZE 2)\n",
    "suite/program/main.cpp": '#include "garden/tree.h"\n#include "house/door.h"\n',
    "results/record.json": '{"executable": "/ho' + 'me/someone/program"}\n',
    "scripts/run": "#!/bin/sh\necho https://example.org/home/page\n",
}


class CheckRooms(unittest.TestCase):
    def check(self, changes):
        """Runs check_rooms on the good tree with changes. Returns its exit code and output."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**GOOD, **changes}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            ran = subprocess.run(CHECK + [root], capture_output=True, text=True, check=False)
        self.assertEqual(ran.stderr, "")
        return ran.returncode, ran.stdout.splitlines()

    def finds(self, changes, *words):
        code, lines = self.check(changes)
        self.assertEqual(code, 1, lines)
        self.assertEqual(len(lines), 1, lines)
        for word in words:
            self.assertIn(word, lines[0])

    def test_this_tree(self):
        ran = subprocess.run(CHECK, capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stdout), (0, "check_rooms: all right\n"))

    def test_good_tree(self):
        self.assertEqual(self.check({}), (0, ["check_rooms: all right"]))

    def test_forbidden_include(self):
        self.finds({"house/door.h": '\n#include "garden/tree.h"\n'}, "house/door.h:2:", "garden/tree.h", "ground")

    def test_own_header_first(self):
        self.finds({"ground/stone.cpp": '#include <vector>\n#include "ground/stone.h"\n'}, "ground/stone.cpp:1:", "<vector>"[1:-1])

    def test_forbidden_include_in_angles_or_indented(self):
        self.finds({"house/door.h": "#  include <garden/tree.h>\n"}, "house/door.h:1:")

    def test_forbidden_include_by_a_way_around(self):
        self.finds({"house/door.h": '#include "ground/../garden/tree.h"\n'}, "garden/tree.h")

    def test_forbidden_include_in_a_test(self):
        self.finds({"house/a_test.cpp": '#include "garden/tree.h"\n'}, "house/a_test.cpp:1:")

    def test_a_room_that_may_include_none(self):
        self.finds({"ground/gravel.cu": '#include "house/door.h"\n'}, "ground/gravel.cu:1:", "no other room")

    def test_include_not_from_the_root(self):
        self.finds({"house/wall.cpp": '#include "door.h"\n'}, "house/wall.cpp:1:", "from the root")

    def test_rooms_in_a_circle(self):
        code, lines = self.check({"ground/CMakeLists.txt": "room(ground FOLDERS low . testing PUBLIC stone.h MAY_INCLUDE house)\n"})
        self.assertEqual(code, 1)
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("leads back to ground", lines[0])
        self.assertIn("leads back to house", lines[1])

    def test_unknown_room_in_a_list(self):
        self.finds({"garden/CMakeLists.txt": "room(garden FOLDERS . PUBLIC tree.h MAY_INCLUDE groud)\n"}, "groud", "no such room")

    def test_include_of_a_higher_folder(self):
        self.finds({"ground/low/clay.h": '#include "ground/stone.h"\n'}, "ground/low/clay.h:1:", ". is above low")
        self.finds({"ground/low/deep/clay.h": '#include "ground/stone.h"\n'}, "ground/low/deep/clay.h:1:")
        self.assertEqual(self.check({"ground/pebble.h": '#include "ground/low/sand.h"\n'})[0], 0)
        self.assertEqual(self.check({"ground/low/sand_test.cpp": '#include "ground/stone.h"\n'})[0], 0)

    def test_include_past_the_door(self):
        self.finds({"house/door.h": '#include "ground/low/sand.h"\n'}, "house/door.h:1:", "not PUBLIC")
        self.finds({"house/door.h": '#include "ground/testing/stones.h"\n'}, "not PUBLIC")
        self.assertEqual(self.check({"house/a_test.cpp": '#include "ground/testing/stones.h"\n'})[0], 0)

    def test_lists_missing_files(self):
        self.finds({"garden/CMakeLists.txt": "room(garden FOLDERS . beds PUBLIC tree.h)\n"}, "FOLDERS beds")
        self.finds({"garden/CMakeLists.txt": "room(garden FOLDERS . PUBLIC tree.h bush.h)\n"}, "PUBLIC bush.h")

    def test_a_file_outside_the_folders(self):
        self.finds({"suite/loose.h": "\n"}, "suite/loose.h", "no folder in FOLDERS")

    def test_a_full_folder(self):
        files = {f"garden/beds/bed{i}.h": "\n" for i in range(25)}
        self.assertEqual(self.check({**files, "garden/beds/bed_test.cpp": "\n"})[0], 0)
        self.finds({**files, "garden/beds/bed25.h": "\n"}, "garden/beds: 26 sources")

    def test_length(self):
        self.assertEqual(self.check({"ground/long.cpp": "//\n" * 500})[0], 0)
        self.finds({"ground/long.cpp": "//\n" * 501}, "ground/long.cpp", "501 lines")
        self.finds({"scripts/long": "#!/bin/sh\n" * 501}, "scripts/long", "501 lines")
        self.finds({"ground/long.cmake": "#\n" * 501}, "501 lines")

    def test_names(self):
        for name in ("ground/utils.h", "ground/string_helpers.cpp", "ground/common/stone.h", "misc/a.txt"):
            self.finds({name: "\n"}, name, "does not describe")
        self.assertEqual(self.check({"ground/commonwealth.h": "\n"})[0], 0)

    def test_developer_paths(self):
        for place in ("ho" + "me/ann", "ro" + "ot/x", "Us" + "ers/ann/x"):
            self.finds({"scripts/run": f"#!/bin/sh\n\ncd /{place}\n"}, "scripts/run:3:", place)
            self.finds({"results/README.md": f"see `/{place}`\n"}, "results/README.md:1:")
        self.assertEqual(self.check({"scripts/run": "#!/bin/sh\ncd /ho" + "me/me/x\n"})[0], 0)

    def test_no_rooms(self):
        with tempfile.TemporaryDirectory() as root:
            ran = subprocess.run(CHECK + [root], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("no room", ran.stdout)


if __name__ == "__main__":
    unittest.main()
