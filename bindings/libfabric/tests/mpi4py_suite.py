"""Runs mpi4py's own tests, unchanged, but for those that Open MPI 4.1.4 fails over libfabric on any provider.

    mpirun ... python3 mpi4py_suite.py MPI4PY-SOURCE [ARGUMENTS OF runtests.py]

Each test that is left out was tried on libfabric's `tcp` provider, and fails there in the same way; or it fails outside of providers.
"""

import os
import runpy
import sys
import unittest

LEFT_OUT = {
    # A persistent send of absolute addresses: a segmentation fault in mca_pml_cm_start.
    ("test_cco_vec", "testAlltoallwBottom"),
    # Cancelling a synchronous send: a segmentation fault in the cancel function of mtl/ofi, or an error, or nothing.
    ("test_p2p_obj", "testCancel"),
    ("test_p2p_buf", "testProbeCancel"),
    # It takes sends that are not complete at once for incomplete until their receive; its messages then disturb the tests behind it.
    ("test_p2p_obj", "testManyISendAndRecv"),
}


MODULES_LEFT_OUT = {
    # Spawned processes: at times Open MPI's process manager never answers one of them (in PMIx_Init, before it knows of a provider), on a
    # machine with other work.
    "test_spawn",
    # Synchronous sends that are received by MPI_Mrecv: Open MPI's layer over libfabric never answers them.
    "test_util_pkl5",
}

find_all = unittest.TestLoader.getTestCaseNames


def find_others(loader, case):
    if case.__module__ in MODULES_LEFT_OUT:
        return []
    return [name for name in find_all(loader, case) if (case.__module__, name) not in LEFT_OUT]


def main():
    tests = os.path.join(sys.argv[1], "test")
    sys.argv = [os.path.join(tests, "runtests.py"), *sys.argv[2:]]
    sys.path.insert(0, tests)
    unittest.TestLoader.getTestCaseNames = find_others
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
