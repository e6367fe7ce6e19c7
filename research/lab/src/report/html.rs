//! The report as one self-contained HTML page: no network, no script, no font.
//!
//! ```text
//! claims, rows, figures, failures, machine, bands ──► sections ──► text, with live parts between marks
//! ```
//!
//! Equal results give equal bytes except for live parts, which stand between `<!--live-->` and `<!--/live-->`. Texts are
//! escaped when inserted; pictures come from the project and are inserted as they are. Nothing is run here except the search
//! for counterexamples.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::page::Page;
use super::paper_tables::table_with_ours;
use super::words::marked;
use super::{counterexamples, further, pictures, verdicts};
use crate::claims::{Claim, Place};
use crate::paper_tables::{PaperTable, built_in};
use crate::plan::Plan;
use crate::table::Tables;
use crate::verdict::Basis;

/// Sections beside those of the papers, by id and title.
const SECTIONS: [(&str, &str); 7] = [
    ("machine", "The machine"),
    ("reading", "How to read this"),
    ("failed", "Failed claims"),
    ("claims", "All claims"),
    ("emulated", "Emulated copies"),
    ("sensitivity", "Error bars"),
    ("parameters", "Parameters"),
];

impl Page<'_> {
    pub fn html(&self) -> String {
        let title = "memferry: the claims of four papers, and the verdict on each";
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (title) }
                    style { (PreEscaped(include_str!("style.css"))) }
                }
                body {
                    header { h1 { (title) } (self.head()) (self.contents()) }
                    main {
                        (self.machine())
                        (reading())
                        section id="failed" { h2 { "Failed claims" } (verdicts::failed(self)) (self.failures()) }
                        section id="claims" { h2 { "All claims" } (verdicts::counts(self)) (verdicts::overview(self)) }
                        @for (name, title) in self.names() { (self.paper(&name, &title)) }
                        (self.emulated.section())
                        (further::bands(self))
                        (further::parameters(self))
                    }
                    footer { p { "Made by memferry-lab " (env!("CARGO_PKG_VERSION")) " with " code { "./x lab" } "." } }
                }
            }
        };
        page.into_string()
    }

    fn head(&self) -> Markup {
        html! {
            p.lead #predictions { strong { (self.report.predictions(self.papers)) } }
            (verdicts::predictions(self))
            p.lead {
                                "Memferry gives programs DMA from user level. Four papers built the parts of that path between 1996 and 2014. This \
                                 report lists each of their statements that can be checked, runs it on models of their machines in virtual time, and \
                                 in some cases on the machine at hand. Where the models do not confirm a statement, the report says so and why."
            }
            @if !self.only.is_empty() {
                                p.note { "This report covers only: " (self.only.join(", ")) "." }
            }
        }
    }

    fn contents(&self) -> Markup {
        let (before, after) = SECTIONS.split_at(4);
        html! {
            nav aria-label="Contents" { ul {
                @for (id, title) in before { li { a href=(format!("#{id}")) { (title) } } }
                @for (name, title) in self.names() {
                    li { a href=(format!("#paper-{name}")) { (title.split(':').next().unwrap_or_default()) } }
                }
                @for (id, title) in after { li { a href=(format!("#{id}")) { (title) } } }
            } }
        }
    }

    fn machine(&self) -> Markup {
        let facts = html! {
                        p { "Rows marked " strong { "live" } " were measured on this machine, at " (self.machine.time) ":" }
            div.wide { table { tbody {
                @for (name, value) in &self.machine.facts { tr { th scope="row" { (name) } td { (value) } } }
            } } }
        };
        html! {
            section id="machine" {
                h2 { "The machine" }
                (marked(Place::Live, facts))
                p {
                                        "All other rows are simulated, with models of the papers' machines in virtual time: a Pandaboard with an OMAP4460 \
                                         (Wicki), a Xeon 5150 with Intel's 5000X (Papa), a DEC Alpha 3000/300 with a prototype on its TurboChannel \
                                         (Markatos), and Magnum 3000s (Nava). Drivers, policies and the path of a request are the code of the service. \
                                         Simulated rows and figures are the same, byte for byte, on any machine."
                }
                p {
                    "The sections after those of the papers are studies of our own. They decide no claim, and no hardware stands behind them."
                }
            }
        }
    }

    fn failures(&self) -> Markup {
        html! {
            @if !self.failures.is_empty() {
                                h3 { "Failed experiments" }
                ul { @for failure in &self.failures { li { (failure.1) } } }
            }
        }
    }

    /// The papers of the claims and figures, by name and title.
    fn names(&self) -> Vec<(String, String)> {
        let mut names: Vec<&str> = Vec::new();
        let planned = self.papers.iter().filter(|paper| !paper.plans.is_empty()).map(|paper| paper.name);
        for name in self.claims.list().iter().map(|claim| claim.paper.as_str()).chain(planned) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let title = |name: &str| {
            let known = self.papers.iter().find(|paper| paper.name == name);
            known.map_or(name, |paper| paper.title).to_owned()
        };
        names.into_iter().map(|name| (name.to_owned(), title(name))).collect()
    }

    fn paper(&self, name: &str, title: &str) -> Markup {
        let claims: Vec<&Claim> = self.claims.list().iter().filter(|claim| claim.paper == name).collect();
        let papers = self.papers.iter().filter(|paper| paper.name == name);
        let plans: Vec<&Plan> = papers.flat_map(|paper| &paper.plans).collect();
        let made = Tables::new(self.tables.iter().map(|table| (*table).clone()));
        let has_a_figure = |table: &PaperTable| table.cells.iter().any(|cell| self.is_planned(&cell.figure));
        let tables = built_in().unwrap_or_default();
        let tables: Vec<&PaperTable> =
            tables.iter().filter(|table| table.paper == name && has_a_figure(table)).collect();
        html! {
            section id=(format!("paper-{name}")) {
                h2 { (title) }
                @if !claims.is_empty() { h3 { "Claims" } }
                @for claim in &claims { (verdicts::card(self, claim)) }
                @if !tables.is_empty() { h3 { "Tables" } }
                @for table in tables { (table_with_ours(table, &made, |figure| self.is_planned(figure))) }
                (counterexamples::counterexamples_of(|id| claims.iter().any(|claim| claim.id == id)))
                @if !plans.is_empty() { h3 { "Figures" } }
                @for plan in plans { (self.figure(plan)) }
            }
        }
    }

    fn is_planned(&self, figure: &str) -> bool {
        self.papers.iter().flat_map(|paper| &paper.plans).any(|plan| plan.figure == figure)
    }

    fn figure(&self, plan: &Plan) -> Markup {
        match self.tables.iter().find(|table| table.plan.figure == plan.figure) {
            Some(table) => pictures::picture(table, self.claims),
            None => match self.failures.iter().find(|(name, _)| *name == plan.figure) {
                Some((_, error)) => pictures::absent(plan, &error.to_string()),
                None => pictures::absent(plan, "it was not run"),
            },
        }
    }
}

/// Explains verdicts and bases.
fn reading() -> Markup {
    let bases = [
        (Basis::Predicted, "the model gave the figure with parameters from other sources"),
        (
            Basis::Calibrated,
            "a parameter of the model was fitted to this very figure, so the figure is no evidence",
        ),
        (Basis::Derived, "it follows by arithmetic from other claims or from the model"),
        (
            Basis::Explored,
            "every reachable state was visited, or property tests were run where there are too many",
        ),
        (Basis::Measured, "on the machine above"),
    ];
    html! {
        section id="reading" {
            h2 { "How to read this" }
            p {
                strong { "Verdicts. " }
                                "Pass: the claim holds. Fail: it does not, and the row gives the reason. Undecided: within the ranges of \
                                 the parameters it holds on some machines and not on others. Reported: a figure without a criterion, \
                                 such as all absolute live figures. Not-run: no experiment has decided it."
            }
                        p { strong { "Bases. " } "The evidence of a verdict:" }
            dl { @for (basis, meaning) in bases { dt { (basis.word()) } dd { (meaning) } } }
            p {
                strong { "Figures " }
                                "have the paper's axes; the vertical axis can be switched between linear and logarithmic. The paper's own values are \
                 dashed lines and diamonds; a figure of which the paper has no number says so. Where lines coincide \
                 only the last one is visible; the numbers are below. Every line is simulated: live figures have rows of \
                 their own. Each claim and figure names the command that computes it again; " code { "./x lab" } " computes all of them."
            }
        }
    }
}
