//! `memferry-device`: models of DMA engines as PCI devices of virtual machines.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use memferry_pci::ioat::{Interrupting, IoatFunction, IoatOptions, Version};
use memferry_pci::{Device, Memory, ServeOptions, serve};

/// DMA engines as PCI devices of virtual machines, over vfio-user.
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
}

#[derive(Debug, Subcommand)]
enum Served {
    /// Intel's I/OAT engine ("QuickData"), versions 3.0 to 3.3.
    Ioat(IoatArguments),
}

#[derive(Debug, Args)]
struct IoatArguments {
    /// Where the virtual machine connects; made here, and removed at the end.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// DMA channels.
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

fn run(arguments: IoatArguments) -> Result<String, Box<dyn std::error::Error>> {
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
        faults: Vec::new(),
    };
    let mut device = Device::new(IoatFunction::new(options, memory.clone()), memory);
    let served = serve(
        &mut device,
        &ServeOptions { socket: arguments.socket, keep: arguments.keep },
        &mut std::io::stderr(),
    )?;
    Ok(format!(
        "ended: {} commands, {} interrupts, {} bytes read and {} written by DMA, {} accesses refused",
        served.commands, served.interrupts, served.bytes_read, served.bytes_written, served.refused_accesses
    ))
}

fn main() -> ExitCode {
    let Command::Serve { device: Served::Ioat(arguments) } = Options::parse().command;
    let (code, text) = match run(arguments) {
        Ok(text) => (ExitCode::SUCCESS, text),
        Err(error) => (ExitCode::FAILURE, error.to_string()),
    };
    let _ = writeln!(std::io::stderr(), "memferry-device: {text}");
    code
}
