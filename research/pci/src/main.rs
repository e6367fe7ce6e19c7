//! `memferry-device`: models of DMA engines as PCI devices of virtual machines, and as a character device.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use memferry_pci::character::{self, CharacterDevice, CharacterOptions};
use memferry_pci::dsa::DsaFunction;
use memferry_pci::ioat::{Interrupting, IoatFunction, IoatOptions, Version};
use memferry_pci::{Device, Function, Memory, Planned, ServeOptions, schedule, serve};

/// DMA engines as PCI devices of virtual machines, over vfio-user, or as a character device, over CUSE.
#[derive(Debug, Parser)]
#[command(name = "memferry-device", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a device to one virtual machine, until that is gone.
    Serve {
        #[command(subcommand)]
        device: Served,
    },
    /// Makes a character device of this machine that takes descriptors by write(), until a signal. Needs root and the kernel module cuse.
    Char {
        #[command(subcommand)]
        device: Character,
    },
}

#[derive(Debug, Subcommand)]
enum Character {
    /// A work queue of Intel's Data Streaming Accelerator, as idxd gives one of type user to programs: /dev/dsa/NAME.
    Dsa(CharacterArguments),
}

#[derive(Debug, Args)]
struct CharacterArguments {
    /// Name of the work queue's file in /dev/dsa.
    #[arg(long, default_value = "wq0.0")]
    name: String,
    /// Descriptors that the queue holds.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=128))]
    entries: u16,
    /// A shared queue: any number of processes may open it, and a full one answers EAGAIN. Otherwise it is dedicated to one.
    #[arg(long)]
    shared: bool,
    /// Lets descriptors wait for absent pages, if they ask for that.
    #[arg(long)]
    block_on_fault: bool,
}

#[derive(Debug, Subcommand)]
enum Served {
    /// Intel's I/OAT engine ("QuickData"), versions 3.0 to 3.3.
    Ioat(IoatArguments),
    /// Intel's Data Streaming Accelerator (DSA), of the first generation.
    Dsa(DsaArguments),
}

#[derive(Debug, Args)]
struct DsaArguments {
    /// Where the virtual machine connects; made here, and removed at the end.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Waits for the next virtual machine when one has gone.
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Args)]
struct IoatArguments {
    /// Where the virtual machine connects; made here, and removed at the end.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Engine channels: each executes its own chain of descriptors.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=4))]
    channels: u8,
    /// Version of the engine: 3.0, 3.2 or 3.3. Linux uses XOR on 3.0 and 3.3.
    #[arg(long, default_value = "3.2")]
    version: Version,
    /// Another PCI device number than the version's, in hexadecimal.
    #[arg(long, value_name = "HEX", value_parser = hexadecimal)]
    id: Option<u16>,
    /// The best way of interrupting that the device offers; all ways before it are there, too.
    #[arg(long, value_enum, default_value_t = Interrupts::Msi)]
    interrupts: Interrupts,
    /// A schedule of faults: a file with a line for each, as "channel 1 descriptor 100 halt read-data", for an engine channel and a descriptor (see memferry-device(1)).
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Waits for the next virtual machine when one has gone.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Interrupts {
    Intx,
    Msi,
    Msix,
}

fn hexadecimal(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).map_err(|_| "a number of at most four hexadecimal digits".to_owned())
}

/// Limit of a schedule's bytes.
const LONGEST_SCHEDULE: u64 = 1 << 20;

fn read_faults(path: &Path, channels: u8) -> Result<Vec<Planned>, String> {
    let failed =
        |error: std::io::Error| format!("{}: {error}; name a readable file with --faults", path.display());
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_SCHEDULE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST_SCHEDULE {
        return Err(format!(
            "{}: a schedule has at most {LONGEST_SCHEDULE} bytes; shorten it",
            path.display()
        ));
    }
    schedule::parse_bytes(&bytes, channels).map_err(|error| format!("{}: {error}", path.display()))
}

fn serve_ioat(arguments: IoatArguments) -> Result<String, Box<dyn std::error::Error>> {
    let faults = match &arguments.faults {
        Some(path) => read_faults(path, arguments.channels)?,
        None => Vec::new(),
    };
    let memory = Memory::new();
    let options = IoatOptions {
        channels: arguments.channels,
        version: arguments.version,
        device: arguments.id,
        signalling: match arguments.interrupts {
            Interrupts::Intx => Interrupting::Intx,
            Interrupts::Msi => Interrupting::Msi,
            Interrupts::Msix => Interrupting::MsiX,
        },
        faults,
    };
    let function = IoatFunction::new(options, memory.clone());
    serve_function(function, memory, ServeOptions { socket: arguments.socket, keep: arguments.keep })
}

fn serve_function(
    function: impl Function,
    memory: Memory,
    options: ServeOptions,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut device = Device::new(function, memory);
    let served = serve(&mut device, &options, &mut std::io::stderr())?;
    Ok(format!(
        "ended: {} commands, {} interrupts, {} bytes read and {} written by DMA, {} accesses refused",
        served.commands, served.interrupts, served.bytes_read, served.bytes_written, served.refused_accesses
    ))
}

fn serve_character(arguments: CharacterArguments) -> Result<String, Box<dyn std::error::Error>> {
    let CharacterArguments { name, entries, shared, block_on_fault } = arguments;
    let options = CharacterOptions { name, entries, is_shared: shared, block_on_fault };
    let mut device = CharacterDevice::new(options)?;
    Ok(character::serve(&mut device, &mut std::io::stderr())?)
}

fn main() -> ExitCode {
    let served = match Options::parse().command {
        Command::Serve { device: Served::Ioat(arguments) } => serve_ioat(arguments),
        Command::Serve { device: Served::Dsa(DsaArguments { socket, keep }) } => {
            let memory = Memory::new();
            serve_function(DsaFunction::new(memory.clone()), memory, ServeOptions { socket, keep })
        }
        Command::Char { device: Character::Dsa(arguments) } => serve_character(arguments),
    };
    let (code, text) = match served {
        Ok(text) => (ExitCode::SUCCESS, text),
        Err(error) => (ExitCode::FAILURE, error.to_string()),
    };
    let _ = writeln!(std::io::stderr(), "memferry-device: {text}");
    code
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn command_lines_of_pages_parse() {
        let mistakes = memferry_pages::mistakes::<Options>("memferry-device");
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }
}
