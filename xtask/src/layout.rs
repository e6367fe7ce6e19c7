//! Paths in the working tree and names of packages: the one file to change when they move.
//!
//! Paths are relative to the root of the tree, with forward slashes.

use crate::line::Line;

/// A cargo workspace of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workspace {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// The folder of its Cargo.toml and Cargo.lock; "." is the root.
    pub(crate) folder: &'static str,
}

impl Workspace {
    /// A cargo command line for this workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Line {
        let line = Line::new("cargo").args(arguments);
        if self.folder == "." { line } else { line.within(self.folder) }
    }
}

/// The folder of the laboratory's workspace.
pub(crate) const RESEARCH: &str = "research";

pub(crate) const PRODUCT_WORKSPACE: Workspace = Workspace { name: "the product", folder: "." };
pub(crate) const RESEARCH_WORKSPACE: Workspace = Workspace { name: "the laboratory", folder: RESEARCH };

/// The workspaces, in order of testing.
pub(crate) const WORKSPACES: &[Workspace] = &[PRODUCT_WORKSPACE, RESEARCH_WORKSPACE];

/// The fuzz targets and their corpus, a separate workspace.
pub(crate) const FUZZ: &str = "tests/fuzz";

/// Firmware for bare metal, a separate workspace.
pub(crate) mod firmware {
    pub(crate) const FOLDER: &str = "research/firmware";
    pub(crate) const BINARY: &str = "memferry-firmware";
    pub(crate) const EXPECTED_LINES: &str = "research/firmware/expected.txt";
    pub(crate) const TARGET: &str = "armv6-none-eabi";
    pub(crate) const CPU: &str = "arm1136j-s";
}

/// The packages that commands name.
pub(crate) mod package {
    pub(crate) const CLI: &str = "memferry-cli";
    pub(crate) const CPU: &str = "memferry-cpu";
    /// Crates with unsafe code that is not the copy kernels'.
    pub(crate) const MEMORY: &[&str] = &["memferry-shm", "memferry-pool", "memferry-recording"];
    /// Libraries whose tests qemu-user can run, but for [`super::test::UNEMULATED`].
    pub(crate) const EMULATED: &[&str] = &[
        "memferry-clock",
        "memferry-transfer",
        SHM,
        "memferry-path",
        "memferry-pool",
        KMOD,
        "memferry-service",
        "memferry",
        "memferry-bulk",
        "memferry-conformance",
        "memferry-recording",
    ];
    pub(crate) const SHM: &str = "memferry-shm";
    pub(crate) const KMOD: &str = "memferry-kmod";
    pub(crate) const C: &str = "memferry-c";
    pub(crate) const ENGINE_C: &str = "memferry-engine-c";
    pub(crate) const ENGINE_CUDA: &str = "memferry-engine-cuda";
    pub(crate) const ENGINE_IOAT: &str = "memferry-engine-ioat";
    pub(crate) const LINK: &str = "memferry-link";
    pub(crate) const ENGINE_DSA: &str = "memferry-engine-dsa";
    pub(crate) const FAKE_CUDA: &str = "memferry-fake-cuda";
    pub(crate) const PRELOAD: &str = "memferry-preload";
    pub(crate) const RECORDER: &str = "memferry-recorder";
    pub(crate) const PYTHON: &str = "memferry-python";
    pub(crate) const PROOF: &str = "memferry-proof";
    pub(crate) const SOAK: &str = "memferry-soak";
    pub(crate) const BENCH: &str = "memferry-bench";
    pub(crate) const LAB: &str = "memferry-lab";
    pub(crate) const DEVICE: &str = "memferry-pci";
    pub(crate) const XTASK: &str = "xtask";
}

/// The programs and libraries of those packages.
pub(crate) mod binary {
    pub(crate) const CLI: &str = "memferry";
    pub(crate) const SOAK: &str = "memferry-soak";
    pub(crate) const LINK: &str = "memferry-link";
    pub(crate) const BENCH: &str = "memferry-bench";
    pub(crate) const LAB: &str = "memferry-lab";
    pub(crate) const DEVICE: &str = "memferry-device";
    pub(crate) const ENGINE_IOAT: &str = "memferry-engine-ioat";
    pub(crate) const ENGINE_DSA: &str = "memferry-engine-dsa";
    pub(crate) const C_LIBRARY: &str = "libmemferry_c.a";
    pub(crate) const ENGINE_LIBRARY: &str = "libmemferry_engine_c.a";
    pub(crate) const PRELOAD_LIBRARY: &str = "libmemferry_preload.so";
    pub(crate) const RECORDER_LIBRARY: &str = "libmemferry_recorder.so";
}

/// The engine processes that the demo shows.
pub(crate) mod engine {
    pub(crate) const EXAMPLE: &str = "memferry-engine-example";
    pub(crate) const HEADER_FOLDER: &str = "bindings/engine";
    pub(crate) const CUDA: &str = "memferry-engine-cuda";
    pub(crate) const DSA: &str = "memferry-engine-dsa";
    pub(crate) const FAKE_CUDA: &str = "libmemferry_fake_cuda.so";
    /// What the fake driver is called where the engine looks for a driver.
    pub(crate) const CUDA_LIBRARY: &str = "libcuda.so.1";
}

/// Integration tests that commands name.
pub(crate) mod test {
    /// In [`super::package::SHM`]: models of the rings.
    pub(crate) const LOOM: &str = "loom";
    /// In [`super::package::CLI`]: tests of real processes that ask what a user may do.
    pub(crate) const USERS_MATTER: &[&str] = &[
        "brokered",
        "cli",
        "configuration",
        "distrust",
        "engines",
        "faults",
        "profile",
        "protocol",
        "supervised",
    ];
    /// The engine tests on the Linux module: the package, and the test in it.
    pub(crate) const KERNEL_SUITE: (&str, &str) = (super::package::KMOD, "module");
    /// In [`super::package::CPU`]: tests that start themselves again, which needs binfmt under qemu-user.
    pub(crate) const FORCES_KERNELS: &str = "_at_every_level";
    /// In [`super::package::EMULATED`]: tests of what qemu-user ignores, which are advice on memory and the limit of the address space.
    pub(crate) const UNEMULATED: &[&str] = &[
        "a_forked_child_gets_errors",
        "an_admitted_frame_refuses_changes",
        "a_shortage_does_not_end_the_connection",
        "pages_are_made_present_where_there_are_any",
    ];
    /// In [`super::package::CLI`]: the dashboard, with a test that needs a browser.
    pub(crate) const DASHBOARD: (&str, &str) = ("dashboard", "a_browser_shows_the_figures");
    /// In [`super::package::LAB`]: its page, with a test that needs a browser.
    pub(crate) const LAB_PAGE: (&str, &str) = ("browser", "a_browser_shows_the_report");
    /// In [`super::package::LAB`]: the short sweep of its slowest figure against the whole one.
    pub(crate) const SHORT_SWEEP: (&str, &str) =
        ("short_sweeps", "rotations_of_a_mib_are_as_fast_as_longer_ones");
    /// In [`super::package::CLI`]: the link of nodes to each other.
    pub(crate) const LINK: &str = "link";
    /// In [`super::package::CLI`]: revocations of grants to another node.
    pub(crate) const REVOCATIONS: (&str, &str) =
        (LINK, "storm::revocations_in_mid_flight_leave_every_byte_right");
    /// In [`super::package::CLI`]: an engine process that is killed under load.
    pub(crate) const ENGINE_KILLS: (&str, &str) = ("engines", "an_engine_killed_under_load_loses_nothing");
    /// C programs under each installed compiler, sanitizer and checker, and programs with the preloaded library.
    pub(crate) const C_PROGRAMS: &str = "programs";
}

/// The expected verdicts of the lab's claims.
pub(crate) const LAB_VERDICTS: &str = "research/lab/tests/verdicts.txt";

/// The sources of the client library, whose public types have examples.
pub(crate) const API: &str = "crates/memferry/src/";

pub(crate) const C_INSTALL: &str = "bindings/c/install";
pub(crate) const ENGINE_INSTALL: &str = "bindings/engine/install";
/// Whole engine processes, the templates for others.
pub(crate) mod examples {
    pub(crate) const ENGINE: &str = "engines/example/memferry-engine-example.c";
    pub(crate) const ENGINES: [&str; 3] =
        [ENGINE, "engines/example/Makefile", "engines/example-python/memferry_engine_example.py"];
}

/// What stands in for MPI in UCX's benchmark.
pub(crate) const MPI: &str = "bench/twin/mpi.c";

/// Examples of whole programs.
pub(crate) mod programs {
    pub(crate) const SMALL_BESIDE_LARGE: &str = "tools/preload/examples/small_beside_large.py";
    pub(crate) const SNAPSHOT: &str = "bindings/c/examples/snapshot.c";
    pub(crate) const FRAMES: &str = "bindings/python/examples/frames.py";
    /// Those that run with the Python package, and the options of their shortest measurement.
    pub(crate) const PYTHON: &[(&str, &[&str])] = &[
        (FRAMES, &["--rounds", "1", "--most", "1300000"]),
        ("bindings/python/examples/data_loader.py", &["--rounds", "1", "--most", "65536"]),
        ("bindings/python/examples/kv_offload.py", &["--rounds", "1", "--most", "65536"]),
    ];
}

/// The driver for DPDK.
pub(crate) mod dpdk {
    pub(crate) const FOLDER: &str = "bindings/dpdk";
    pub(crate) const DRIVER: &str = "librte_dma_memferry.so";
    /// The name of a device of the driver.
    pub(crate) const DEVICE: &str = "dma_memferry";
    /// DPDK's test of such devices.
    pub(crate) const AUTOTEST: &str = "dmadev_autotest";
    /// What the driver includes of DPDK's source.
    pub(crate) const HEADERS: [&str; 3] =
        ["lib/dmadev/rte_dmadev_pmd.h", "lib/eal/include/dev_driver.h", "drivers/bus/vdev/bus_vdev_driver.h"];
}

/// The provider for libfabric.
pub(crate) mod libfabric {
    pub(crate) const FOLDER: &str = "bindings/libfabric";
    pub(crate) const PROVIDER: &str = "memferry";
    pub(crate) const LIBRARY: &str = "libmemferry-fi.so";
    /// Runs mpi4py's tests.
    pub(crate) const MPI4PY_RUNNER: &str = "bindings/libfabric/tests/mpi4py_suite.py";
    /// Its own tests, the last of which measures.
    pub(crate) const TESTS: [&str; 5] = ["scenes", "hostile", "bounds", "wrappers", "costs"];
}

pub(crate) const PYTHON: &str = "bindings/python";
/// Licences and notices of the crates in the wheel.
#[cfg(test)]
pub(crate) const PYTHON_NOTICES: &str = "bindings/python/python/memferry/third-party-licences";
pub(crate) const PYTHON_TESTS: &str = "bindings/python/tests";

/// Bounded proofs of slots, ranges, walks and counts.
pub(crate) mod proof {
    /// Formulas of the shipped arithmetic, and theorems about them.
    pub(crate) const FORMULAS: &str = "tests/proof/smt";
}

/// Parts of pages that a program puts together; their links are those of the whole page.
pub(crate) const FRAGMENTS: &[&str] = &["bench/src/peers/comparison.md"];

/// The documentation as a site, and its pictures.
pub(crate) mod site {
    pub(crate) const SUMMARY: &str = "docs/site/SUMMARY.md";
    /// In the summary: the page that names the lab's report, which the site alone has.
    pub(crate) const REPORT_PAGE: &str = "REPORT.md";
    pub(crate) const CONFIGURATION: &str = "docs/site/book.toml";
    pub(crate) const PICTURES: &str = "docs/pictures";
    /// The program that makes the pictures.
    pub(crate) const PHOTOGRAPHER: &str = "tests/browser/pictures.py";
    /// In the build directory: the folder that mdBook is run in, and what it makes.
    pub(crate) const BUILT: &str = "site";
    pub(crate) const BOOK: &str = "site/book";
    /// In the build directory: the lab's report.
    pub(crate) const REPORT: &str = "lab/report.html";
}

/// The soak's clients in C and Python.
pub(crate) mod soak {
    pub(crate) const C_CLIENT: &str = "tests/soak/clients/client.c";
    pub(crate) const CLOCK: &str = "tests/soak/clients/clock.c";
    pub(crate) const PYTHON_CLIENT: &str = "tests/soak/clients/client.py";
}

/// The Linux module, and the files of its guests.
pub(crate) mod module {
    pub(crate) const FOLDER: &str = "kernel";
    /// Folders with sources and headers for checkpatch.
    pub(crate) const STYLED: &[&str] = &[
        "kernel",
        "kernel/demo",
        "kernel/softdma",
        "kernel/guest/movdir64b",
        "kernel/include",
        "kernel/include/uapi",
    ];
    pub(crate) const INIT: &str = "kernel/guest/init";
    pub(crate) const DEVICE_TREE: &str = "kernel/guest/zcu102.dts";
    /// Schedules of faults for the model of I/OAT.
    pub(crate) const FAULTS: &str = "kernel/guest/ioat";
    pub(crate) const DEBUG_CONFIG: &str = "kernel/guest/debug.config";
}

/// The guests of two links.
pub(crate) mod roce {
    pub(crate) const INIT: &str = "kernel/guest/roce";
}

/// The guest of the 9P file server.
pub(crate) mod ninep {
    pub(crate) const INIT: &str = "crates/ninep/guest/init";
    /// The directory served to the guest: any source tree.
    pub(crate) const SERVED: &str = "crates/ninep/src";
}

/// What packages have besides what is built.
pub(crate) mod packaging {
    pub(crate) const DEBIAN: &str = "packaging/debian";
    pub(crate) const UNITS: &str = "packaging/systemd";
    /// Unit and manual page of the CUDA engine.
    pub(crate) const CUDA: &str = "packaging/cuda";
    pub(crate) const CUDA_PAGE: &str = "packaging/cuda/memferry-engine-cuda.1";
    /// Unit and manual page of the I/OAT engine.
    pub(crate) const IOAT: &str = "packaging/ioat";
    pub(crate) const IOAT_PAGE: &str = "packaging/ioat/memferry-engine-ioat.1";
    /// Unit and manual page of the link.
    pub(crate) const LINK: &str = "packaging/link";
    pub(crate) const LINK_PAGE: &str = "packaging/link/memferry-link.1";
    /// Unit and manual page of the DSA engine.
    pub(crate) const DSA: &str = "packaging/dsa";
    pub(crate) const DSA_PAGE: &str = "packaging/dsa/memferry-engine-dsa.1";
    pub(crate) const DEVICE_PAGE: &str = "research/pci/memferry-device.1";
    /// A dashboard of the metrics, for Grafana.
    pub(crate) const GRAFANA: &str = "packaging/grafana/memferry.json";
    pub(crate) const USERS: &str = "packaging/sysusers.d";
    /// Drop-ins and udev rules for administrators to copy.
    pub(crate) const EXAMPLES: &str = "packaging/examples";
    /// Checks of the packages in a chroot.
    pub(crate) const CHROOT_CHECKS: &str = "packaging/tests/chroot";
    /// Follows README.md and chapters of the guide word by word, in a chroot.
    pub(crate) const PAGE_CHECKS: &str = "packaging/tests/pages";
    /// What follows a page, there and in the working tree.
    pub(crate) const FOLLOWER: &str = "packaging/tests/follow.py";
    pub(crate) const GUIDE: &str = "docs/guide";
    /// A client of the installed service, for these checks.
    pub(crate) const CLIENT: &str = "packaging/tests/client.py";
    /// Checks of the packages in a guest with systemd.
    pub(crate) const GUEST_CHECKS: &str = "packaging/tests/systemd";
}

pub(crate) const SCRIPTS: &[&str] = &[
    "x",
    ".ci/run",
    C_INSTALL,
    ENGINE_INSTALL,
    module::INIT,
    ninep::INIT,
    roce::INIT,
    packaging::CHROOT_CHECKS,
    packaging::PAGE_CHECKS,
    packaging::GUEST_CHECKS,
];
