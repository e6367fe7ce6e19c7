//! The program: its options, and the engine process.

use std::path::PathBuf;

use clap::Parser;
use memferry_engine::{Engine, EngineDescription, EngineOptions, report};
use thiserror::Error;

use crate::device::{Abilities, Opened};
use crate::open::OpenError;
use crate::server::{CHANNEL_REQUESTS, ServeError, Server};
use crate::vfio::Vfio;
use memferry_vfio::Linux;
use memferry_vfio::PciAddress;

/// Moves the bytes of a memferry service's requests with an Intel I/OAT DMA engine, through VFIO.
///
/// The device must be bound to vfio-pci, its group's file in /dev/vfio must be the user's, and the service's configuration has to
/// name the engine and its user, as in:
/// memferry serve --engine "ioat-0 user=memferry-engine frames=all"
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
#[command(name = "memferry-engine-ioat", version)]
pub struct Options {
    /// Socket of the service.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Name of the engine in the service's configuration.
    #[arg(long)]
    pub name: String,
    /// PCI address of the device, as in 0000:00:04.0.
    #[arg(long, value_name = "ADDRESS")]
    pub vfio: PciAddress,
    /// Engine channels of the device to use; all if not given.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub channels: Option<u32>,
}

/// Why the engine does not run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The device cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The service, or this process, is not as it must be.
    #[error(transparent)]
    Engine(#[from] memferry_engine::RunError),
}

/// Runs the engine until SIGTERM or SIGINT. The process must have one thread.
///
/// # Errors
/// [`RunError`].
pub fn run(options: &Options) -> Result<(), RunError> {
    run_on(options, Linux::new)
}

/// Runs the engine over what `vfio` makes: once to see what the device can do, then in each process that serves requests.
///
/// # Errors
/// [`RunError`]. A device that is lost later is no error: the keeper starts the engine again.
pub fn run_on<V: Vfio>(options: &Options, vfio: impl Fn() -> V) -> Result<(), RunError> {
    // What the engine announces. It is closed again: only the process that serves requests has the device.
    let abilities = Opened::new(vfio(), options.vfio)?.abilities();
    let channels = options.channels.unwrap_or(u32::MAX).min(abilities.channels.into());
    let description = EngineDescription {
        operations: abilities.operations,
        channels: channels * CHANNEL_REQUESTS,
        ..EngineDescription::default()
    };
    let connected = EngineOptions { socket: options.socket.clone(), name: options.name.clone(), description };
    memferry_engine::run(connected, |engine| serve(engine, options, (abilities, channels), vfio()))?;
    Ok(())
}

fn serve<V: Vfio>(
    engine: &mut Engine,
    options: &Options,
    (announced, channels): (Abilities, u32),
    vfio: V,
) -> Result<(), ServeError> {
    let Options { name, vfio: device, .. } = options;
    let opened = Opened::new(vfio, *device)?;
    if opened.abilities() != announced {
        return Err(ServeError::Changed(*device));
    }
    let (major, minor) = announced.version;
    let mut parts = opened.into_engine(name, channels)?;
    if let Err(error) = parts.vfio.watch_requests() {
        let what =
            format_args!("{error}; if the kernel wants {device} back, it waits until this engine is ended");
        report(name, what);
    }
    let server = Server::new(name, *device, parts);
    server.watch(engine)?;
    report(name, format_args!("{device} (version {major}.{minor}) is ready, with {channels} channels"));
    server.serve(engine)
}
