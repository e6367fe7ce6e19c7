//! The error of starting a service.

use memferry_cpu::level::LevelError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::module::ModuleError;
use crate::profile::ProfileError;

/// Reason for which a service did not start.
///
/// ```
/// use memferry_service::{ServiceConfig, StartError};
///
/// let config = ServiceConfig { workers: 0, ..ServiceConfig::default() };
/// let error = StartError::from(config.check().unwrap_err());
/// assert!(matches!(error, StartError::Config(_)));
/// ```
#[derive(Debug, Error)]
pub enum StartError {
    /// A configured value is outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The environment forces kernels that this CPU cannot run.
    #[error(transparent)]
    Kernels(#[from] LevelError),
    /// The machine's profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The Linux module cannot be used.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The configured scheduling class cannot be applied.
    #[error(
        "cannot schedule workers in class {class}: {source}; choose another class, or give the service CAP_SYS_NICE"
    )]
    Class { class: &'static str, source: std::io::Error },
    /// A system call failed.
    #[error("cannot start the service ({step}): {source}")]
    System { step: &'static str, source: std::io::Error },
}
