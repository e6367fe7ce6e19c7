//! The table of bands as CSV, written and read.
//!
//! ```text
//! # counted PAPER COUNTED of TRIED from DIGEST
//! # unfit PAPER MACHINES
//! # fitted PAPER PARAMETER LOW to HIGH
//! CLAIM,"verdict",BASE,HOLDS,MACHINES,
//! CLAIM,"FIGURE",BASE,LOW,HIGH,PARAMETER +0.9 PARAMETER -0.6
//! ```

use sha2::{Digest, Sha256};

use super::{Band, Bands, Fitted, Origin, Screened, Votes};
use crate::claims::{Claim, Claims};
use crate::experiments;
use crate::parameters::Parameter;
use crate::plan::Plan;
use crate::results::hex;
use crate::verdict::Status;

const BUILT_IN: &str = include_str!("../../bands.csv");
/// Start of the line about a paper's machines.
const COUNTED: &str = "# counted ";
/// Start of the lines about the parameters that are fitted on each machine.
const UNFIT: &str = "# unfit ";
const FITTED: &str = "# fitted ";
const HEAD: &str = "claim,figure,base,low or holds,high or machines,follows";
/// Replaces the figure's name in a line about a verdict.
const VERDICT: &str = "verdict";

impl Bands {
    /// The part of the committed table about these claims.
    pub fn built_in(claims: &Claims) -> Self {
        Self::parse(BUILT_IN, claims)
    }

    /// Reads a table; ignores lines that do not parse.
    fn parse(text: &str, claims: &Claims) -> Self {
        let mut screened: Vec<Screened> =
            text.lines().filter_map(|line| parse_screened(line.strip_prefix(COUNTED)?)).collect();
        for one in &mut screened {
            let own = |line: &str, start: &str| {
                line.strip_prefix(start)?.strip_prefix(&one.paper)?.strip_prefix(' ').map(str::to_owned)
            };
            let unfit = text.lines().find_map(|line| own(line, UNFIT)?.parse().ok());
            let fitted = text.lines().filter_map(|line| parse_fitted(&own(line, FITTED)?)).collect();
            (one.unfit, one.fitted) = (unfit.unwrap_or(0), fitted);
        }
        let is_current = screened.iter().all(|one| inputs(&one.paper).as_ref() == Some(&one.made_of));
        let is_known = |line: &&str| line.split(',').next().is_some_and(|id| claims.find(id).is_some());
        let lines = || text.lines().filter(is_known);
        Self {
            screened,
            votes: lines().filter_map(parse_votes).collect(),
            bands: lines().filter_map(parse_band).collect(),
            origin: if is_current { Origin::Project } else { Origin::Before },
        }
    }

    /// The table as CSV.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for Screened { paper, tried, counted, unfit, fitted, made_of } in &self.screened {
            text += &format!("{COUNTED}{paper} {counted} of {tried} from {made_of}\n");
            if !fitted.is_empty() {
                text += &format!("{UNFIT}{paper} {unfit}\n");
            }
            for Fitted { parameter, low, high } in fitted {
                text += &format!("{FITTED}{paper} {parameter} {low} to {high}\n");
            }
        }
        text += &format!("{HEAD}\n");
        for Votes { claim, base, holds, machines } in &self.votes {
            text += &format!("{claim},\"{VERDICT}\",{},{holds},{machines},\n", base.word());
        }
        for Band { claim, figure, base, low, high, follows } in &self.bands {
            let follows: Vec<String> =
                follows.iter().map(|(name, part)| format!("{name} {part:+}")).collect();
            text += &format!("{claim},\"{figure}\",{base},{low},{high},{}\n", follows.join(" "));
        }
        text
    }
}

fn parse_screened(line: &str) -> Option<Screened> {
    let words: Vec<&str> = line.split(' ').collect();
    let [paper, counted, "of", tried, "from", made_of] = words[..] else { return None };
    let [paper, made_of] = [paper, made_of].map(str::to_owned);
    let [tried, counted] = [tried.parse().ok()?, counted.parse().ok()?];
    Some(Screened { paper, tried, counted, unfit: 0, fitted: Vec::new(), made_of })
}

fn parse_fitted(text: &str) -> Option<Fitted> {
    let words: Vec<&str> = text.split(' ').collect();
    let [parameter, low, "to", high] = words[..] else { return None };
    Some(Fitted { parameter: parameter.to_owned(), low: low.parse().ok()?, high: high.parse().ok()? })
}

/// Splits a line into claim, figure and four more fields. Only the figure's name may contain commas.
fn fields(line: &str) -> Option<(&str, &str, [&str; 4])> {
    let (claim, rest) = line.split_once(",\"")?;
    let (figure, rest) = rest.rsplit_once("\",")?;
    Some((claim, figure, rest.split(',').collect::<Vec<_>>().try_into().ok()?))
}

fn parse_votes(line: &str) -> Option<Votes> {
    let (claim, VERDICT, [base, holds, machines, _]) = fields(line)? else { return None };
    Some(Votes {
        claim: claim.to_owned(),
        base: Status::of_word(base)?,
        holds: holds.parse().ok()?,
        machines: machines.parse().ok()?,
    })
}

fn parse_band(line: &str) -> Option<Band> {
    let (claim, figure, [base, low, high, follows]) = fields(line)?;
    let [base, low, high] = [base.parse().ok()?, low.parse().ok()?, high.parse().ok()?];
    let words: Vec<&str> = follows.split_whitespace().collect();
    let pairs = words.chunks_exact(2);
    let follows = pairs.filter_map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?))).collect();
    Some(Band { claim: claim.to_owned(), figure: figure.to_owned(), base, low, high, follows })
}

/// A digest of the inputs that figures and verdicts of a paper depend on, besides the program. Titles and sources are left out.
/// `None` if there is no such paper.
pub(super) fn inputs(paper: &str) -> Option<String> {
    let claims = Claims::built_in().ok()?;
    let mut digest = Sha256::new();
    let mut add = |text: String| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    };
    let papers = experiments::prepare(&claims, &[]).ok()?;
    let prepared = papers.iter().find(|prepared| prepared.name == paper)?;
    for plan in prepared.plans.iter().map(Plan::reduced) {
        let Plan { figure, runner, seed, claims, series, .. } = &plan;
        add(format!("{:?}", (figure, runner, seed, claims, plan.points(), series)));
    }
    for Parameter { name, value, unit, range, choices, fitted, .. } in prepared.parameters.list() {
        add(format!("{:?}", (name, value, unit, range, choices)));
        if let Some(claim) = fitted {
            add(format!("fitted to {claim}"));
        }
    }
    for claim in claims.list().iter().filter(|claim| claim.paper == paper) {
        let Claim { id, kind, expect, tolerance, range, values, .. } = claim;
        add(format!("{:?}", (id, kind, expect, tolerance, range, values, claim.stated_fraction())));
    }
    Some(hex(&digest.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: &str = "./x lab --sensitivity --out DIR, then copy DIR/bands.csv over research/lab/bands.csv";

    #[test]
    fn a_written_table_is_read_back() {
        let claims = Claims::built_in().expect("checked");
        let band = |figure: &str, follows: &[(&str, f64)]| Band {
            claim: "wicki-rotation".to_owned(),
            figure: figure.to_owned(),
            base: 912.5,
            low: 1.0 / 3.0,
            high: 1e9,
            follows: follows.iter().map(|(name, part)| ((*name).to_owned(), *part)).collect(),
        };
        let votes =
            |claim: &str| Votes { claim: claim.to_owned(), base: Status::Pass, holds: 3, machines: 4 };
        let table = Bands {
            screened: vec![Screened {
                paper: "wicki2014".to_owned(),
                tried: 9,
                counted: 4,
                unfit: 2,
                fitted: vec![Fitted { parameter: "turn".to_owned(), low: 1.5, high: 3.0 }],
                made_of: inputs("wicki2014").expect("listed"),
            }],
            votes: vec![votes("wicki-rotation"), votes("wicki-unknown")],
            bands: vec![band("", &[]), band("gone, all of it", &[("turn", -0.75), ("l2-read", 1.0)])],
            origin: Origin::Here,
        };
        let read = Bands::parse(&table.csv(), &claims);
        assert_eq!((&read.screened, &read.bands), (&table.screened, &table.bands));
        assert_eq!((&read.votes[..], read.origin), (&table.votes[..1], Origin::Project));
        let papers = experiments::prepare(&claims, &[]).expect("checked");
        assert_eq!(read.current(&papers[0], &claims).map(|own| own.bands), Some(table.bands.clone()));
        assert_eq!(read.current(&papers[1], &claims), None);
        let of_others = table.csv().replacen(&table.screened[0].made_of, "0", 1);
        let read = Bands::parse(&of_others, &claims);
        assert_eq!((read.origin, read.current(&papers[0], &claims)), (Origin::Before, None));
    }

    #[test]
    fn the_committed_table_is_up_to_date() {
        let claims = Claims::built_in().expect("checked");
        let table = Bands::built_in(&claims);
        let lines = BUILT_IN.lines().filter(|line| !line.starts_with('#') && *line != HEAD).count();
        assert_eq!(table.votes.len() + table.bands.len(), lines, "every line names a claim");
        assert_eq!(
            table.origin,
            Origin::Project,
            "plans, parameters, ranges or criteria have changed: {HOW}"
        );
        for one in &table.screened {
            assert!(one.counted >= 8, "{}: too few machines keep the calibrated claims: {one:?}", one.paper);
        }
    }
}
