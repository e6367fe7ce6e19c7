//! What the doctor found: engines with their state, and the steps that make one usable.

use serde::Serialize;

/// Whether clients of memferry can have an engine's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// Nothing that it needs is missing.
    Usable,
    /// The steps make it usable.
    NeedsSteps,
    /// Whether it can be used does not show from outside.
    Unclear,
    /// The hardware is here, and memferry has no engine for it.
    NoEngine,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::NeedsSteps => "needs steps",
            Self::Unclear => "unclear",
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
    /// Whether the engine works without it, only slower.
    pub(super) optional: bool,
    /// Commands for a shell, in order.
    pub(super) commands: Vec<String>,
}

impl Step {
    pub(super) fn new(kind: &'static str, why: impl Into<String>) -> Self {
        Self { kind, why: why.into(), optional: false, commands: Vec::new() }
    }

    /// A step that makes an engine better that works without.
    pub(super) fn optional(kind: &'static str, why: impl Into<String>) -> Self {
        Self { optional: true, ..Self::new(kind, why) }
    }

    /// The first sentence of what is missing, without its full stop.
    pub(super) fn title(&self) -> &str {
        first_sentence(&self.why)
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
    /// A finding without details and steps yet.
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

    /// The finding with its state and summary: the first necessary step's reason, or what makes it usable.
    pub(super) fn judged(mut self, usable: impl Into<String>) -> Self {
        let necessary = self.steps.iter().find(|step| !step.optional);
        self.state = if necessary.is_none() { State::Usable } else { State::NeedsSteps };
        self.summary = match necessary {
            Some(step) => step.title().to_owned(),
            None => usable.into(),
        };
        self
    }

    /// The same, for an engine that may lack what memferry needs.
    pub(super) fn doubted(self, doubt: impl Into<String>) -> Self {
        let judged = self.judged(doubt);
        if judged.state == State::Usable { Self { state: State::Unclear, ..judged } } else { judged }
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

/// The first and last of a longer list.
pub(super) fn shortened(names: &[&str]) -> String {
    match names {
        [first, .., last] if names.len() > 4 => format!("{first} to {last}"),
        _ => names.join(", "),
    }
}
