//! The C twin: copies by the driver, with nothing between.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::Direction;
use crate::BenchError;
use crate::run::Run;

/// Bytes of each memory of the twin.
const BYTES: u64 = 64 << 20;

/// The program, ended on drop. What it has to say about its end goes to standard error.
pub(super) struct Twin {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Seconds of the copies, by the memory of the host that it used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Memory that the driver allocated.
    pub(super) pinned: f64,
    /// A shared mapping that it registered.
    pub(super) registered: f64,
}

impl Twin {
    /// Compiles and starts it.
    pub(super) fn start(run: &Run, library: &Path) -> Result<Self, BenchError> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("twin/cuda.c");
        let program = run.directory().join("cuda-twin");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O2", "-o"]).arg(&program).arg(source).arg("-ldl");
        let compiled = compiler.status().map_err(|error| format!("there is no C compiler: {error}"))?;
        if !compiled.success() {
            return Err("cuda.c does not compile".into());
        }
        let mut command = Command::new(&program);
        command.arg(library).arg(BYTES.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or("no input of a child")?;
        let output = child.stdout.take().ok_or("no output of a child")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// So many copies, one behind the other, of so many bytes, at most 64 MiB; just after another one if `is_warm`.
    pub(super) fn copy(
        &mut self,
        direction: Direction,
        bytes: u64,
        count: usize,
        is_warm: bool,
    ) -> Result<Times, BenchError> {
        let word = match direction {
            Direction::Up => "up",
            Direction::Down => "down",
        };
        writeln!(self.input, "{word} {bytes} {count} {}", u8::from(is_warm))?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let times = line.split_whitespace().map(|word| word.parse::<f64>().ok().map(|ns| ns * 1e-9));
        match times.collect::<Option<Vec<_>>>().as_deref() {
            Some([pinned, registered]) => Ok(Times { pinned: *pinned, registered: *registered }),
            _ => Err(format!("the C twin printed: {line}").into()),
        }
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
