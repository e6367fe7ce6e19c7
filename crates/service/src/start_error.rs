//! Why a service did not start.

use memferry_cpu::level::LevelError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::module::ModuleError;
use crate::profile::ProfileError;

/// Why a service did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A configured value is outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The environment asks for kernels that cannot be.
    #[error(transparent)]
    Kernels(#[from] LevelError),
    /// The machine's profile is of no use.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The Linux module cannot be used.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// Workers cannot be scheduled as configured.
    #[error(
        "workers cannot be of the class {class}: {source}; choose another, or give the service CAP_SYS_NICE"
    )]
    Class { class: &'static str, source: std::io::Error },
    /// The machine would not give what is needed.
    #[error("cannot start the service ({step}): {source}")]
    System { step: &'static str, source: std::io::Error },
}
