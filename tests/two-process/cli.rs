//! The command as users run it: the built binary, its exit status, its output and its files.
//!
//! ```text
//! copy, rotate, flip, overlay ─ embedded and through a service ─► the expected bytes
//! bad input                   ─► an error message, no output file
//! serve, demo                 ─► exit status, and that no file or process remains
//! ```
//!
//! No test sleeps: it waits for a process's output or exit.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use harness::{Service, copy_program, fresh_directory, wait_until};
use memferry_conformance::noise;
use png::{BitDepth, ColorType};
use rustix::process::{Pid, Signal, kill_process};

/// A directory removed with its test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        Self(fresh_directory())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A command line of words and paths.
macro_rules! memferry {
    ($($argument:expr),* $(,)?) => {{
        let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
        $(command.arg($argument);)*
        command
    }};
}

/// Time after which a command counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command to its end. A command that hangs is killed and fails the test.
fn run(mut command: Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = Pid::from_child(&child);
    let (sender, ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            kill_process(process, Signal::KILL).unwrap();
            waiter.join().unwrap().unwrap();
            panic!("{command:?} did not end");
        }
    }
}

/// Runs a command that must succeed; returns its output.
fn succeed(command: Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail without a panic; returns its error message.
fn fail(command: Command) -> String {
    let output = run(command);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{:?}: {errors}", output.status);
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

fn assert_fails(command: Command, expected: &str) {
    let printed = fail(command);
    assert!(printed.contains(expected), "'{expected}' is missing in: {printed}");
}

#[test]
fn copy_works_embedded_and_with_a_service() {
    let place = Place::new();
    let service = Service::start(&[]);
    // Lengths around a piece, and one with more pieces than are in flight.
    for length in [1, 4095, 4097, 8 << 20, (8 << 20) + 1, (40 << 20) + 12_345] {
        let bytes = noise(length, length as u64);
        let source = place.file("source", &bytes);
        let printed = succeed(memferry!["copy", &source, place.path("plain")]);
        assert!(printed.contains(&format!("copied {length} bytes")), "{printed}");
        let printed = succeed(memferry!["copy", &source, place.path("embedded"), "--through-engine"]);
        assert!(
            printed.contains(&format!("copied {length} bytes")) && printed.contains("of memcpy's speed"),
            "{printed}"
        );
        assert!(printed.contains("CPU worker") && printed.contains("CPU time"), "{printed}");
        let printed = succeed(memferry!["copy", &source, place.path("served"), "--socket", &service.socket]);
        assert!(printed.contains("of the service"), "{printed}");
        for copy in ["plain", "embedded", "served"] {
            assert!(std::fs::read(place.path(copy)).unwrap() == bytes, "{copy}, {length} bytes");
        }
    }
}

#[test]
fn copy_between_file_systems_needs_no_engine() {
    let place = Place::new();
    let memory = PathBuf::from(format!("/dev/shm/memferry-copy-{}", std::process::id()));
    let bytes = noise((3 << 20) + 77, 3);
    let source = place.file("source", &bytes);
    let target = place.file("target", b"what was there before");
    // An engine would refuse to start.
    let broken = place.file("broken", b"no profile");
    for (from, to) in [(&source, &memory), (&memory, &target)] {
        let mut command = memferry!["copy", from, to];
        command.env("MEMFERRY_PROFILE", &broken);
        let printed = succeed(command);
        assert!(printed.contains(&format!("copied {} bytes", bytes.len())), "{printed}");
    }
    std::fs::remove_file(&memory).unwrap();
    assert!(std::fs::read(&target).unwrap() == bytes);
    let mut refused = memferry!["copy", "--through-engine", &source, &target];
    refused.env("MEMFERRY_PROFILE", &broken);
    assert_fails(refused, "malformed");
    assert!(
        std::fs::read(&target).unwrap() == bytes,
        "the engine is started before the destination is truncated"
    );
}

#[test]
fn copy_truncates_a_longer_file() {
    let place = Place::new();
    let empty = place.file("empty", b"");
    let target = place.file("target", b"longer");
    assert!(succeed(memferry!["copy", &empty, &target]).contains("copied 0 bytes"));
    assert_eq!(std::fs::read(&target).unwrap(), b"");
}

#[test]
fn a_refused_copy_leaves_the_destination_as_it_was() {
    let place = Place::new();
    // It needs two frames.
    let service = Service::start(&["--quota-frames=1"]);
    let source = place.file("source", &noise(5000, 1));
    let target = place.file("target", b"as it was");
    assert_fails(memferry!["copy", &source, &target, "--socket", &service.socket], "quota");
    assert_eq!(std::fs::read(&target).unwrap(), b"as it was");
}

#[test]
fn copy_refuses_other_than_regular_files() {
    let place = Place::new();
    let source = place.file("source", b"precious");
    std::fs::hard_link(&source, place.path("twin")).unwrap();
    assert_fails(memferry!["copy", place.path("none"), place.path("x")], "No such file");
    assert_fails(memferry!["copy", &place.0, place.path("x")], "is a directory");
    assert_fails(memferry!["copy", &source, &place.0], "is a directory");
    assert_fails(memferry!["copy", "/dev/zero", place.path("x")], "not a regular file");
    assert_fails(memferry!["copy", &source, &source], "is the source itself");
    assert_fails(memferry!["copy", &source, place.path("twin")], "is the source itself");
    assert_fails(memferry!["copy", &source, place.path("no/where")], "cannot write");
    assert_fails(memferry!["copy", &source, "/dev/full"], "No space left");
    assert_eq!(std::fs::read(&source).unwrap(), b"precious");
    assert!(!place.path("x").exists());
}

/// Bytes that a file occupies.
fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Whether the file system of the temporary directory has holes and tells where they are. Says so if not.
fn has_holes(place: &Place) -> bool {
    let path = place.path("holes");
    let file = std::fs::File::create(&path).unwrap();
    file.write_all_at(b"data", 1 << 20).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
    let has_holes = data.is_ok_and(|data| data > 0) && allocated(&path) < 1 << 20;
    std::fs::remove_file(&path).unwrap();
    if !has_holes {
        println!("skipped: the file system of {} keeps no holes; set TMPDIR", place.0.display());
    }
    has_holes
}

#[test]
fn copy_keeps_holes() {
    let place = Place::new();
    if !has_holes(&place) {
        return;
    }
    let service = Service::start(&[]);
    let source = place.path("sparse");
    let file = std::fs::File::create(&source).unwrap();
    // 4 TiB, where the file system has files as long.
    let length = if file.set_len(4 << 40).is_ok() { 4 << 40 } else { 4 << 30 };
    file.set_len(length).unwrap();
    let data = noise(100_000, 3);
    for offset in [1 << 20, length / 2] {
        file.write_all_at(&data, offset).unwrap();
    }
    let reads = |path: &Path, offset| {
        let mut bytes = vec![1; data.len()];
        std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    };
    let served = memferry!["copy", &source, place.path("served"), "--socket", &service.socket];
    let embedded = memferry!["copy", &source, place.path("embedded"), "--through-engine"];
    let plain = memferry!["copy", &source, place.path("plain")];
    for (command, name) in [(plain, "plain"), (embedded, "embedded"), (served, "served")] {
        let printed = succeed(command);
        assert!(
            printed.contains(&format!("copied {length} bytes"))
                && (printed.contains("and holes") || printed.contains("share their blocks")),
            "{printed}"
        );
        let copy = place.path(name);
        assert_eq!(std::fs::metadata(&copy).unwrap().len(), length);
        assert!(allocated(&copy) < 4 << 20, "{}", allocated(&copy));
        assert!(reads(&copy, 1 << 20) == data && reads(&copy, length / 2) == data);
        assert!(reads(&copy, 0) == vec![0; data.len()]);
    }
}

#[test]
fn copy_keeps_a_file_of_one_hole() {
    let place = Place::new();
    if !has_holes(&place) {
        return;
    }
    let source = place.path("hole");
    std::fs::File::create(&source).unwrap().set_len(1 << 30).unwrap();
    let target = place.file("target", b"longer");
    for way in [&[][..], &["--through-engine"]] {
        let mut command = memferry!["copy", &source, &target];
        command.args(way);
        let printed = succeed(command);
        assert!(printed.contains("copied 1073741824 bytes"), "{printed}");
        assert!(printed.contains("a hole") || printed.contains("share their blocks"), "{printed}");
        assert_eq!(std::fs::metadata(&target).unwrap().len(), 1 << 30);
        assert!(allocated(&target) < 1 << 20);
    }
}

fn pipe(place: &Place, name: &str) -> PathBuf {
    let path = place.path(name);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    path
}

#[test]
fn copy_to_a_pipe_writes_holes_as_zeros() {
    let place = Place::new();
    let source = place.path("sparse");
    let file = std::fs::File::create(&source).unwrap();
    file.set_len(3 << 20).unwrap();
    file.write_all_at(b"middle", 1 << 20).unwrap();
    let target = pipe(&place, "pipe");
    let reader = std::thread::spawn({
        let target = target.clone();
        move || std::fs::read(target).unwrap()
    });
    succeed(memferry!["copy", &source, &target]);
    assert!(reader.join().unwrap() == std::fs::read(&source).unwrap());
}

#[test]
fn copy_of_a_file_without_a_size_is_asked_for() {
    let place = Place::new();
    let source = pipe(&place, "pipe");
    for (endless, why) in [
        (source.to_str().unwrap(), "is not a regular file; --copy-contents"),
        ("/proc/version", "has contents without a size"),
        ("/proc/kmsg", if Path::new("/proc/kmsg").exists() { "--copy-contents" } else { "No such file" }),
    ] {
        // An unprivileged user may not open all of them.
        let printed = fail(memferry!["copy", endless, place.path("x")]);
        assert!(printed.contains(why) || printed.contains("ermi"), "{printed}");
    }
    assert!(!place.path("x").exists());
    succeed(memferry!["copy", "/proc/version", place.path("version"), "--copy-contents"]);
    assert_eq!(std::fs::read(place.path("version")).unwrap(), std::fs::read("/proc/version").unwrap());
    let bytes = noise(20 << 20, 5);
    let writer = std::thread::spawn({
        let bytes = bytes.clone();
        move || std::fs::write(source, bytes).unwrap()
    });
    let copied = succeed(memferry!["copy", place.path("pipe"), place.path("copy"), "--copy-contents"]);
    assert!(copied.contains("copied 20971520 bytes"), "{copied}");
    assert!(std::fs::read(place.path("copy")).unwrap() == bytes);
    writer.join().unwrap();
    let regular = place.file("regular", b"as without it");
    succeed(memferry!["copy", &regular, place.path("copy"), "--copy-contents"]);
    assert_eq!(std::fs::read(place.path("copy")).unwrap(), b"as without it");
}

#[test]
fn copy_to_a_pipe_that_nobody_reads_is_ended() {
    let place = Place::new();
    let target = pipe(&place, "pipe");
    let held = || std::fs::OpenOptions::new().read(true).write(true).open(&target).unwrap();
    // Opening it waits for a reader; then a reader that does not read.
    for has_reader in [false, true] {
        let reader = has_reader.then(held);
        let mut command = memferry!["copy", "/dev/zero", &target, "--copy-contents"];
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(reader) = &reader {
            wait_until("the pipe is full", || !drained(reader));
        }
        // SIGINT may be ignored: by what a shell runs in the background, and by all that this starts.
        wait_until("a signal ends it", || {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            child.try_wait().unwrap().is_some()
        });
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()), "{:?}", output.status);
    }
}

#[test]
fn copy_of_an_endless_source_is_interrupted() {
    let place = Place::new();
    let idle = pipe(&place, "pipe");
    // Keeps it open, and writes less than a piece.
    let mut writer = std::fs::OpenOptions::new().read(true).write(true).open(&idle).unwrap();
    writer.write_all(b"the first words").unwrap();
    for source in [Path::new("/dev/zero"), &idle] {
        let target = place.path("copy");
        let _ = std::fs::remove_file(&target);
        let mut command = memferry!["copy", source, &target, "--copy-contents"];
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Until the destination exists, the signal ends the command as any other.
        wait_until("the copy runs", || {
            let length = target.metadata().map_or(0, |about| about.len());
            if source == idle { drained(&writer) } else { length > 0 }
        });
        // One event can send two.
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && errors.contains("interrupted"),
            "{:?} {errors}",
            output.status
        );
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains("copied "), "{printed}");
        if source == idle {
            assert_eq!(std::fs::read(&target).unwrap(), b"the first words");
        }
    }
}

/// Whether nothing is left to read in a pipe.
fn drained(pipe: &std::fs::File) -> bool {
    rustix::io::ioctl_fionread(pipe).unwrap() == 0
}

#[test]
fn copy_keeps_the_destination_without_service() {
    let place = Place::new();
    let source = place.file("source", b"new");
    let target = place.file("target", b"old");
    let nobody = place.path("nobody.sock");
    assert_fails(memferry!["copy", &source, &target, "--socket", &nobody], "is `memferry serve` running?");
    drop(UnixListener::bind(&nobody).unwrap());
    assert_fails(memferry!["copy", &source, &target, "--socket", &nobody], "cannot connect");
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Png {
    width: u32,
    height: u32,
    format: (ColorType, BitDepth),
    bytes: Vec<u8>,
}

const FORMATS: [(ColorType, BitDepth); 6] = [
    (ColorType::Grayscale, BitDepth::Eight),
    (ColorType::Grayscale, BitDepth::Sixteen),
    (ColorType::GrayscaleAlpha, BitDepth::Eight),
    (ColorType::GrayscaleAlpha, BitDepth::Sixteen),
    (ColorType::Rgb, BitDepth::Eight),
    (ColorType::Rgba, BitDepth::Eight),
];

impl Png {
    fn random(width: u32, height: u32, format: (ColorType, BitDepth)) -> Self {
        let mut png = Self { width, height, format, bytes: Vec::new() };
        png.bytes = noise((width * height) as usize * png.pixel_bytes(), 99);
        png
    }

    fn pixel_bytes(&self) -> usize {
        self.format.0.samples() * if self.format.1 == BitDepth::Sixteen { 2 } else { 1 }
    }

    fn pixel(&self, x: u32, y: u32) -> &[u8] {
        let size = self.pixel_bytes();
        let start = (y * self.width + x) as usize * size;
        &self.bytes[start..start + size]
    }

    /// The picture whose pixel at (x, y) is this one's at `from(x, y)`.
    fn moved(&self, (width, height): (u32, u32), from: impl Fn(u32, u32) -> (u32, u32)) -> Self {
        let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let bytes = places.flat_map(|(x, y)| {
            let (x, y) = from(x, y);
            self.pixel(x, y).to_vec()
        });
        Self { width, height, format: self.format, bytes: bytes.collect() }
    }

    fn encode(&self) -> Vec<u8> {
        let mut encoded = Vec::new();
        let mut encoder = png::Encoder::new(&mut encoded, self.width, self.height);
        encoder.set_color(self.format.0);
        encoder.set_depth(self.format.1);
        encoder.write_header().unwrap().write_image_data(&self.bytes).unwrap();
        encoded
    }

    fn load(path: &Path) -> Self {
        let file = BufReader::new(std::fs::File::open(path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        Self { width: info.width, height: info.height, format: (info.color_type, info.bit_depth), bytes }
    }
}

#[test]
fn rotate_turns_clockwise() {
    let place = Place::new();
    let service = Service::start(&[]);
    for format in FORMATS {
        let original = Png::random(37, 23, format);
        let input = place.file("0.png", &original.encode());
        let output = place.path("1.png");
        let quarter = original.moved((23, 37), |x, y| (y, 22 - x));
        succeed(memferry!["rotate", &input, &output, "--by", "90", "--socket", &service.socket]);
        assert_eq!(Png::load(&output), quarter, "{format:?}");
        // Input and output may be the same file.
        for _ in 0..3 {
            succeed(memferry!["rotate", &output, &output, "--by", "90"]);
        }
        assert_eq!(Png::load(&output), original, "{format:?}");
        succeed(memferry!["rotate", &input, &output, "--by", "180"]);
        assert_eq!(Png::load(&output), original.moved((37, 23), |x, y| (36 - x, 22 - y)));
        succeed(memferry!["rotate", &input, &output, "--by", "270"]);
        assert_eq!(Png::load(&output), original.moved((23, 37), |x, y| (36 - y, x)));
    }
}

#[test]
fn flip_mirrors() {
    let place = Place::new();
    let original = Png::random(31, 8, (ColorType::Rgb, BitDepth::Eight));
    let input = place.file("in.png", &original.encode());
    let output = place.path("out.png");
    let horizontal = original.moved((31, 8), |x, y| (30 - x, y));
    let vertical = original.moved((31, 8), |x, y| (x, 7 - y));
    for (direction, flipped) in [("--horizontal", horizontal), ("--vertical", vertical)] {
        succeed(memferry!["flip", &input, &output, direction]);
        assert_eq!(Png::load(&output), flipped);
        succeed(memferry!["flip", &output, &output, direction]);
        assert_eq!(Png::load(&output), original);
    }
    fail(memferry!["flip", &input, &output]);
    fail(memferry!["flip", &input, &output, "--horizontal", "--vertical"]);
}

/// A picture of one colour, with the key at one pixel.
fn keyed(format: (ColorType, BitDepth), color: &[u8], key: &[u8], key_at: (u32, u32)) -> Png {
    let mut png = Png { width: 4, height: 3, format, bytes: color.repeat(12) };
    let start = (key_at.1 * 4 + key_at.0) as usize * color.len();
    png.bytes[start..start + key.len()].copy_from_slice(key);
    png
}

#[test]
fn overlay_applies_the_key_and_the_edges() {
    let place = Place::new();
    let service = Service::start(&[]);
    let cases: [(_, &[u8], &[u8], &str); 4] = [
        ((ColorType::Rgb, BitDepth::Eight), &[1, 2, 3], &[0x12, 0x34, 0x56], "123456"),
        // Alpha is not compared.
        ((ColorType::Rgba, BitDepth::Eight), &[1, 2, 3, 4], &[0x12, 0x34, 0x56, 0x77], "123456"),
        ((ColorType::Grayscale, BitDepth::Eight), &[9], &[0x80], "808080"),
        ((ColorType::Grayscale, BitDepth::Sixteen), &[0x80, 0x81], &[0x80, 0x80], "808080"),
    ];
    for (format, color, key, name) in cases {
        let base = Png::random(10, 6, format);
        let top = keyed(format, color, key, (1, 0));
        let below = place.file("base.png", &base.encode());
        let above = place.file("top.png", &top.encode());
        let output = place.path("out.png");
        for (at, cut) in [((2, 1), false), ((8, 4), true)] {
            let at_text = format!("{},{}", at.0, at.1);
            let printed = succeed(memferry![
                "overlay",
                &below,
                &above,
                &output,
                "--at",
                at_text,
                "--key",
                name,
                "--socket",
                &service.socket
            ]);
            assert_eq!(printed.contains("cut off"), cut, "{printed}");
            let result = Png::load(&output);
            assert_eq!(result.format, format);
            for (x, y) in (0..6).flat_map(|y| (0..10).map(move |x| (x, y))) {
                let covered =
                    x >= at.0 && x < at.0 + 4 && y >= at.1 && y < at.1 + 3 && (x, y) != (at.0 + 1, at.1);
                let expected = if covered { top.pixel(x - at.0, y - at.1) } else { base.pixel(x, y) };
                assert_eq!(result.pixel(x, y), expected, "{format:?} at {x},{y}");
            }
        }
    }
}

#[test]
fn overlay_of_colour_over_grey_gives_colour() {
    let place = Place::new();
    let base = place.file("base.png", &Png::random(4, 4, (ColorType::Grayscale, BitDepth::Eight)).encode());
    let top = place.file("top.png", &Png::random(2, 2, (ColorType::Rgb, BitDepth::Eight)).encode());
    let wide = place.file("wide.png", &Png::random(2, 2, (ColorType::Grayscale, BitDepth::Sixteen)).encode());
    let output = place.path("out.png");
    succeed(memferry!["overlay", &base, &top, &output, "--at", "0,0", "--key", "#ff00ff"]);
    assert_eq!(Png::load(&output).format, (ColorType::Rgb, BitDepth::Eight));
    let refused = memferry!["overlay", &base, &wide, &output, "--at", "0,0", "--key", "ff00ff"];
    assert_fails(refused, "16-bit grey cannot be combined");
}

#[test]
fn bad_pictures_and_positions_are_refused() {
    let place = Place::new();
    let png = Png::random(64, 64, (ColorType::Rgb, BitDepth::Eight)).encode();
    let good = place.file("good.png", &png);
    let cut = place.file("cut.png", &png[..png.len() / 2]);
    let endless = place.file("endless.png", &png[..png.len() - 12]);
    let text = place.file("text.png", b"this is no picture");
    let empty = place.file("empty.png", b"");
    let out = place.path("out.png");
    for bad in [&cut, &endless, &text, &empty] {
        assert_fails(memferry!["rotate", bad, &out, "--by", "90"], "as a picture");
    }
    assert_fails(memferry!["rotate", place.path("none"), &out, "--by", "90"], "No such file");
    assert_fails(memferry!["rotate", &good, &out, "--by", "45"], "90, 180 or 270");
    assert_fails(memferry!["rotate", &good, place.path("no/where.png"), "--by", "90"], "cannot write");
    let overlay = |at, key| memferry!["overlay", &good, &good, &out, "--at", at, "--key", key];
    assert_fails(overlay("1,1", "xyz"), "six hexadecimal digits");
    assert_fails(overlay("64,0", "ff00ff"), "would be invisible");
    assert_fails(overlay("0,4000000000", "ff00ff"), "would be invisible");
    assert_fails(overlay("-1,0", "ff00ff"), "left of or above");
    assert_fails(overlay("1", "ff00ff"), "two numbers");
    assert!(!out.exists());
}

/// A chunk with its checksum.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let body = [kind.as_slice(), data].concat();
    let crc = body.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    [(data.len() as u32).to_be_bytes().as_slice(), &body, &(!crc).to_be_bytes()].concat()
}

#[test]
fn an_enormous_picture_is_refused() {
    let place = Place::new();
    for (width, height) in [(60_000u32, 60_000u32), (0x7fff_ffff, 0x7fff_ffff), (1, 0x7fff_ffff)] {
        let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
        let parts = [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &header), chunk(b"IDAT", &[0x78, 0x9c])];
        let bomb = place.file("bomb.png", &parts.concat());
        let printed = fail(memferry!["rotate", &bomb, place.path("out.png"), "--by", "90"]);
        assert!(
            printed.contains("the maximum is 67108864 in all") || printed.contains("limits are exceeded"),
            "{printed}"
        );
    }
}

#[test]
fn serve_exits_on_a_signal_and_removes_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut service = Service::start(&[]);
        service.assert_serves();
        service.signal(signal);
        assert_eq!(service.wait().code(), Some(0));
        assert!(!service.socket.exists());
    }
}

#[test]
fn a_socket_in_use_is_refused_a_stale_one_not() {
    let place = Place::new();
    let service = Service::start(&[]);
    let second = memferry!["serve", "--socket", &service.socket];
    assert_fails(second, "a service is already listening on");
    service.assert_serves();

    let stale = place.path("stale.sock");
    let start = || {
        let mut command = memferry!["serve", "--socket", &stale];
        let mut child = command.env("MEMFERRY_LOG", "off").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "{line}");
        child
    };
    let mut first = start();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(stale.exists());
    let mut second = start();
    succeed(memferry!["status", "--socket", &stale]);
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn serve_refuses_invalid_settings() {
    let place = Place::new();
    let serve = |flag, value| memferry!["serve", "--socket", place.path("s"), flag, value];
    assert_fails(serve("--workers", "0"), "worker");
    assert_fails(serve("--policy", "none"), "there is no policy 'none'");
    assert_fails(serve("--mode", "9"), "octal");
}

#[test]
fn serve_does_not_replace_a_regular_file() {
    let place = Place::new();
    let plain = place.file("plain", b"kept");
    assert_fails(memferry!["serve", "--socket", &plain], "cannot listen on");
    assert_eq!(std::fs::read(&plain).unwrap(), b"kept");
}

#[test]
fn status_prints_a_table_or_json() {
    let service = Service::start(&["--workers", "1"]);
    let printed = succeed(memferry!["status", "--socket", &service.socket]);
    assert!(
        printed.contains(&format!("process {}", service.child.id())) && printed.contains("(this command)"),
        "{printed}"
    );
    let printed = succeed(memferry!["status", "--json", "--socket", &service.socket]);
    let status: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(status["workers"].as_array().unwrap().len(), 1);
    assert_fails(memferry!["status", "--socket", "/nonexistent/socket"], "cannot connect");
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeed(memferry!["completions", shell]);
        for word in ["status", "through-engine", "copy-contents", "completions"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    assert_fails(memferry!["completions", "tcsh"], "possible values");
}

#[test]
fn a_closed_output_ends_a_command_silently() {
    let service = Service::start(&[]);
    let mut command = memferry!["status", "--socket", &service.socket];
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    child.wait().unwrap();
    assert_eq!(errors, "");
}

#[test]
fn a_full_output_is_named() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for words in [&["config", "default"][..], &["completions", "bash"], &["doctor"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
        command.args(words).stdout(full()).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(errors.contains("cannot write to standard output"), "{words:?}: {errors}");
    }
}

#[test]
fn an_invalid_log_filter_is_reported() {
    let serve = |filter: &str| {
        let mut command = memferry!["serve", "--no-config", "--socket", "/nonexistent/s"];
        command.env("MEMFERRY_LOG", filter);
        fail(command)
    };
    assert!(serve("a=b=c").contains("MEMFERRY_LOG is ignored"));
    assert!(!serve("debug").contains("MEMFERRY_LOG"));
}

/// A demo that writes into `place`, with a small file to share.
fn demo(place: &Place, temporary: &Place) -> Command {
    let file = place.file("shared", &noise(300_000, 5));
    let mut command = memferry!["demo", "--file", &file, "--out", place.path("out")];
    command.env("TMPDIR", &temporary.0);
    command
}

/// The processes that a demo started, from its output.
fn processes(printed: &str) -> Vec<u32> {
    let words = printed.split("is process ").skip(1);
    words.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()).collect()
}

/// Whether a process runs. A zombie does not.
fn is_alive(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn demo_succeeds_and_cleans_up() {
    let place = Place::new();
    let temporary = Place::new();
    let printed = succeed(demo(&place, &temporary));
    assert!(printed.contains("All five steps succeeded"), "{printed}");
    assert_eq!(printed.matches("refused: ").count(), 3, "{printed}");
    let processes = processes(&printed);
    assert_eq!(processes.len(), 3, "{printed}");
    assert!(!processes.into_iter().any(is_alive));
    assert!(temporary.is_empty());
    let picture = Png::load(&place.path("out/memferry-demo.png"));
    assert_eq!((picture.width, picture.height), (768, 1024));
}

/// A folder with the engines of the demo, if the tests of the whole workspace have built them.
fn engines(place: &Place) -> Option<PathBuf> {
    let built = PathBuf::from(std::env::var_os("MEMFERRY_TEST_BUILT")?);
    let folder = place.path("engines");
    std::fs::create_dir(&folder).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-O2", "-I"]).arg(root.join("bindings/engine"));
    compile
        .arg(root.join("engines/example/memferry-engine-example.c"))
        .arg(built.join("libmemferry_engine_c.a"));
    compile.arg("-o").arg(folder.join("memferry-engine-example")).args([
        "-lgcc_s",
        "-lpthread",
        "-ldl",
        "-lm",
    ]);
    assert!(compile.status().unwrap().success());
    copy_program(&built.join("memferry-engine-cuda"), &folder.join("memferry-engine-cuda"));
    std::fs::copy(built.join("libmemferry_fake_cuda.so"), folder.join("libcuda.so.1")).unwrap();
    Some(folder)
}

#[test]
fn the_demo_shows_engine_processes() {
    let place = Place::new();
    let temporary = Place::new();
    let mut absent = memferry!["demo", "--engines", place.path("nothing")];
    absent.env("TMPDIR", &temporary.0);
    assert_fails(absent, "`./x demo --engines` builds the engines");
    let Some(engines) = engines(&place) else { return };
    let file = place.file("shared", &noise(3_000_000, 5));
    let mut command = memferry!["demo", "--engines", &engines, "--file", &file];
    command.env("TMPDIR", &temporary.0);
    let printed = succeed(command);
    assert!(printed.contains("All five steps succeeded"), "{printed}");
    assert_eq!(printed.matches("moved by an engine process").count(), 4, "{printed}");
    assert_eq!(printed.matches("refused: ").count(), 2, "{printed}");
    let processes = processes(&printed);
    assert_eq!(processes.len(), 5, "{printed}");
    assert!(!processes.into_iter().any(is_alive));
    assert!(temporary.is_empty());
}

#[test]
fn demo_checks_its_picture_first() {
    let place = Place::new();
    let temporary = Place::new();
    let small = place.file("small.png", &Png::random(5, 3, (ColorType::Grayscale, BitDepth::Eight)).encode());
    let mut command = demo(&place, &temporary);
    command.arg("--image").arg(&small);
    succeed(command);
    assert_eq!(Png::load(&place.path("out/memferry-demo.png")).width, 3);
    let mut command = demo(&place, &temporary);
    command.arg("--image").arg(place.file("text", b"no picture"));
    assert_fails(command, "as a picture");
    let empty = place.file("empty", b"");
    assert_fails(memferry!["demo", "--file", &empty, "--out", place.path("out")], "is empty");
    assert_fails(memferry!["demo", "--out", empty.join("below")], "cannot create the directory");
    assert!(temporary.is_empty());
}

/// Starts a demo and reads its output until all its processes are named.
fn started_demo(
    command: &mut Command,
) -> (std::process::Child, BufReader<std::process::ChildStdout>, Vec<u32>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    while processes(&printed).len() < 3 {
        assert_ne!(output.read_line(&mut printed).unwrap(), 0, "{printed}");
    }
    (child, output, processes(&printed))
}

#[test]
fn an_interrupted_demo_fails_and_cleans_up() {
    let place = Place::new();
    let temporary = Place::new();
    let (mut child, mut output, processes) = started_demo(&mut demo(&place, &temporary));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    output.read_to_string(&mut String::new()).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!processes.into_iter().any(is_alive));
    assert!(temporary.is_empty());
}

#[test]
fn a_demo_without_service_fails_and_cleans_up() {
    let place = Place::new();
    let temporary = Place::new();
    let (mut child, mut output, processes) = started_demo(&mut demo(&place, &temporary));
    kill_process(Pid::from_raw(processes[0] as i32).unwrap(), Signal::KILL).unwrap();
    output.read_to_string(&mut String::new()).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!processes.into_iter().any(is_alive));
    assert!(temporary.is_empty());
}

#[test]
fn a_killed_demo_leaves_no_processes() {
    let place = Place::new();
    let temporary = Place::new();
    let (mut child, _output, processes) = started_demo(&mut demo(&place, &temporary));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the demo's processes exit", || !processes.iter().copied().any(is_alive));
}

#[test]
fn a_demo_client_reports_invalid_orders() {
    let service = Service::start(&[]);
    let mut command = memferry!["demo-client", "--socket", &service.socket];
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "no order\n\"Write\"").unwrap();
    drop(input);
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(printed.lines().filter(|line| line.contains("Failed")).count(), 2, "{printed}");
}
