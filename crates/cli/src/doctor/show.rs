//! Prints findings: a verdict, a table, then each engine with what is missing and the commands that mend it; or JSON.

use serde::Serialize;

use crate::doctor::finding::{Finding, State};
use crate::doctor::service::Surroundings;
use crate::output;

/// Width of explanations. Commands are never broken.
const WIDTH: usize = 100;

/// Everything that the doctor says.
#[derive(Serialize)]
pub(super) struct Diagnosis {
    /// Version of this format.
    version: u32,
    verdict: String,
    usable: usize,
    need_steps: usize,
    engines: Vec<Finding>,
    service: Surroundings,
    /// Files that exist and could not be read.
    unread: Vec<String>,
}

impl Diagnosis {
    pub(super) fn new(engines: Vec<Finding>, service: Surroundings, unread: Vec<String>) -> Self {
        let count = |state| engines.iter().filter(|finding| finding.state == state).count();
        let usable = count(State::Usable);
        let need_steps = count(State::NeedsSteps);
        let engine = if usable == 1 { "engine" } else { "engines" };
        let needs = if need_steps == 1 { "needs" } else { "need" };
        let verdict = format!("{usable} {engine} usable now; {need_steps} {needs} steps");
        Self { version: 1, verdict, usable, need_steps, engines, service, unread }
    }

    /// The text for people.
    pub(super) fn lines(&self, colors: bool) -> Vec<String> {
        let mut lines = vec![output::heading(&self.verdict, colors), String::new()];
        lines.extend(self.table(colors));
        for (at, finding) in self.engines.iter().enumerate() {
            lines.extend(explained(finding, &self.engines[..at], colors));
        }
        lines.push(String::new());
        lines.push(output::heading("Service and kernel", colors));
        for line in &self.service.lines {
            lines.extend(wrapped(line, "  "));
        }
        lines.extend(self.service.commands.iter().map(|command| format!("      {command}")));
        if !self.unread.is_empty() {
            lines.push(String::new());
            lines.push(output::warning("Not readable, so the above may be incomplete", colors));
            lines.extend(self.unread.iter().map(|line| format!("  {line}")));
        }
        lines
    }

    /// Verdict and table, for the head of a report.
    pub(super) fn summary(&self) -> Vec<String> {
        std::iter::once(self.verdict.clone()).chain(self.table(false)).collect()
    }

    fn table(&self, colors: bool) -> Vec<String> {
        let width = self.engines.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
        let row = |finding: &Finding| {
            let state = format!("{:<11}", finding.state.name());
            let state =
                if finding.state == State::NeedsSteps { output::warning(&state, colors) } else { state };
            format!("  {:<width$}  {state}  {}", finding.name, finding.summary)
        };
        self.engines.iter().map(row).collect()
    }
}

/// A finding with its details and steps. Of steps that one before it has, too, only that is said.
fn explained(finding: &Finding, before: &[Finding], colors: bool) -> Vec<String> {
    if finding.details.is_empty() && finding.steps.is_empty() {
        return Vec::new();
    }
    let heading = format!("{}: {}", finding.name, finding.state.name());
    let mut lines = vec![String::new(), output::heading(&heading, colors)];
    for detail in &finding.details {
        lines.extend(wrapped(detail, "  "));
    }
    for step in &finding.steps {
        let begin = if step.optional { "  + " } else { "  - " };
        let known = before.iter().find(|other| other.steps.contains(step));
        if let Some(other) = known {
            let text = format!("{}: the same step as for {}", step.title(), other.name);
            lines.extend(wrapped(&text, begin));
            continue;
        }
        lines.extend(wrapped(&step.why, begin));
        lines.extend(step.commands.iter().map(|command| format!("      {command}")));
    }
    lines
}

/// Words in lines. The first begins with `begin`, the others with as many spaces.
fn wrapped(text: &str, begin: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = begin.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(line);
            line = " ".repeat(begin.len());
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}
