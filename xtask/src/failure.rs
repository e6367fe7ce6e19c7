//! Why a command failed, and its exit status.
//!
//! ```text
//! wrong use, or an unknown name ──► 2
//! set-up ─────────────────────────► 3
//! a stage ────────────────────────► the stage's own status
//! ```

/// Why a command ended early.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    WrongUse(String),
    /// Something could not be downloaded, installed or prepared.
    #[error("setup failed: {0}")]
    Setup(String),
    /// A stage failed, and has printed that.
    #[error("{stage} failed with status {status}")]
    Stage { stage: String, status: u8 },
}

impl Failure {
    pub(crate) fn setup(message: impl Into<String>) -> Self {
        Self::Setup(message.into())
    }

    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::WrongUse(_) => 2,
            Self::Setup(_) => 3,
            // A failed stage never gives status 0.
            Self::Stage { status, .. } => (*status).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_exit_status() {
        assert_eq!(Failure::WrongUse("no such target".to_owned()).exit_status(), 2);
        assert_eq!(Failure::setup("no network").exit_status(), 3);
        let stage = |status| Failure::Stage { stage: "clippy".to_owned(), status };
        assert_eq!(stage(101).exit_status(), 101);
        assert_eq!(stage(0).exit_status(), 1);
    }
}
