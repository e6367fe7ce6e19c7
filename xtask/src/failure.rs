//! Why a command did not do what it was asked to, and the exit status that says so.
//!
//! ```text
//! wrong use, or the thing asked for does not exist ──► 2
//! set-up ────────────────────────────────────────────► 3
//! a stage ───────────────────────────────────────────► the stage's own status
//! ```

/// Why a command ended early.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    WrongUse(String),
    /// Something could not be downloaded, installed or prepared.
    #[error("setup failed: {0}")]
    Setup(String),
    /// A stage failed. The stage has printed that already.
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
            // A stage that failed did not succeed, whatever its status says.
            Self::Stage { status, .. } => (*status).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_tells_the_kinds_apart() {
        assert_eq!(Failure::WrongUse("no such target".to_owned()).exit_status(), 2);
        assert_eq!(Failure::setup("no network").exit_status(), 3);
        let stage = |status| Failure::Stage { stage: "clippy".to_owned(), status };
        assert_eq!(stage(101).exit_status(), 101);
        assert_eq!(stage(0).exit_status(), 1);
    }
}
