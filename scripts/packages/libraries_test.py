"""A bundle leaves the libraries of the machine's kernel, GPU and RDMA network to the machine."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import libraries  # noqa: E402

OF_THE_MACHINE = ["libc.so.6", "libcuda.so.1", "libnvidia-ml.so.1", "libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1",
                  "libmlx4.so.1", "libefa.so.1", "libmlx5-rdmav34.so", "libnl-3.so.200", "libnl-route-3.so.200",
                  "libnccl.so.2", "libcudart.so.13"]
OF_THE_BUNDLE = ["libmpich.so.12", "libucp.so.0", "libuct_ib.so.0", "libhwloc.so.15", "libnuma.so.1", "libefadv.so.1"]


class Libraries(unittest.TestCase):
    def test_names(self):
        for name in OF_THE_MACHINE:
            self.assertTrue(libraries.OF_THE_MACHINE.match(name), name)
        for name in OF_THE_BUNDLE:
            self.assertFalse(libraries.OF_THE_MACHINE.match(name), name)

    def test_only_libraries_of_the_bundle_are_copied(self):
        with tempfile.TemporaryDirectory() as folder:
            ldd = os.path.join(folder, "ldd")
            with open(ldd, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + "".join(f"echo '\t{name} => /lib/{name} (0x00007f0000000000)'\n"
                                                   for name in OF_THE_MACHINE + OF_THE_BUNDLE))
            os.chmod(ldd, 0o755)
            path = os.environ["PATH"]
            os.environ["PATH"] = f"{folder}:{path}"
            try:
                found = libraries.loaded_by(["program"])
            finally:
                os.environ["PATH"] = path
        self.assertEqual(sorted(found), sorted(OF_THE_BUNDLE))


if __name__ == "__main__":
    unittest.main()
