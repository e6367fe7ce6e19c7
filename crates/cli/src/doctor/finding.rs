//! What the doctor found: engines with their state, and the steps that make one usable.

use serde::Serialize;

/// Whether clients of memferry can have an engine's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// Nothing is missing.
    Usable,
    /// The steps make it usable.
    NeedsSteps,
    /// The hardware is here, and memferry has no engine for it.
    NoEngine,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::NeedsSteps => "needs steps",
            Self::NoEngine => "no engine",
        }
    }
}

/// Something that keeps an engine from being used, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// A word for the kind of step: findings with equal kinds need the same steps.
    pub(super) kind: &'static str,
    /// What is missing, and what else to know.
    pub(super) why: String,
    /// Commands for a shell, in order.
    pub(super) commands: Vec<String>,
}

impl Step {
    pub(super) fn new(kind: &'static str, why: impl Into<String>) -> Self {
        Self { kind, why: why.into(), commands: Vec::new() }
    }

    /// With one more command.
    pub(super) fn run(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }
}

/// An engine of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// `cpu`, `dsa`, `iaa`, `ioat`, `ptdma`, `dmaengine` or `gpu`.
    pub(super) engine: &'static str,
    /// The engine in words, with its places.
    pub(super) name: String,
    pub(super) state: State,
    /// One line for the table.
    pub(super) summary: String,
    /// What was found, line by line.
    pub(super) details: Vec<String>,
    pub(super) steps: Vec<Step>,
}

impl Finding {
    /// A finding that is usable if it needs no steps.
    pub(super) fn new(engine: &'static str, name: impl Into<String>) -> Self {
        Self {
            engine,
            name: name.into(),
            state: State::Usable,
            summary: String::new(),
            details: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// The finding with its state and summary: the first step's reason, or what makes it usable.
    pub(super) fn judged(mut self, usable: impl Into<String>) -> Self {
        self.state = if self.steps.is_empty() { State::Usable } else { State::NeedsSteps };
        self.summary = match self.steps.first() {
            Some(step) => first_sentence(&step.why).to_owned(),
            None => usable.into(),
        };
        self
    }

    /// The finding of hardware that memferry has no engine for.
    pub(super) fn without_engine(mut self, summary: impl Into<String>) -> Self {
        self.state = State::NoEngine;
        self.summary = summary.into();
        self
    }
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..end]).trim_end_matches('.')
}
